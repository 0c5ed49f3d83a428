"""What lies on a device beside the artifact: the round's plan, the client's examples and its private seed.

    plan.json           everything in `RoundPlan`, with the client's number and the precision of its update
    data.safetensors    `images` U8 [N, C, H, W] and `labels` I64 [N]: pushed once, never sent back
    seed                the private seed as a decimal number; it never leaves the device either

Written here for both clients on devices: the native one reads them in `ondevice/native/client/device_files.cpp`, the one for
ONNX Runtime with the readers below.  A plan must have exactly the fields that its reader knows, so that a setting which an
older client would ignore is an error and not a different experiment.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from ondevice.contract import safetensors_file
from ondevice.contract.safetensors_file import Bfloat16
from ondevice.contract.vocabulary import ExampleSet, LocalTraining, RoundPlan
from ondevice.contract.wire import Precision

FORMAT = "fedss-plan"
VERSION = 1


class DeviceFileError(ValueError):
    """A plan, data set or seed that a client cannot use."""


@dataclass(frozen=True)
class DevicePlan:
    """One client's part in one round."""

    plan: RoundPlan
    client_id: int
    precision: Precision = "fp32"


def write_plan(path: Path, device_plan: DevicePlan) -> None:
    document = {
        "format": FORMAT,
        "version": VERSION,
        "client_id": device_plan.client_id,
        "precision": device_plan.precision,
        **asdict(device_plan.plan),
    }
    _write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def read_plan(path: Path) -> DevicePlan:
    try:
        document = json.loads(path.read_bytes())
        if document.pop("format") != FORMAT:
            raise DeviceFileError(f"{path} is not a {FORMAT}")
        if (version := document.pop("version")) != VERSION:
            raise DeviceFileError(f"{path} has format version {version}; this client reads {VERSION}")
        client_id, precision = document.pop("client_id"), document.pop("precision")
        if precision not in get_args(Precision) or type(client_id) is not int or client_id < 0:
            raise DeviceFileError(f"{path}: precision {precision!r} or client_id {client_id!r} is not known")
        training = _exactly(LocalTraining, document.pop("local_training"))
        plan = _exactly(RoundPlan, {**document, "local_training": training})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DeviceFileError(f"{path}: not a plan that this client knows: {error}") from None
    return DevicePlan(plan, client_id, precision)


def write_examples(path: Path, examples: ExampleSet) -> None:
    # Labels first: 8-byte numbers stay aligned for readers that map the file.
    safetensors_file.write_file(path, {"labels": examples.labels, "images": examples.images}, {})


def read_examples(path: Path) -> ExampleSet:
    """Views of the mapped file: only the images of the current batch are ever in memory."""
    try:
        tensors, _ = safetensors_file.read_file(path)
        if set(tensors) != {"images", "labels"}:
            raise DeviceFileError(f"holds {sorted(tensors)}; expected images and labels")
        images, labels = tensors["images"], tensors["labels"]
        if isinstance(images, Bfloat16) or isinstance(labels, Bfloat16):
            raise DeviceFileError("holds BF16; expected U8 images and I64 labels")
        return ExampleSet(images, labels)
    except ValueError as error:
        raise DeviceFileError(f"{path}: {error}") from None


def write_seed(path: Path, private_seed: int) -> None:
    if not 0 <= private_seed < 1 << 64:
        raise ValueError("the private seed is out of range; expected a whole number below 2^64")
    _write_text(path, f"{private_seed}\n")
    path.chmod(0o600)


def read_seed(path: Path) -> int:
    text = path.read_text().removesuffix("\n")
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 64):
        raise DeviceFileError(f"{path}: expected one whole number below 2^64, the client's private seed")
    return int(text)


def _exactly(kind: type[Any], document: dict[str, Any]) -> Any:
    """An object of `kind` from exactly its fields, each of the type that its default or annotation has."""
    names = {field.name for field in fields(kind)}
    if set(document) != names:
        raise ValueError(f"fields are {sorted(document)}; expected {sorted(names)}")
    for field in fields(kind):
        value = document[field.name]
        expected = {"int": int, "float": (int, float)}.get(str(field.type), object)
        if not isinstance(value, expected) or isinstance(value, bool):  # type: ignore[arg-type]  # a tuple of types will do
            raise ValueError(f"{field.name} is {value!r}; expected {field.type}")
    return kind(**document)


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
