"""Rounds on real devices: the same updates as anywhere else, and every fault costs its client at most, with a reason."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.federations.conversation_case import export_small
from helpers.federations.device_federation import LARGE, PLAN, Federation, Once, Watched, linked, outcomes
from helpers.federations.nearest_federation import NearestFederation
from helpers.native.arm_programs import CACHE, require_programs

from android_harness.devices.device import Device, DeviceDescription
from android_harness.devices.host import HostDevice
from android_harness.devices.qemu import QEMU_PROGRAMS, QemuDevice
from android_harness.emulator.machine import EMULATOR_PROGRAMS, Emulator, tied_emulator
from android_harness.rounds.device_link import NoDeviceLeft
from android_harness.rounds.training_device import ClientData, TrainingDevice, TrainingKit
from ondevice.contract.choice import Choice
from ondevice.contract.link import ClientFailure
from ondevice.contract.vocabulary import (
    COLUMNS,
)
from ondevice.contract.wire import (
    WireError,
)
from server_sim.schemes.nearest import Nearest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation(export_small(tmp_path_factory.mktemp("rounds") / "artifact", "executorch"))


@pytest.fixture(scope="module")
def phone() -> Iterator[Emulator]:
    require_programs(*EMULATOR_PROGRAMS)
    with tied_emulator(CACHE, f"rounds-{os.getpid()}", memory_mb=160, disk_mb=96) as emulator:
        yield emulator


@pytest.fixture
def phones_shell(phone: Emulator) -> Callable[[str], str]:
    """Runs a command on the phone beside the harness: other apps, and the user."""

    def shell(command: str) -> str:
        done = phone.server.run(["-s", phone.machine.serial, "shell", command], timeout=120.0)
        return done.stdout.decode()

    return shell


def on_phone(
    phone: Emulator, kit: TrainingKit, about_to_run: Callable[[str], None] = lambda _: None
) -> TrainingDevice:
    return TrainingDevice("phone", lambda: Watched(phone.device(), about_to_run), kit)


def on_host(kit: TrainingKit) -> TrainingDevice:
    return TrainingDevice("host", HostDevice, kit)


def test_every_device_sends_the_python_clients_update_and_leaves_nothing_behind(
    federation: Federation, phone: Emulator, phones_shell: Callable[[str], str]
) -> None:
    require_programs(*QEMU_PROGRAMS)
    qemu = TrainingDevice("qemu", lambda: QemuDevice(CACHE), federation.kit())
    devices = (on_phone(phone, federation.kit()), qemu, on_host(federation.kit()))
    with linked(*devices) as (link, _):
        for device in devices:  # else the quickest would have trained everyone before the slowest is ready
            device.make_ready()
        assert outcomes(link, federation, range(7)) == ["right"] * 7
        assert outcomes(link, federation, [6, 2, 4]) == ["right"] * 3  # on data that was pushed a round ago
        assert all(tally.trained for tally in link.tallies())
    assert phones_shell("ls /data/local/tmp") == ""


def test_a_phone_embeds_and_hashes_its_examples_and_trains_the_rows_that_are_found(
    federation: Federation, phone: Emulator
) -> None:
    scheme = Nearest(num_negatives=20, num_random=5, num_bits=3, num_tables=4)
    played, simulated = (
        NearestFederation(federation.artifact, scheme, federation.client_data) for _ in range(2)
    )
    before = played.weights()
    with linked(on_phone(phone, federation.kit())) as (link, _):
        report = played.play(link)
    assert report.mean_width == simulated.play(simulated.simulated()).mean_width
    moved = simulated.weights() - before
    assert np.linalg.norm(played.weights() - before - moved) < 1e-4 * np.linalg.norm(moved)


def test_a_round_in_fewer_bytes_is_byte_for_byte_the_simulated_one(federation: Federation) -> None:
    """Updates in int8, slices in bf16, on the native client for this machine: the same kernels, draws and roundings."""
    plan = replace(PLAN, transforms=(Choice("int8"),))
    narrow = partial(federation.answer, narrow=[Choice("precision", {"format": "bf16"})])
    whole = len(federation.simulated(0, PLAN, partial(federation.answer, 0)))
    with linked(on_host(federation.kit())) as (link, _):
        for client_id, update in link.exchange(plan, range(3), narrow):
            assert update == federation.simulated(client_id, plan, partial(narrow, client_id))
            assert len(update) < 0.4 * whole  # of a small model: ids and names weigh more than in a real one
        remembering = replace(PLAN, transforms=(Choice("top_k", {"fraction": 0.1}),))
        (reason,) = outcomes(link, federation, [0], remembering)
        assert "there is no transform 'top_k' in this client, only precision, clip, int8" in reason


def test_a_clients_data_is_pushed_once(federation: Federation) -> None:
    asked_for: list[int] = []

    def counted(client_id: int) -> ClientData:
        asked_for.append(client_id)
        return federation.client_data(client_id)

    with linked(on_host(replace(federation.kit(), client_data=counted))) as (link, _):
        assert outcomes(link, federation, [0, 1]) == ["right"] * 2
        assert outcomes(link, federation, [1, 0]) == ["right"] * 2
    assert asked_for == [0, 1]


def test_a_client_that_is_killed_for_memory_is_dropped_and_the_next_one_trains(
    federation: Federation, phone: Emulator
) -> None:
    # All ids of a full softmax over 50 million classes are 400 MB; the phone has 160.
    too_much = replace(PLAN, sampler=Choice("all_rows"), table_sizes={COLUMNS: 50_000_000})
    with linked(on_phone(phone, federation.kit())) as (link, _):
        (reason,) = outcomes(link, federation, [0], too_much)
        assert reason.startswith("killed for memory: ")
        assert outcomes(link, federation, [0]) == ["right"]


def test_a_phone_that_loses_power_in_the_middle_of_a_round_goes_on_when_it_is_back(
    federation: Federation, phone: Emulator
) -> None:
    back = threading.Timer(2.0, phone.power_on)

    def lose_power() -> None:
        phone.power_off()
        back.start()

    with linked(on_phone(phone, federation.kit(), Once("train", lose_power))) as (link, told):
        assert outcomes(link, federation, [0, 1, 2]) == ["right"] * 3
    back.join()
    assert any("set aside" in line and "powered off" in line for line in told)
    assert any("client 0 is tried again" in line for line in told)


def test_when_the_phone_is_lost_its_client_is_dropped_and_the_round_goes_on_elsewhere(
    federation: Federation, phone: Emulator
) -> None:
    lost = on_phone(phone, federation.kit(), Once("ask", phone.power_off))
    lost.make_ready()  # before the host has trained everyone
    try:
        with linked(lost, on_host(federation.kit()), retries=0) as (link, _):
            found = outcomes(link, federation, range(6))
            (reason,) = [outcome for outcome in found if outcome != "right"]
            assert reason.startswith("gone: ")
            assert "powered off" in reason
    finally:
        phone.power_on()


def test_when_no_device_is_left_the_round_ends_with_every_reason(
    federation: Federation, phone: Emulator
) -> None:
    losing = on_phone(phone, federation.kit(), Once("train", phone.power_off))
    complaint = r"no device is left to train on: phone is gone: .*powered off"
    try:
        with linked(losing, patience=1.0) as (link, _), pytest.raises(NoDeviceLeft, match=complaint):
            outcomes(link, federation, [0, 1])
    finally:
        phone.power_on()


def test_a_killed_adb_server_costs_no_client(federation: Federation, phone: Emulator) -> None:
    def kill_server() -> None:
        assert phone.server.process is not None
        phone.server.process.kill()
        phone.server.process.wait()

    while_training = Once("train", kill_server, delay=0.05)
    with linked(on_phone(phone, federation.kit(), while_training)) as (link, _):
        assert outcomes(link, federation, [0, 1]) == ["right"] * 2
    assert while_training.done is not None


def test_a_full_disk_drops_the_client_that_needs_the_room_and_only_that_one(
    federation: Federation, phone: Emulator, phones_shell: Callable[[str], str]
) -> None:
    def refuse(client_id: int, request: bytes) -> bytes:
        assert request
        raise WireError(f"no slice for client {client_id}")

    try:
        with linked(on_phone(phone, federation.kit())) as (link, _):
            # Refused, so that its data is on the phone and nobody trains on it.
            ((client_id, refused),) = link.exchange(PLAN, [LARGE], refuse)
            assert isinstance(refused, ClientFailure)
            assert (client_id, str(refused)) == (LARGE, f"bad message: no slice for client {LARGE}")
            phones_shell("cd /data/local/tmp && dd if=/dev/zero of=photos bs=4096")
            # What was kept for a round that may come makes room for a client that is here now.
            assert outcomes(link, federation, [0]) == ["right"]
            phones_shell("cd /data/local/tmp && dd if=/dev/zero of=more_photos bs=4096 count=256")
            reason, other = outcomes(link, federation, [LARGE, 0])
            assert reason.startswith("disk full: ")
            assert other == "right"
    finally:
        phones_shell("rm -f /data/local/tmp/*photos")


def test_an_artifact_that_changed_on_the_device_is_never_trained_with(
    federation: Federation, tmp_path: Path
) -> None:
    require_programs(*QEMU_PROGRAMS)
    opened: list[QemuDevice] = []

    def open_qemu() -> Device:
        opened.append(QemuDevice(CACHE))
        return opened[0]

    changed = bytearray((federation.artifact.directory / "step.pte").read_bytes())
    changed[len(changed) // 2] ^= 1
    (tmp_path / "step.pte").write_bytes(changed)
    with linked(TrainingDevice("qemu", open_qemu, federation.kit()), retries=0) as (link, _):
        assert outcomes(link, federation, [0]) == ["right"]
        opened[0].push(tmp_path / "step.pte", "artifact/step.pte")
        (reason,) = outcomes(link, federation, [1])
        assert reason.startswith("corrupt: ")
        assert "step.pte" in reason
        assert outcomes(link, federation, [1]) == ["right"]  # everything was pushed again


def test_a_client_that_takes_too_long_is_dropped(federation: Federation) -> None:
    require_programs(*QEMU_PROGRAMS)
    endless = replace(PLAN, local_training=replace(PLAN.local_training, epochs=10**6, learning_rate=0.0))
    qemu = TrainingDevice("qemu", lambda: QemuDevice(CACHE), federation.kit(timeout=15.0))
    with linked(qemu) as (link, _):
        (reason,) = outcomes(link, federation, [0], endless)
        assert reason.startswith("timed out: ")
        assert "killed after 15 s" in reason
        assert outcomes(link, federation, [0]) == ["right"]


class UnknownProcessor(HostDevice):
    """This machine, saying that it is something else."""

    def describe(self) -> DeviceDescription:
        return replace(super().describe(), abi="riscv64")


def test_a_device_without_a_bundle_for_its_abi_is_left_out(federation: Federation) -> None:
    strange = TrainingDevice("strange", UnknownProcessor, federation.kit())
    with linked(strange, on_host(federation.kit())) as (link, told):
        assert outcomes(link, federation, [0, 1]) == ["right"] * 2
        assert any("strange is set aside for this run" in line and "riscv64" in line for line in told)
    with (
        linked(TrainingDevice("strange", UnknownProcessor, federation.kit())) as (link, _),
        pytest.raises(NoDeviceLeft, match="no executorch client for ABI 'riscv64'; there are bundles for"),
    ):
        outcomes(link, federation, [0])


def test_a_round_that_is_given_up_leaves_no_thread_and_no_program_at_work(federation: Federation) -> None:
    device = on_host(federation.kit())
    with linked(device) as (link, _):
        exchange = link.exchange(PLAN, range(4), federation.answer)
        next(exchange)
        exchange.close()
        for thread in threading.enumerate():
            if thread.name.startswith("device "):
                thread.join(timeout=10.0)  # it has said its last word, and may not have ended yet
                assert not thread.is_alive()
        assert outcomes(link, federation, [0]) == ["right"]
    assert not subprocess.run(["pgrep", "-P", str(os.getpid()), "fedss-client"], capture_output=True).stdout
