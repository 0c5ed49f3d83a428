"""One client's files as they lie on a device, around a small artifact: what the tests of the two clients start from."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from ondevice.backends import Backend
from ondevice.backends.opening import Runtime
from ondevice.client.client import Client
from ondevice.client.device_files import write_examples, write_plan, write_seed
from ondevice.client.transforms import transformed
from ondevice.contract import safetensors_file, wire
from ondevice.contract.artifact import GOLDEN, Artifact, FileEntry, open_artifact, rewrite_manifest
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import (
    COLUMNS,
    IMAGES,
    ClientUpdate,
    ExampleSet,
    FloatArray,
    IntArray,
    LocalTraining,
    ModelSlice,
    RoundPlan,
    Rows,
    StepSpec,
)
from ondevice.contract.wire import Envelope, Expected

SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))
NUM_CLASSES = 300
SEED = 0xFEED_FACE_CAFE_BEEF


def plan_of(num_negatives: int, round_index: int = 0, training: LocalTraining | None = None) -> RoundPlan:
    """FedSS over the classes of these tests."""
    return RoundPlan(
        round_index,
        {COLUMNS: NUM_CLASSES},
        Choice("uniform_negatives", {"num_negatives": num_negatives}),
        Choice("uniform"),
        local_training=training or LocalTraining(),
    )


PLAN = plan_of(
    20,
    round_index=3,
    # A partial last batch, and batches that are not a multiple of the micro-batch of 4.
    training=LocalTraining(epochs=2, batch_size=6, learning_rate=0.05, weight_decay=1e-3, momentum=0.9),
)


def export_small(directory: Path, *runtimes: Runtime) -> Artifact:
    return export_artifact(ExportRecipe(SPEC, runtimes, micro_batch=4, max_width=64), directory)


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


class _FirstQuestion(Exception):
    """Ends a conversation where the server has to speak."""


def _no_backend() -> NoReturn:
    raise AssertionError("a client that only asks opens no backend")


def first_question(client_id: int, examples: ExampleSet, private_seed: int, plan: RoundPlan) -> bytes:
    """What the Python client asks first."""
    asked: list[bytes] = []

    def ask(question: bytes) -> bytes:
        asked.append(question)
        raise _FirstQuestion

    try:
        Client(client_id, examples, private_seed, _no_backend).converse(plan, ask)
    except _FirstQuestion:
        return asked[0]
    raise AssertionError("a client trained without a question")


def expected_update(artifact: Artifact) -> Expected:
    """What an update to this artifact's model must look like."""
    signature = artifact.signature
    return Expected(signature.dense_shapes, {COLUMNS: NUM_CLASSES}, signature.table_dims)


@dataclass(frozen=True)
class DeviceCase:
    """A folder with data, seed, plan, and the slice that answers the client's question."""

    folder: Path
    artifact: Artifact
    plan: RoundPlan = PLAN
    image_shape: tuple[int, int, int] = SPEC.image_shape
    client_id: int = 17
    examples: ExampleSet = field(init=False)
    question: bytes = field(init=False)
    answer: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        source = np.random.default_rng(1)
        images = source.integers(0, 256, (10, *self.image_shape), np.uint8)
        examples = ExampleSet({IMAGES: images}, source.integers(0, NUM_CLASSES, 10))
        object.__setattr__(self, "examples", examples)
        write_examples(self.folder / "data", examples)
        write_seed(self.folder / "seed", SEED)
        write_plan(self.folder / "plan", self.plan, self.client_id)
        object.__setattr__(self, "question", first_question(self.client_id, examples, SEED, self.plan))
        object.__setattr__(self, "answer", self._answer(source))
        (self.folder / "answers").mkdir(exist_ok=True)
        (self.folder / "answers/0").write_bytes(self.answer)

    def _answer(self, source: np.random.Generator) -> bytes:
        """A slice of the artifact's own weights and random columns, as narrow as the update will be."""
        weights, ids = self.artifact.initial(), self.ids
        given = ModelSlice(
            {name: weights[name] for name in self.artifact.signature.dense_shapes},
            {
                COLUMNS: Rows(
                    ids[COLUMNS], source.standard_normal((len(ids[COLUMNS]), SPEC.column_dim), np.float32)
                )
            },
        )
        precision = [choice for choice in self.plan.transforms if choice.name == "precision"]
        narrow = transformed(wire.weights_of(given), precision)
        return wire.slice_to_bytes(self.envelope, given, narrow)

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.plan.round_index, self.client_id)

    @property
    def ids(self) -> dict[str, IntArray]:
        """The rows that the client asks for."""
        return wire.request_from_bytes(self.question, self.envelope, self.plan.table_sizes)

    def ask_options(self, folder: str, artifact: str) -> list[str]:
        """A conversation in which nothing is answered yet: the question goes to the file `question`."""
        return self._converse(folder, artifact, answers="no answers yet", out="question")

    def train_options(self, folder: str, artifact: str) -> list[str]:
        """A conversation to its end: the update goes to the file `update`."""
        return self._converse(folder, artifact, answers="answers", out="update")

    def _converse(self, folder: str, artifact: str, answers: str, out: str) -> list[str]:
        names = {
            "--data": "data",
            "--seed-file": "seed",
            "--plan": "plan",
            "--answers": answers,
            "--out": out,
        }
        words = [word for option, name in names.items() for word in (option, f"{folder}/{name}")]
        return ["converse", *words, "--artifact", artifact]

    def update(self, backend: Backend) -> bytes:
        """What the Python client sends at the end of the same conversation."""
        client = Client(self.client_id, self.examples, SEED, lambda: backend)
        return client.converse(self.plan, lambda _: self.answer)

    def read_update(self, message: bytes) -> ClientUpdate:
        return wire.update_from_bytes(message, self.envelope, self.ids, expected_update(self.artifact))


def furthest(found: ClientUpdate, expected: ClientUpdate) -> float:
    """The largest relative L2 distance between two updates' differences."""
    pairs: list[tuple[FloatArray, FloatArray]] = [
        (found.dense[name], expected.dense[name]) for name in expected.dense
    ]
    pairs += [(found.tables[table].values, rows.values) for table, rows in expected.tables.items()]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
