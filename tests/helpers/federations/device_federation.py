"""A server and its clients around a small artifact, and real devices that something happens to while they train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from android_harness.devices.device import Device, DeviceDescription, RunResult
from android_harness.rounds.device_link import DeviceLink
from android_harness.rounds.training_device import ClientData, TrainingDevice, TrainingKit
from fedss.device_rounds import bundle_for
from helpers.federations.conversation_case import NUM_CLASSES, SPEC, furthest
from helpers.native.arm_programs import CACHE
from ondevice.backends.opening import open_backend
from ondevice.client.client import Client
from ondevice.client.transforms import transformed
from ondevice.contract.artifact import Artifact
from ondevice.contract.choice import Choice
from ondevice.contract.link import Ask, ClientFailure
from ondevice.contract.vocabulary import (
    COLUMNS,
    IMAGES,
    ExampleSet,
    LocalTraining,
    ModelSlice,
    RoundPlan,
    Rows,
)
from ondevice.contract.wire import (
    MAX_MESSAGE_BYTES,
    Envelope,
    Expected,
    request_from_bytes,
    slice_to_bytes,
    update_from_bytes,
    weights_of,
)

PLAN = RoundPlan(
    0,
    {COLUMNS: NUM_CLASSES},
    Choice("uniform_negatives", {"num_negatives": 20}),
    Choice("uniform"),
    local_training=LocalTraining(batch_size=6, learning_rate=0.05),
)
LARGE = 9
"""A client with far more examples than the others: 3 MB."""


class Federation:
    """A server and its clients around a small artifact: what devices answer is compared with the Python client."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._backend = open_backend(artifact, "executorch")
        self._columns = np.random.default_rng(0).standard_normal((NUM_CLASSES, SPEC.column_dim), np.float32)

    @staticmethod
    def client_data(client_id: int) -> ClientData:
        source = np.random.default_rng(client_id)
        count = 12_000 if client_id == LARGE else 8
        images = source.integers(0, 256, (count, *SPEC.image_shape), np.uint8)
        held = source.integers(0, NUM_CLASSES, 5)
        examples = ExampleSet({IMAGES: images}, source.choice(held, count))
        return ClientData(examples, private_seed=1000 + client_id)

    def answer(self, client_id: int, request: bytes, narrow: Sequence[Choice] = ()) -> bytes:
        envelope = Envelope(PLAN.round_index, client_id)
        ids = request_from_bytes(request, envelope, PLAN.table_sizes)[COLUMNS]
        weights = self.artifact.initial()
        dense = {name: weights[name] for name in self.artifact.signature.dense_shapes}
        given = ModelSlice(dense, {COLUMNS: Rows(ids, self._columns[ids])})
        return slice_to_bytes(envelope, given, transformed(weights_of(given), narrow))

    def simulated(self, client_id: int, plan: RoundPlan, ask: Ask) -> bytes:
        """The update of the Python client on the same runtime."""
        data = self.client_data(client_id)
        return Client(client_id, data.examples, data.private_seed, lambda: self._backend).converse(plan, ask)

    def is_right(self, client_id: int, update: bytes, plan: RoundPlan = PLAN) -> bool:
        """Whether a device's update is the one that the Python client would have sent."""
        asked: list[bytes] = []

        def ask(question: bytes) -> bytes:
            asked.append(question)
            return self.answer(client_id, question)

        own = self.simulated(client_id, plan, ask)
        envelope = Envelope(plan.round_index, client_id)
        ids = request_from_bytes(asked[0], envelope, plan.table_sizes)
        signature = self.artifact.signature
        expected = Expected(signature.dense_shapes, plan.table_sizes, signature.table_dims)
        read = partial(update_from_bytes, envelope=envelope, ids=ids, expected=expected)
        return furthest(read(update), read(own)) < 1e-4

    def kit(self, timeout: float = 300.0) -> TrainingKit:
        return TrainingKit(
            self.artifact.directory,
            partial(bundle_for, CACHE, "executorch"),
            self.client_data,
            timeout=timeout,
        )


class Watched:
    """A real device that lets a test act when something is about to happen on it."""

    def __init__(self, device: Device, about_to_run: Callable[[str], None]) -> None:
        self._device = device
        self._about_to_run = about_to_run

    @property
    def name(self) -> str:
        return self._device.name

    def push(self, local: Path, remote: str) -> None:
        self._device.push(local, remote)

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        moments = {"check": "check", "exchange/said-0": "ask", "exchange/said-1": "train"}
        for word in moments.keys() & set(argv):
            self._about_to_run(moments[word])
        return self._device.run(argv, timeout, env, stdin)

    def pull(self, remote: str, local: Path, at_most: int = MAX_MESSAGE_BYTES) -> None:
        self._device.pull(remote, local, at_most)

    def remove(self, remote: str) -> None:
        self._device.remove(remote)

    def describe(self) -> DeviceDescription:
        return self._device.describe()

    def close(self) -> None:
        self._device.close()


class Once:
    """Does something the first time that the client is about to check, ask or train, a moment later: while it runs."""

    def __init__(self, moment: str, act: Callable[[], None], delay: float = 0.0) -> None:
        self._moment, self._act, self._delay = moment, act, delay
        self.done: threading.Timer | None = None

    def __call__(self, moment: str) -> None:
        if moment == self._moment and self.done is None:
            self.done = threading.Timer(self._delay, self._act)
            self.done.start()
            if not self._delay:
                self.done.join()


@contextmanager
def linked(
    *devices: TrainingDevice, retries: int = 1, patience: float = 60.0
) -> Iterator[tuple[DeviceLink, list[str]]]:
    """A link over devices and what it told."""
    told: list[str] = []
    with closing(DeviceLink(devices, retries=retries, patience=patience, tell=told.append)) as link:
        yield link, told


def outcomes(
    link: DeviceLink, federation: Federation, client_ids: Sequence[int], plan: RoundPlan = PLAN
) -> list[str]:
    """In the order of the clients: "right", "wrong", or the reason of a dropped one."""
    found = list(link.exchange(plan, client_ids, federation.answer))
    assert [client_id for client_id, _ in found] == list(client_ids)
    return [
        str(outcome)
        if isinstance(outcome, ClientFailure)
        else ("right" if federation.is_right(client_id, outcome, plan) else "wrong")
        for client_id, outcome in found
    ]
