"""One client's files as they lie on a device, around a small artifact, and the conversation that Python's client would hold.

What the tests of the clients on devices start from: both take the verb `converse` with these options.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from helpers.federations.tiny_federation import first_question
from ondevice.backends.opening import Runtime, open_backend
from ondevice.client.client import Client
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, Artifact, open_artifact, rewrite_manifest
from ondevice.contract.artifacts.manifest import FileEntry
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import (
    COLUMNS,
    ClientUpdate,
    ExampleSet,
    LocalTraining,
    ModelSlice,
    RoundPlan,
    Rows,
    StepSpec,
)
from ondevice.contract.wire import (
    Envelope,
    Expected,
    plan_to_bytes,
    request_from_bytes,
    slice_to_bytes,
    update_from_bytes,
)

SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))
NUM_CLASSES = 300
SEED = 0xFEED_FACE_CAFE_BEEF
PLAN = RoundPlan(
    round_index=3,
    table_sizes={COLUMNS: NUM_CLASSES},
    sampler=Choice("uniform_negatives", {"num_negatives": 20}),
    weighting=Choice("uniform"),
    # A partial last batch, and batches that are not a multiple of the micro-batch of 4.
    local_training=LocalTraining(epochs=2, batch_size=6, learning_rate=0.05, weight_decay=1e-3, momentum=0.9),
)


def export_small(directory: Path, *runtimes: Runtime, spec: StepSpec = SPEC) -> Artifact:
    return export_artifact(ExportRecipe(spec, runtimes, micro_batch=4, max_width=64), directory)


def copy_with_wrong_golden_step(artifact: Artifact, directory: Path) -> Artifact:
    """All hashes are right; the gradient that is expected of the first tensor is not."""
    copy = open_artifact(Path(shutil.copytree(artifact.directory, directory)))
    tensors, _ = safetensors_file.read_file(copy.path(GOLDEN))
    name = f"output/{gradient_of(copy.signature.trained[0])}"
    tensors[name] = np.asarray(tensors[name]) * np.float32(1.001)
    replace_file(copy, GOLDEN, safetensors_file.to_bytes(tensors, {}))
    return open_artifact(directory)


def replace_file(artifact: Artifact, name: str, data: bytes) -> None:
    """A changed file that the manifest agrees with."""
    artifact.path(name).write_bytes(data)
    files = {**artifact.manifest.files, name: FileEntry(len(data), hashlib.sha256(data).hexdigest())}
    rewrite_manifest(artifact.directory, replace(artifact.manifest, files=files))


@dataclass(frozen=True)
class ConversationCase:
    """A folder with data, seed and plan, and the slice that answers the request as `answers/0`."""

    folder: Path
    artifact: Artifact
    plan: RoundPlan = PLAN
    image_shape: tuple[int, int, int] = SPEC.image_shape
    client_id: int = 17
    given: ExampleSet | None = None
    """Examples instead of images of that shape."""
    examples: ExampleSet = field(init=False)
    request: bytes = field(init=False)
    slice_message: bytes = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "answers").mkdir(parents=True, exist_ok=True)
        source = np.random.default_rng(1)
        examples = self.given
        if examples is None:
            images = source.integers(0, 256, (10, *self.image_shape), np.uint8)
            examples = ExampleSet({"images": images}, source.integers(0, NUM_CLASSES, 10))
        object.__setattr__(self, "examples", examples)
        features = {f"feature/{name}": feature for name, feature in examples.features.items()}
        safetensors_file.write_file(self.folder / "data", {"labels": examples.labels, **features}, {})
        (self.folder / "seed").write_text(f"{SEED}\n")
        (self.folder / "plan").write_bytes(plan_to_bytes(self.envelope, self.plan))
        object.__setattr__(self, "request", self._request())
        ids = request_from_bytes(self.request, self.envelope, self.plan.table_sizes)
        weights = self.artifact.initial()
        tables = {
            table: Rows(ids[table], source.standard_normal((len(ids[table]), dim), np.float32))
            for table, dim in self.artifact.signature.table_dims.items()
        }
        given = ModelSlice(
            {name: weights[name] for name in self.artifact.signature.dense_shapes},
            tables,
            {name: source.random(len(ids[table]), np.float32) for name, table in self.plan.sides.items()},
        )
        object.__setattr__(self, "slice_message", slice_to_bytes(self.envelope, given))
        (self.folder / "answers/0").write_bytes(self.slice_message)

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.plan.round_index, self.client_id)

    def options(self, folder: str, artifact: str, answers: str = "answers", out: str = "update") -> list[str]:
        names = {
            "--data": "data",
            "--seed-file": "seed",
            "--plan": "plan",
            "--answers": answers,
            "--out": out,
        }
        words = [word for option, name in names.items() for word in (option, f"{folder}/{name}")]
        return ["converse", *words, "--artifact", artifact]

    def python_update(self, runtime: str) -> ClientUpdate:
        """What Python's client answers on the same runtime."""
        client = Client(self.client_id, self.examples, SEED, lambda: open_backend(self.artifact, runtime))
        return self.read_update(client.converse(self.plan, lambda _: self.slice_message))

    def read_update(self, message: bytes) -> ClientUpdate:
        ids = request_from_bytes(self.request, self.envelope, self.plan.table_sizes)
        signature = self.artifact.signature
        expected = Expected(signature.dense_shapes, self.plan.table_sizes, signature.table_dims)
        return update_from_bytes(message, self.envelope, ids, expected)

    def _request(self) -> bytes:
        client = Client(self.client_id, self.examples, SEED, lambda: open_backend(self.artifact, "eager"))
        return first_question(client, self.plan)


def furthest(found: ClientUpdate, expected: ClientUpdate) -> float:
    """The largest relative L2 distance between two updates' differences."""
    pairs = [(found.dense[name], expected.dense[name]) for name in expected.dense]
    pairs += [(found.tables[table].values, rows.values) for table, rows in expected.tables.items()]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
