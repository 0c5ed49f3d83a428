"""Weights from elsewhere: safetensors or torch checkpoints, in our naming or in that of torchvision's or timm's MobileNets.

Theirs have BatchNorm and ours GroupNorm: its scales and biases carry over, its running statistics have no counterpart.  The
names follow by rule from which parts a block has.  A network from elsewhere (`timm:NAME` and the like) takes its own
checkpoints under their own names; its statistics are taken where it keeps them (`--batch-norm frozen`).  Of a file of
`fedss pretrain`, or a saved state of a run, the extractor is taken.

    ours                              torchvision                timm
    stem                              features.0                 conv_stem, bn1
    blocks.i, in order                features.{i+1}.block       blocks.{stage}.{index}, stages counted through
      expand                            the parts of a block       conv_pw, bn1      (absent where the block does not expand)
      depthwise                         are numbered as they       conv_dw, bn2      (without expand: bn1)
      squeeze_excite.reduce, .restore   come: {j}.fc1, {j}.fc2     se.conv_reduce, se.conv_expand
      project                                                      conv_pwl, bn3     (without expand: conv_pw, bn2)
    last                              features.{last}            blocks.{last}.0.conv, .bn1
    embedding                         classifier.0               conv_head           (taken when it has our size)

In torchvision a part is a pair: {j}.0 the convolution, {j}.1 its norm.  Its MobileNetV2 calls a block's parts `conv` instead
of `block`, and the last of them are no pair but {j} and {j + 1}; the embedding has no counterpart.  timm's has `conv_head`
and `bn2` where ours has `last`.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ondevice.contract import safetensors_file
from ondevice.contract.artifact import ArtifactError, check_tensors
from ondevice.contract.vocabulary import FloatArray, Parameters
from ondevice.model.low_rank import DOWN, UP

NameMap = dict[str, str]
"""Our name -> theirs."""

_MODEL = "model."
"""Where a network from elsewhere lies in our extractor; its own checkpoints do not say so."""
_ADAPTER = re.compile(rf"\.({DOWN}|{UP})$")
_CLASSIFIER = re.compile(r"(classifier|conv_head|fc|heads?|head_dist|last_linear|aux\w*|AuxLogits)\.")
"""Layers that are left out when a network becomes an extractor."""
_OURS = {"fedss-pretrained-": "extractor.", "fedss-server-state-": "dense."}
"""How the format of a file of ours begins -> how the names of its extractor's tensors do."""
_DROPPED = re.compile(r"\.(running_mean|running_var|num_batches_tracked)$")


def load_weights(path: Path, fresh: Parameters) -> dict[str, FloatArray]:
    """All of the extractor's tensors.  `fresh` gives names and shapes, and the embedding where the file's does not fit."""
    tensors = _read(path)
    # Adapters begin as they are made, on whatever weights.
    needed = {name: value for name, value in fresh.items() if not _ADAPTER.search(name)}
    if set(tensors) & set(needed):
        taken = {name: value for name, value in tensors.items() if name in fresh or not _DROPPED.search(name)}
        expected = {name: value.shape for name, value in fresh.items() if name in needed or name in taken}
        check_tensors(taken, expected, str(path))
        return {name: taken.get(name, fresh[name]) for name in fresh}
    names = _foreign_names(tensors, needed, path)
    weights = dict(fresh)
    for ours, theirs in names.items():
        if ours.startswith("embedding.") and (
            theirs not in tensors or tensors[theirs].size != fresh[ours].size
        ):
            continue  # a head of another size: ours starts fresh, as the paper's does
        if theirs not in tensors:
            raise ArtifactError(
                f"{path} has no {theirs}, which our {ours} comes from; is it another architecture?"
            )
        weights[ours] = _reshaped(tensors[theirs], fresh[ours].shape, f"{path}: {theirs} (our {ours})")
    left = [name for name in tensors if name not in names.values() and not _DROPPED.search(name)]
    unknown = [name for name in left if not _CLASSIFIER.match(name)]
    if unknown:
        raise ArtifactError(
            f"{path} holds {unknown[0]} and {len(unknown) - 1} more that our extractor has no place for; "
            "is it another architecture?"
        )
    check_tensors(weights, {name: value.shape for name, value in fresh.items()}, str(path))
    return weights


def _foreign_names(tensors: Mapping[str, FloatArray], fresh: Parameters, path: Path) -> NameMap:
    if "stem.conv.weight" in fresh:
        if "features.0.0.weight" in tensors:
            return _torchvision_names(tensors, fresh)
        if "conv_stem.weight" in tensors:
            return _timm_names(tensors, fresh)
    of_model = {ours: ours.removeprefix(_MODEL) for ours in fresh if ours.startswith(_MODEL)}
    if set(of_model.values()) & set(tensors):
        return of_model
    raise ArtifactError(
        f"{path} begins with {next(iter(tensors), 'no tensor')!r}: none of its names is ours "
        f"(such as {next(iter(fresh))!r}), nor those of the network or of torchvision's or timm's MobileNets"
    )


def _torchvision_names(tensors: Mapping[str, FloatArray], fresh: Parameters) -> NameMap:
    # How MobileNetV2 calls a block's parts, or else MobileNetV3.
    kind = "conv" if "features.1.conv.0.0.weight" in tensors else "block"
    names = {**_convolution("stem", "features.0.0", "features.0.1")}
    blocks = _block_parts(fresh)
    for index, parts in enumerate(blocks):
        for position, part in enumerate(parts):
            theirs = f"features.{index + 1}.{kind}.{position}"
            if kind == "conv" and part == "project":
                names |= _convolution(
                    f"blocks.{index}.project", theirs, f"features.{index + 1}.conv.{position + 1}"
                )
            elif part == "squeeze_excite":
                names |= _squeeze_excite(index, f"{theirs}.fc1", f"{theirs}.fc2")
            else:
                names |= _convolution(f"blocks.{index}.{part}", f"{theirs}.0", f"{theirs}.1")
    last = f"features.{len(blocks) + 1}"
    return names | _convolution("last", f"{last}.0", f"{last}.1") | _linear("embedding", "classifier.0")


def _timm_names(tensors: Mapping[str, FloatArray], fresh: Parameters) -> NameMap:
    names = {**_convolution("stem", "conv_stem", "bn1")}
    matches = (re.match(r"blocks\.(\d+)\.(\d+)\.", name) for name in tensors)
    places = sorted({(int(match[1]), int(match[2])) for match in matches if match})
    blocks = _block_parts(fresh)
    # MobileNetV3's last convolution is a block of its own, MobileNetV2's is the head.
    last_is_head = "bn2.weight" in tensors
    expected = len(blocks) + (not last_is_head)
    if len(places) != expected:
        raise ArtifactError(
            f"the checkpoint has {len(places)} blocks; expected {expected}: another architecture?"
        )
    for index, (parts, (stage, place)) in enumerate(zip(blocks, places, strict=False)):
        theirs = f"blocks.{stage}.{place}"
        convolutions = ("conv_pw", "conv_dw", "conv_pwl") if "expand" in parts else ("conv_dw", "conv_pw")
        ours = [part for part in parts if part != "squeeze_excite"]
        for number, (part, convolution) in enumerate(zip(ours, convolutions, strict=True), start=1):
            names |= _convolution(f"blocks.{index}.{part}", f"{theirs}.{convolution}", f"{theirs}.bn{number}")
        if "squeeze_excite" in parts:
            names |= _squeeze_excite(index, f"{theirs}.se.conv_reduce", f"{theirs}.se.conv_expand")
    if last_is_head:
        return names | _convolution("last", "conv_head", "bn2") | _linear("embedding", "classifier")
    last = "blocks.{}.{}".format(*places[-1])
    return names | _convolution("last", f"{last}.conv", f"{last}.bn1") | _linear("embedding", "conv_head")


def _block_parts(fresh: Parameters) -> list[list[str]]:
    """Which parts each of our blocks has, in the order that data flows through them."""
    order = ("expand", "depthwise", "squeeze_excite", "project")
    count = 1 + max(int(match[1]) for name in fresh if (match := re.match(r"blocks\.(\d+)\.", name)))
    return [
        [part for part in order if any(name.startswith(f"blocks.{index}.{part}.") for name in fresh)]
        for index in range(count)
    ]


def _convolution(ours: str, convolution: str, norm: str) -> NameMap:
    return {f"{ours}.conv.weight": f"{convolution}.weight"} | {
        f"{ours}.norm.{tensor}": f"{norm}.{tensor}" for tensor in ("weight", "bias")
    }


def _squeeze_excite(index: int, reduce: str, restore: str) -> NameMap:
    ours = f"blocks.{index}.squeeze_excite"
    return _linear(f"{ours}.reduce", reduce) | _linear(f"{ours}.restore", restore)


def _linear(ours: str, theirs: str) -> NameMap:
    return {f"{ours}.{tensor}": f"{theirs}.{tensor}" for tensor in ("weight", "bias")}


def _reshaped(tensor: FloatArray, shape: tuple[int, ...], what: str) -> FloatArray:
    """A 1x1 convolution of theirs is a matrix of ours: trailing dimensions of 1 do not count."""
    trimmed = tensor.shape[: len(shape)]
    if trimmed != shape or any(size != 1 for size in tensor.shape[len(shape) :]):
        raise ArtifactError(f"{what} has shape {list(tensor.shape)}; expected {list(shape)}")
    return np.ascontiguousarray(tensor.reshape(shape))


def _read(path: Path) -> dict[str, FloatArray]:
    """float32 arrays by name; containers and wrappers that training scripts add are taken off."""
    if not path.is_file():
        raise ArtifactError(
            f"{path} is not a file; expected safetensors, such as a run's state.safetensors, or a torch checkpoint"
        )
    if path.suffix == ".safetensors":
        try:
            named, metadata = safetensors_file.from_bytes(path.read_bytes())
        except safetensors_file.SafetensorsError as error:
            raise ArtifactError(f"{path} cannot be read as safetensors: {error}") from error
        arrays: dict[str, Any] = {
            name: tensor.to_float32() if isinstance(tensor, safetensors_file.Bfloat16) else tensor
            for name, tensor in _of_extractor(named, metadata).items()
        }
    else:
        arrays = {name: tensor.float().numpy() for name, tensor in _read_checkpoint(path).items()}
    return {
        name.removeprefix("module."): np.array(value, np.float32)
        for name, value in arrays.items()
        if not name.endswith("num_batches_tracked")
    }


def _of_extractor(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Without what a file of ours holds beside it: tables, moments."""
    kind = metadata.get("format", "")
    for beginning, prefix in _OURS.items():
        if kind.startswith(beginning):
            return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
    return tensors


def _read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        KeyError,
        AttributeError,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArtifactError(
            f"{path} cannot be read as a torch checkpoint of tensors alone: {reason}"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ArtifactError(f"{path} does not hold a state dict (tensors by name)")
    return content
