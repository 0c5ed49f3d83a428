"""manifest.json of an artifact: what the step takes and gives, what it needs, and what every file must look like.

It may come from anywhere: whatever it lacks, or says that cannot be, is a ValueError that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import PurePosixPath
from typing import Any, cast

import numpy as np

from ondevice.contract.artifacts.lengths import Lengths
from ondevice.contract.artifacts.manifest_fields import Fields, check_array
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds, Dtype, Role, StepSignature
from ondevice.contract.vocabulary import BatchNormPolicy, LogitKind, Randomness, StepSpec

FORMAT = "fedss-artifact"
VERSION = 2


@dataclass(frozen=True)
class Parameter:
    """One float32 tensor of the extractor."""

    name: str
    shape: tuple[int, ...]
    trainable: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class FileEntry:
    """What a file of the artifact must look like."""

    size: int
    sha256: str


@dataclass(frozen=True)
class MemoryFigure:
    """What one runtime needs for a step of `micro_batch` examples over `width` rows of every table."""

    runtime: str
    micro_batch: int
    width: int
    planned_bytes: int | None
    """The arena that the program asks for; None where the runtime plans at run time."""
    peak_bytes: int | None
    """Measured: of a process that only steps, a batch of 32 in micro-batches; None where it was not measured."""


@dataclass(frozen=True)
class Parity:
    """How far one runtime's gradients were from float64 when the artifact was made."""

    worst_relative_error: float
    """Largest over the gradients: L2 distance over L2 norm."""
    worst_tensor: str
    passed: bool


@dataclass(frozen=True)
class Manifest:
    """manifest.json.  Its own SHA-256 names the artifact, for it holds the hash of everything else."""

    spec: StepSpec
    """The model that was traced: for people, and for eager torch.  A runtime needs the signature alone."""
    signature: StepSignature
    bounds: Bounds
    """Examples of one step (a smaller batch is padded, a larger one is split), and the most rows of every table."""
    embedding: tuple[int, ...]
    """What the embed program makes of an example: [d], or [places, d] where that is more than one embedding."""
    runtimes: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    """Of the extractor, in the module's order, the frozen ones too."""
    files: Mapping[str, FileEntry]
    memory: tuple[MemoryFigure, ...]
    parity: Mapping[str, Parity]
    operators: Mapping[str, Mapping[str, int]]
    """Per program file, how often each operator occurs."""
    provenance: Mapping[str, Any]
    """Seed, weights and budget that it was made from, and the versions of the tools that made it."""
    lengths: Lengths | None = None
    """Of texts that have a program each; None where one serves all, as in artifacts that know of no others."""

    def to_json(self) -> str:
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        document["signature"] = self.signature.to_document()
        return json.dumps(document, indent=1) + "\n"


def manifest_from_document(document: dict[str, Any]) -> Manifest:
    fields = Fields(document, "")
    spec = _spec(Fields(fields.raw("spec"), "spec"))
    manifest = Manifest(
        spec=spec,
        signature=StepSignature(tuple(_array_spec(entry) for entry in fields.objects("signature"))),
        bounds=Fields(fields.raw("bounds"), "bounds").counts(least=1),
        # One that was exported before says nothing of it, and makes one embedding of an example.
        embedding=fields.shape("embedding") if "embedding" in document else (spec.embedding_dim,),
        runtimes=fields.texts("runtimes"),
        parameters=tuple(
            Parameter(entry.text("name"), entry.shape("shape"), entry.flag("trainable"))
            for entry in fields.objects("parameters")
        ),
        files={
            _inside(name): FileEntry(entry.count("size"), entry.text("sha256"))
            for name, entry in fields.named("files").items()
        },
        memory=tuple(
            MemoryFigure(
                entry.text("runtime"),
                entry.count("micro_batch"),
                entry.count("width"),
                entry.optional_count("planned_bytes"),
                entry.optional_count("peak_bytes"),
            )
            for entry in fields.objects("memory")
        ),
        parity={
            runtime: Parity(
                entry.real("worst_relative_error"), entry.text("worst_tensor"), entry.flag("passed")
            )
            for runtime, entry in fields.named("parity").items()
        },
        operators={name: histogram.counts() for name, histogram in fields.named("operators").items()},
        provenance=fields.raw("provenance"),
        lengths=_lengths(fields.optional("lengths")),
    )
    if manifest.lengths is not None:
        manifest.lengths.check(manifest.signature)
    symbols = {symbol for array in manifest.signature for symbol in array.symbols}
    if set(manifest.bounds) != symbols:
        raise ValueError(f"bounds are given for {sorted(manifest.bounds)}; expected {sorted(symbols)}")
    if manifest.embedding[-1:] != (spec.embedding_dim,) or len(manifest.embedding) > 2:
        raise ValueError(
            f"embedding is {list(manifest.embedding)}; expected [{spec.embedding_dim}], or a number of places before it"
        )
    for array in manifest.signature:
        check_array(array.name, array.sizes(manifest.bounds))
    check_array("embedding", (manifest.bounds[EXAMPLES], *manifest.embedding))
    for parameter in manifest.parameters:  # the frozen ones are no inputs
        check_array(parameter.name, parameter.shape)
    learning = {parameter.name: parameter.shape for parameter in manifest.parameters if parameter.trainable}
    if learning != manifest.signature.dense_shapes:
        raise ValueError("the trainable parameters are not the dense inputs of the signature")
    return manifest


def _spec(fields: Fields) -> StepSpec:
    fields.expect(*(field.name for field in dataclass_fields(StepSpec)))
    return StepSpec(
        architecture=fields.text("architecture"),
        embedding_dim=fields.count("embedding_dim", 1),
        image_shape=cast(tuple[int, int, int], fields.shape("image_shape")),
        objective=fields.text("objective"),
        logits=cast(LogitKind, fields.text("logits")),
        train=fields.text("train"),
        pixel_mean=fields.reals("pixel_mean"),
        pixel_deviation=fields.reals("pixel_deviation"),
        architecture_arguments=fields.arguments("architecture_arguments"),
        batch_norm=cast(BatchNormPolicy, fields.text("batch_norm")),
        randomness=cast(Randomness, fields.text("randomness")),
    )


def _array_spec(fields: Fields) -> ArraySpec:
    fields.expect(*(field.name for field in dataclass_fields(ArraySpec)))
    return ArraySpec(
        name=fields.text("name"),
        role=cast(Role, fields.text("role")),
        shape=fields.symbolic_shape("shape"),
        dtype=cast(Dtype, fields.text("dtype")),
        padding=fields.real("padding"),
        positions_in=fields.optional_text("positions_in"),
        below=fields.optional_count("below"),
    )


def _lengths(fields: Fields | None) -> Lengths | None:
    if fields is None:
        return None
    fields.expect(*(field.name for field in dataclass_fields(Lengths)))
    return Lengths(fields.texts("features"), fields.shape("sizes"))


def _inside(name: str) -> str:
    """A manifest may come from anywhere: it must not name a file outside its directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"file name {name!r} leads out of the artifact")
    return name
