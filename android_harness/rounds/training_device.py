"""A device made ready to train clients: what lies on it, and one client's conversation there.

In the device's folder:

    bundle/          the client program with its loader and libraries
    artifact/        the exported step
    clients/ID/      a client's examples and its private seed: pushed once, never sent back
    exchange/        the conversation under way: the plan, the client's messages `said-0`, `said-1`, ..., and the server's
                     answers to them, `answers/0`, `answers/1`, ...

Everything but `exchange/` outlives a round, and is trusted only as long as nothing has gone wrong: after a lost link or a
damaged file it is all pushed again, and every push is compared by hash.  The client itself checks the artifact's hashes
before every training.

A conversation is a loop: the client is started, comes to a question that is not answered yet, says so and ends; the server's
answer is put beside the others, and the client, started again, repeats the conversation and goes on from there.  Everything
random is drawn from its seed, so a conversation that was cut off can be held again as well.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from android_harness.bundles.bundle import Bundle
from android_harness.devices.device import Device, DeviceDescription, DeviceError, FailureReason
from android_harness.devices.guarded_device import GuardedDevice
from android_harness.rounds.installed_client import ARTIFACT, InstalledClient
from ondevice.client.device_files import write_examples, write_plan, write_seed
from ondevice.contract.link import Ask
from ondevice.contract.vocabulary import ExampleSet, RoundPlan

CLIENTS, EXCHANGE = "clients", "exchange"
DATA, SEED, PLAN, ANSWERS, SAID = "data.safetensors", "seed", "plan", "answers", "said"

MOST_QUESTIONS = 32
"""Of one conversation: a client that goes on asking must not hold its device, and the round, for ever."""

_IN_DOUBT = (FailureReason.GONE, FailureReason.CORRUPT, FailureReason.MISSING)
"""After these nobody knows what is still on the device."""


@dataclass(frozen=True)
class ClientData:
    """What a client has from the start, and what only its device may have."""

    examples: ExampleSet
    private_seed: int = field(repr=False)


@dataclass(frozen=True)
class TrainingKit:
    """What every device of a run is given."""

    artifact: Path
    bundle_for: Callable[[str], Bundle]
    """By the ABI that the device tells; `DeviceError` where there is none."""
    client_data: Callable[[int], ClientData]
    timeout: float = 600.0
    """Seconds that one program may run on a device."""


class TrainingDevice:
    """One device and what is known to be on it.  Used by one thread at a time."""

    def __init__(self, name: str, open_device: Callable[[], Device], kit: TrainingKit) -> None:
        self.name = name
        self.description: DeviceDescription | None = None
        self._open_device = open_device
        self._kit = kit
        self._opened: list[
            GuardedDevice
        ] = []  # the last is in use; the others were lost, and are tidied up at the end
        self._client: InstalledClient | None = None
        self._holds: set[int] = set()
        self._in_doubt = True

    @property
    def is_ready(self) -> bool:
        return not self._in_doubt

    def holds(self, client_id: int) -> bool:
        """Whether the client's data is there already."""
        return client_id in self._holds

    def make_ready(self) -> None:
        """Opens the device, again if it had gone, pushes program and artifact, and has them check the golden step."""
        self._holds.clear()
        device, self.description = self._reach()
        bundle = self._kit.bundle_for(self.description.abi)
        device.remove(CLIENTS)
        self._client = InstalledClient(device, bundle, self._kit.artifact, self._kit.timeout)
        self._client.run("check", {"--artifact": ARTIFACT})
        self._in_doubt = False

    def converse(self, plan: RoundPlan, client_id: int, ask: Ask) -> bytes:
        """One client's round: its update, or `DeviceError`.  What `ask` raises passes through."""
        try:
            try:
                return self._converse(plan, client_id, ask)
            except DeviceError as error:
                if error.reason is not FailureReason.DISK_FULL or not self._holds - {client_id}:
                    raise
                # Other clients' data may wait here for a round of theirs, but not at this one's expense.
                self._device.remove(CLIENTS)
                self._holds.clear()
                return self._converse(plan, client_id, ask)
        except DeviceError as error:
            self._in_doubt = error.reason in _IN_DOUBT
            raise

    def close(self) -> None:
        """Deletes what was put on the device, as far as it can be reached."""
        for device in self._opened:
            with suppress(DeviceError):
                device.close()
        self._opened.clear()
        self._in_doubt = True

    @property
    def _device(self) -> GuardedDevice:
        return self._opened[-1]

    def _reach(self) -> tuple[GuardedDevice, DeviceDescription]:
        """The device we had, or if that does not answer, one opened anew: an emulator may have been started again."""
        if self._opened:
            with suppress(DeviceError):
                return self._device, self._device.describe()
        self._opened.append(GuardedDevice(self._open_device()))
        try:
            return self._device, self._device.describe()
        except DeviceError:
            if len(self._opened) > 1:  # nothing was put there; the one before may still come back
                with suppress(DeviceError):
                    self._opened.pop().close()
            raise

    def _converse(self, plan: RoundPlan, client_id: int, ask: Ask) -> bytes:
        device, client = self._device, self._client
        assert client is not None  # made ready before any conversation
        device.remove(EXCHANGE)  # what a conversation that failed has left
        own = f"{CLIENTS}/{client_id}"
        options = {
            "--data": f"{own}/{DATA}",
            "--seed-file": f"{own}/{SEED}",
            "--plan": f"{EXCHANGE}/{PLAN}",
            "--artifact": ARTIFACT,
            "--answers": f"{EXCHANGE}/{ANSWERS}",
        }
        with tempfile.TemporaryDirectory(prefix="fedss-exchange-") as scratch:
            here = Path(scratch)
            if client_id not in self._holds:
                self._push_data(client_id, here / "client")
            write_plan(here / PLAN, plan, client_id)
            device.push(here / PLAN, f"{EXCHANGE}/{PLAN}")
            for number in range(MOST_QUESTIONS + 1):
                said = f"{EXCHANGE}/{SAID}-{number}"
                is_done = is_update(client.run("converse", {**options, "--out": said}).stdout)
                message = device.pull_message(said, here / f"{SAID}-{number}")
                if is_done:
                    return message
                if number < MOST_QUESTIONS:
                    answer = here / f"answer-{number}"
                    answer.write_bytes(ask(message))
                    device.push(answer, f"{EXCHANGE}/{ANSWERS}/{number}")
        raise DeviceError(
            FailureReason.FAILED,
            f"{self.name}: client {client_id} has asked {MOST_QUESTIONS} times and asks again; expected its update",
        )

    def _push_data(self, client_id: int, folder: Path) -> None:
        data = self._kit.client_data(client_id)
        folder.mkdir()
        write_examples(folder / DATA, data.examples)
        write_seed(folder / SEED, data.private_seed)
        self._device.push(folder, f"{CLIENTS}/{client_id}")
        self._holds.add(client_id)


def is_update(printed: str) -> bool:
    """Whether the client has trained, by the line it printed last; False if it asks, `DeviceError` if it says neither."""
    with suppress(ValueError, IndexError, TypeError, KeyError, RecursionError):
        event = json.loads(printed.splitlines()[-1])["event"]
        if event in ("asks", "trained"):
            return bool(event == "trained")
    raise DeviceError(
        FailureReason.FAILED,
        f"converse printed something that is not understood; expected the event asks or trained: {printed[-300:]!r}",
    )
