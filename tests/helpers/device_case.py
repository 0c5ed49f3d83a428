"""One client's files as they lie on a device, around a small artifact: what the tests of the two clients start from."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from ondevice.backends.opening import Runtime
from ondevice.client.client import Client
from ondevice.client.device_files import DevicePlan, write_examples, write_plan, write_seed
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, Artifact, FileEntry, open_artifact, rewrite_manifest
from ondevice.contract.vocabulary import (
    ClientUpdate,
    Columns,
    ExampleSet,
    FloatArray,
    LocalTraining,
    ModelSlice,
    RoundPlan,
    StepSpec,
)
from ondevice.contract.wire import (
    Envelope,
    Expected,
    Precision,
    request_from_bytes,
    slice_to_bytes,
    update_from_bytes,
)

SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))
NUM_CLASSES = 300
SEED = 0xFEED_FACE_CAFE_BEEF
PLAN = RoundPlan(
    round_index=3,
    num_classes=NUM_CLASSES,
    num_negatives=20,
    # A partial last batch, and batches that are not a multiple of the micro-batch of 4.
    local_training=LocalTraining(epochs=2, batch_size=6, learning_rate=0.05, weight_decay=1e-3, momentum=0.9),
)


def export_small(directory: Path, *runtimes: Runtime) -> Artifact:
    return export_artifact(ExportRecipe(SPEC, runtimes, micro_batch=4, max_width=64), directory)


def copy_with_wrong_golden_step(artifact: Artifact, directory: Path) -> Artifact:
    """All hashes are right; the gradient that is expected of the first tensor is not."""
    copy = open_artifact(Path(shutil.copytree(artifact.directory, directory)))
    tensors, _ = safetensors_file.read_file(copy.path(GOLDEN))
    name = f"gradient/{copy.trainable[0]}"
    tensors[name] = np.asarray(tensors[name]) * np.float32(1.001)
    replace_file(copy, GOLDEN, safetensors_file.to_bytes(tensors, {}))
    return open_artifact(directory)


def replace_file(artifact: Artifact, name: str, data: bytes) -> None:
    """A changed file that the manifest agrees with."""
    artifact.path(name).write_bytes(data)
    files = {**artifact.manifest.files, name: FileEntry(len(data), hashlib.sha256(data).hexdigest())}
    rewrite_manifest(artifact.directory, replace(artifact.manifest, files=files))


@dataclass(frozen=True)
class DeviceCase:
    """A folder with data, seed, plan, and the slice that answers the request."""

    folder: Path
    artifact: Artifact
    plan: RoundPlan = PLAN
    precision: Precision = "fp32"
    image_shape: tuple[int, int, int] = SPEC.image_shape
    client_id: int = 17
    client: Client = field(init=False)
    slice_message: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        source = np.random.default_rng(1)
        images = source.integers(0, 256, (10, *self.image_shape), np.uint8)
        examples = ExampleSet(images, source.integers(0, NUM_CLASSES, 10))
        object.__setattr__(self, "client", Client(self.client_id, examples, SEED, self.precision))
        write_examples(self.folder / "data", examples)
        write_seed(self.folder / "seed", SEED)
        write_plan(self.folder / "plan", DevicePlan(self.plan, self.client_id, self.precision))
        class_ids = request_from_bytes(self.client.request(self.plan), self.envelope, NUM_CLASSES)
        weights = self.artifact.initial()
        columns = source.standard_normal((len(class_ids), SPEC.column_dim), np.float32)
        given = ModelSlice(
            {name: weights[name] for name in self.artifact.trainable}, Columns(class_ids, columns)
        )
        object.__setattr__(self, "slice_message", slice_to_bytes(self.envelope, given, self.precision))
        (self.folder / "slice").write_bytes(self.slice_message)

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.plan.round_index, self.client_id)

    def request_options(self, folder: str) -> list[str]:
        names = {"--data": "data", "--seed-file": "seed", "--plan": "plan", "--out": "request"}
        return ["request", *(word for option, name in names.items() for word in (option, f"{folder}/{name}"))]

    def train_options(self, folder: str, artifact: str) -> list[str]:
        names = {
            "--data": "data",
            "--seed-file": "seed",
            "--plan": "plan",
            "--slice": "slice",
            "--out": "update",
        }
        words = [word for option, name in names.items() for word in (option, f"{folder}/{name}")]
        return ["train", *words, "--artifact", artifact]

    def read_update(self, message: bytes) -> ClientUpdate:
        class_ids = request_from_bytes(self.client.request(self.plan), self.envelope, NUM_CLASSES)
        expected = Expected(NUM_CLASSES, SPEC.column_dim, self.artifact.parameter_shapes)
        return update_from_bytes(message, self.envelope, class_ids, expected)


def furthest(found: ClientUpdate, expected: ClientUpdate) -> float:
    """The largest relative L2 distance between two updates' differences."""
    pairs: list[tuple[FloatArray, FloatArray]] = [
        (found.extractor_delta[name], expected.extractor_delta[name]) for name in expected.extractor_delta
    ]
    pairs.append((found.columns_delta.weights, expected.columns_delta.weights))
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
