"""What lies on a device beside the artifact: the round's plan, the client's examples and its private seed.

    plan                the wire message `plan`: everything in `RoundPlan`, with the client's number
    data.safetensors    `labels` I64 [N], and `feature/NAME` U8, I64 or F32 [N, ...] for every feature: pushed once, never
                        sent back
    seed                the private seed as a decimal number; it never leaves the device either

Written here for both clients on devices: the native one reads them in `ondevice/native/client/device_files.cpp`, the one for
ONNX Runtime with the readers below.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ondevice.contract import safetensors_file, wire
from ondevice.contract.safetensors_file import Array, Bfloat16
from ondevice.contract.vocabulary import ExampleSet, RoundPlan
from ondevice.contract.wire import Envelope, WireError

_LABELS = "labels"
_FEATURE = "feature/"


class DeviceFileError(ValueError):
    """A plan, data set or seed that a client cannot use."""


def write_plan(path: Path, plan: RoundPlan, client_id: int) -> None:
    """One client's part in one round."""
    write_whole(path, wire.plan_to_bytes(Envelope(plan.round_index, client_id), plan))


def read_plan(path: Path) -> tuple[int, RoundPlan]:
    """The client's number, and its plan."""
    try:
        envelope, plan = wire.plan_from_bytes(path.read_bytes())
    except WireError as error:
        raise DeviceFileError(f"{path}: {error}") from None
    return envelope.client_id, plan


def write_examples(path: Path, examples: ExampleSet) -> None:
    # The largest numbers first: all of them stay aligned for readers that map the file.
    features = sorted(examples.features.items(), key=lambda feature: -feature[1].itemsize)
    tensors: dict[str, Array] = {_LABELS: examples.labels}
    # Images that lie in files are decoded here.
    tensors |= {f"{_FEATURE}{name}": np.asarray(values) for name, values in features}
    safetensors_file.write_file(path, tensors, {})


def read_examples(path: Path) -> ExampleSet:
    """Views of the mapped file: only the features of the current batch are ever in memory."""
    try:
        tensors, _ = safetensors_file.read_file(path)
        arrays: dict[str, Array] = {}
        for name, tensor in tensors.items():
            if name != _LABELS and not name.startswith(_FEATURE):
                raise DeviceFileError(f"unknown tensor {name}; expected {_LABELS} and {_FEATURE}NAME")
            if isinstance(tensor, Bfloat16):
                raise DeviceFileError(f"{name} is BF16; expected U8, I64 or F32")
            arrays[name] = tensor
        if _LABELS not in arrays:
            raise DeviceFileError(f"expected {_LABELS}, and a tensor {_FEATURE}NAME for each feature")
        labels = arrays.pop(_LABELS)
        return ExampleSet({name.removeprefix(_FEATURE): values for name, values in arrays.items()}, labels)
    except ValueError as error:
        raise DeviceFileError(f"{path}: {error}") from None


def write_seed(path: Path, private_seed: int) -> None:
    if not 0 <= private_seed < 1 << 64:
        raise ValueError("the private seed is out of range; expected a whole number below 2^64")
    write_whole(path, f"{private_seed}\n".encode())
    path.chmod(0o600)


def read_seed(path: Path) -> int:
    text = path.read_bytes().removesuffix(b"\n")
    # Never quoted: it is secret.
    if not (text.isdigit() and len(text) <= 20 and int(text) < 1 << 64):
        raise DeviceFileError(f"{path}: expected one whole number below 2^64, the client's private seed")
    return int(text)


def write_whole(path: Path, content: bytes) -> None:
    """The file appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
