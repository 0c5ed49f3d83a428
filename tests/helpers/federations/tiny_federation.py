"""A tiny federation that fits on a screen: 20 classes, a few clients, 8 x 8 images, a three-convolution extractor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.contract.choice import Choice
from ondevice.contract.link import Conversing
from ondevice.contract.vocabulary import (
    COLUMNS,
    IMAGES,
    ExampleSet,
    FloatArray,
    LocalTraining,
    RoundPlan,
    StepSpec,
)
from server_sim.engines.in_process import InProcessLink
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg, ServerOptimizer
from server_sim.server.state import ServerState


class TinyFederation:
    """Everything a round needs, made from a seed."""

    num_classes = 20
    spec = StepSpec("three_convolutions", embedding_dim=16, image_shape=(1, 8, 8))

    def __init__(self, seed: int = 0, optimizer: ServerOptimizer | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.initial = initial_parameters(self.spec, seed)
        self.backend = EagerBackend(self.spec, self.initial)
        self.clients = [self.examples(11) for _ in range(4)]
        self.state = ServerState.fresh(
            optimizer or FedAvg(),
            {name: value.copy() for name, value in self.initial.items()},
            {COLUMNS: self.columns()},
        )

    @property
    def weights(self) -> FloatArray:
        """The classifier's rows as they are stored."""
        return cast(FloatArray, self.state.tables[COLUMNS].store.arrays()["weights"])

    def columns(self) -> FloatArray:
        return self.rng.standard_normal((self.num_classes, self.spec.column_dim), np.float32)

    def examples(self, count: int, classes: Sequence[int] | None = None) -> ExampleSet:
        held = self.rng.choice(self.num_classes, 5, replace=False) if classes is None else np.asarray(classes)
        images = self.rng.integers(0, 256, (count, *self.spec.image_shape), np.uint8)
        return ExampleSet({IMAGES: images}, self.rng.choice(held, count).astype(np.int64))

    def client(self, client_id: int) -> Client:
        return Client(client_id, self.clients[client_id], 100 + client_id, lambda: self.backend)

    def link(self) -> InProcessLink:
        return InProcessLink(self.client)

    def aggregator(self) -> Aggregator:
        shapes = {COLUMNS: (self.num_classes, self.spec.column_dim)}
        return Aggregator(self.backend.signature.dense_shapes, shapes, "selected")


def tiny_plan(
    round_index: int = 0,
    num_negatives: int = 3,
    training: LocalTraining = LocalTraining(),  # noqa: B008 - frozen
    transforms: tuple[Choice, ...] = (),
    num_classes: int = TinyFederation.num_classes,
) -> RoundPlan:
    """FedSS over the tiny federation's classes."""
    sampler = Choice("uniform_negatives", {"num_negatives": num_negatives})
    return RoundPlan(
        round_index, {COLUMNS: num_classes}, sampler, Choice("uniform"), transforms, local_training=training
    )


class _Asked(Exception):
    """Carries a question out of a conversation."""


def first_question(client: Conversing, plan: RoundPlan) -> bytes:
    """What a client asks first; it is not answered."""

    def ask(question: bytes) -> bytes:
        raise _Asked(question)

    try:
        client.converse(plan, ask)
    except _Asked as asked:
        question: bytes = asked.args[0]
        return question
    raise AssertionError("the client ended its round without a question")


def state_bytes(federation: TinyFederation) -> list[bytes]:
    """Everything that a round can change, bit by bit."""
    state = federation.state
    moments = [moment.flat for moment in state.dense_moments]
    rows = [array for table in state.tables.values() for array in table.store.arrays().values()]
    return [array.tobytes() for array in (*state.dense.values(), *moments, *rows)]
