"""The artifact directory: one exported training step with everything a device needs to run it and to check itself.

    manifest.json         what is in it (`contract.artifacts.manifest`): signature, bounds, sizes and hashes, memory, parity
    step.pte embed.pte    ExecuTorch;  step.onnx embed.onnx  ONNX Runtime;  ort_training/*  ONNX Runtime training
    initial.safetensors   every tensor of the extractor by name, the frozen ones too
    golden.safetensors    one step: inputs, expected loss and gradients (`ondevice.contract.golden_step`)
    length-8/*            programs for texts of at most 8 places, and a golden step of such (`contract.artifacts.lengths`)

`open_artifact` checks the version, the sizes and the hashes before anything else opens a file, so that a torn copy or a
changed byte is one clear error and never a wrong gradient.  Nothing here imports torch: a device reads artifacts too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.artifacts.golden_bounds import check_golden_step
from ondevice.contract.artifacts.lengths import folder_of
from ondevice.contract.artifacts.manifest import FORMAT, VERSION, FileEntry, Manifest, manifest_from_document
from ondevice.contract.golden_step import GoldenStep, golden_from_tensors
from ondevice.contract.step_signature import EXAMPLES, Bounds, StepSignature, rows_of
from ondevice.contract.vocabulary import FloatArray, StepSpec

MANIFEST = "manifest.json"
INITIAL = "initial.safetensors"
GOLDEN = "golden.safetensors"
MEGABYTE = 1 << 20
"""What a phone's memory is counted in, here and wherever a figure says MB."""


class ArtifactError(ValueError):
    """An artifact, or the weights for one, cannot be used: missing, changed, too new, or of another shape."""


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files were checked."""

    directory: Path
    manifest: Manifest
    sha256: str

    @property
    def spec(self) -> StepSpec:
        return self.manifest.spec

    @property
    def signature(self) -> StepSignature:
        return self.manifest.signature

    @property
    def bounds(self) -> Bounds:
        return self.manifest.bounds

    @property
    def embedding(self) -> tuple[int, ...]:
        return self.manifest.embedding

    @property
    def micro_batch(self) -> int:
        """The most examples of one step."""
        return self.bounds[EXAMPLES]

    @property
    def max_width(self) -> int:
        """The most rows that a step takes of every table."""
        return min((self.bounds[rows_of(table)] for table in self.signature.table_dims), default=0)

    def path(self, name: str) -> Path:
        """Where a file of the artifact lies."""
        if name not in self.manifest.files:
            made_for = ", ".join(self.manifest.runtimes)
            raise ArtifactError(
                f"{self.directory} has no {name}: it was exported for {made_for}; export again with the runtime you need"
            )
        return self.directory / name

    def initial(self) -> dict[str, FloatArray]:
        """The weights it was exported with, every tensor of the extractor, in the module's order."""
        tensors = _read_tensors(self.path(INITIAL))
        expected = {parameter.name: parameter.shape for parameter in self.manifest.parameters}
        check_tensors(tensors, expected, f"{self.directory / INITIAL}")
        return {name: tensors[name] for name in expected}

    def of_length(self, size: int) -> Artifact:
        """As if there were no texts but those of that length: its programs under their plain names."""
        lengths = self.manifest.lengths
        assert lengths is not None
        prefix = "" if size == lengths.longest else f"{folder_of(size)}/"
        files = {
            name.removeprefix(prefix): entry
            for name, entry in self.manifest.files.items()
            if name.startswith(prefix)
        }
        signature = lengths.shortened(self.signature, size)
        # Where every place has an embedding, there are fewer of these too.
        embedding = (size, *self.embedding[1:]) if len(self.embedding) == 2 else self.embedding
        manifest = replace(self.manifest, signature=signature, embedding=embedding, files=files, lengths=None)
        return Artifact(self.directory / prefix, manifest, self.sha256)

    def golden_steps(self) -> list[GoldenStep]:
        """What every runtime must reproduce: a step, and one of every shorter length."""
        lengths = self.manifest.lengths
        shorter = () if lengths is None else lengths.shorter
        return [self.golden(), *(self.golden(f"{folder_of(size)}/{GOLDEN}") for size in shorter)]

    def golden(self, name: str = GOLDEN) -> GoldenStep:
        """One step with its expected outputs."""
        path = self.path(name)
        try:
            golden = golden_from_tensors(_read_tensors(path), self.signature)
            check_golden_step(golden, self.signature, self.bounds)
        except KeyError as missing:
            raise ArtifactError(f"{path} has no tensor {missing}; export it again") from missing
        except (ValueError, TypeError, IndexError) as error:
            raise ArtifactError(
                f"{path} holds no golden step of this artifact ({error}); export it again"
            ) from error
        return golden


def open_artifact(directory: Path) -> Artifact:
    """Read the manifest and check every file against it."""
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"{directory} is not an artifact: no {MANIFEST} in it; make one with `fedss export`"
        ) from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error}); copy the artifact again") from error
    manifest = _manifest_from_json(text, path)
    for name, entry in manifest.files.items():
        _check_file(directory, name, entry)
    return Artifact(directory, manifest, hashlib.sha256(text).hexdigest())


def write_artifact(directory: Path, manifest: Manifest, files: Mapping[str, bytes]) -> Artifact:
    """Fill an empty directory.  `manifest.files` is made here, from the bytes; the manifest is written last."""
    entries = {name: FileEntry(len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return rewrite_manifest(directory, replace(manifest, files=entries))


def rewrite_manifest(directory: Path, manifest: Manifest) -> Artifact:
    """Put a manifest beside files that it already describes."""
    text = manifest.to_json().encode()
    temporary = directory / f"{MANIFEST}.partial"
    temporary.write_bytes(text)
    temporary.replace(directory / MANIFEST)
    return Artifact(directory, manifest, hashlib.sha256(text).hexdigest())


def check_tensors(
    given: Mapping[str, FloatArray], expected: Mapping[str, tuple[int, ...]], what: str
) -> None:
    """Same names, same shapes, float32, finite; the message names the first tensor that is not."""
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    if missing or unknown:
        raise ArtifactError(
            f"{what}: {_listing('lacks', missing)}{_listing('has the unknown', unknown)}of {len(expected)} expected"
        )
    for name, shape in expected.items():
        if given[name].shape != shape or given[name].dtype != np.float32:
            found = f"{given[name].dtype}{list(given[name].shape)}"
            raise ArtifactError(f"{what}: {name} is {found}; expected float32{list(shape)}")
        if not np.isfinite(given[name]).all():
            raise ArtifactError(f"{what}: {name} holds values that are not finite; expected trained weights")


def _listing(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{verb} {', '.join(names[:3])}{more}; "


def _check_file(directory: Path, name: str, entry: FileEntry) -> None:
    """Size first: it is free, and tells a torn copy from a changed one."""
    again = "copy the artifact again, or export it again"
    path = directory / name
    if not path.is_file():
        raise ArtifactError(f"{path} is missing, though {MANIFEST} lists it; {again}")
    size = path.stat().st_size
    if size != entry.size:
        raise ArtifactError(f"{path} has {size} bytes; {MANIFEST} says {entry.size}; {again}")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != entry.sha256:
        raise ArtifactError(
            f"{path} was changed: its SHA-256 is {digest}; {MANIFEST} says {entry.sha256}; {again}"
        )


def _read_tensors(path: Path) -> dict[str, Any]:
    try:
        tensors, _ = safetensors_file.from_bytes(path.read_bytes())
    except safetensors_file.SafetensorsError as error:
        raise ArtifactError(f"{path} is not a safetensors file ({error}); export it again") from error
    return {name: np.array(tensor) for name, tensor in tensors.items()}  # writable copies, aligned


def _manifest_from_json(text: bytes, path: Path) -> Manifest:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON ({error}); export it again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ArtifactError(f"{path} does not describe a {FORMAT}; make one with `fedss export`")
    if document.get("version") != VERSION:
        raise ArtifactError(
            f"{path} has format version {str(document.get('version'))[:20]}; this program reads version {VERSION}: "
            "update it, or export the artifact again"
        )
    try:
        return manifest_from_document(document)
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}; export it again") from error
