"""Emulated phones come and go: standing ones outlive their starter, tied ones never do, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers.native.arm_programs import CACHE, require_programs

from android_harness.devices.adb_server import AdbServer
from android_harness.devices.device import DeviceError, FailureReason
from android_harness.devices.listing import list_devices, open_device
from android_harness.emulator.machine import (
    EMULATOR_PROGRAMS,
    attach_emulator,
    start_emulator,
    stop_emulator,
    tied_emulator,
)
from android_harness.emulator.register import Machine, emulator_status
from android_harness.processes.process_identity import ProcessIdentity
from android_harness.processes.tied_process import start_tied

pytestmark = pytest.mark.slow  # real machines, booted and killed


@pytest.fixture(autouse=True)
def _programs() -> None:
    require_programs(*EMULATOR_PROGRAMS)


@pytest.fixture
def parent() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a Python process to be killed; whatever happens in the test, it does not outlive it."""
    processes = []

    def start(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=CACHE.parent, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def machine_called(name: str) -> Machine | None:
    return next((machine for machine in emulator_status(CACHE) if machine.name == name), None)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_machine_and_no_server_outlive_the_process_they_are_tied_to(
    parent: Callable[[str], subprocess.Popen[str]], ending: signal.Signals
) -> None:
    name = f"tied-test-{os.getpid()}-{ending.value}"
    process = parent(f"""
from pathlib import Path
from time import sleep
from android_harness.emulator.machine import tied_emulator
with tied_emulator(Path({str(CACHE)!r}), {name!r}, memory_mb=128) as phone:
    print(phone.machine.process.pid, phone.server.process.pid, flush=True)
    sleep(600)
""")
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    identities = [ProcessIdentity.of(pid) for pid in pids]
    assert len(identities) == 2
    assert all(identities)
    assert machine_called(name) is not None
    process.send_signal(ending)
    process.wait(timeout=20.0)
    assert eventually(lambda: all(ProcessIdentity.of(pid) is None for pid in pids))
    assert machine_called(name) is None
    assert not (CACHE / "emulators" / name).exists()


def test_a_start_that_is_interrupted_leaves_nothing(parent: Callable[[str], subprocess.Popen[str]]) -> None:
    name = f"interrupted-{os.getpid()}"
    process = parent(f"""
from pathlib import Path
from android_harness.emulator.machine import start_emulator
start_emulator(Path({str(CACHE)!r}), {name!r}, memory_mb=128)
""")
    folder = CACHE / "emulators" / name
    assert eventually(lambda: (folder / "console.log").exists())
    machine = machine_called(name)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20.0)
    assert machine is not None
    assert not machine.is_running
    assert not folder.exists()


def test_a_standing_machine_outlives_its_starter_until_it_is_stopped(
    parent: Callable[[str], subprocess.Popen[str]],
) -> None:
    name = f"standing-{os.getpid()}"
    server_was_running = AdbServer().is_running()
    process = parent(f"""
from pathlib import Path
from android_harness.emulator.machine import start_emulator
start_emulator(Path({str(CACHE)!r}), {name!r}, memory_mb=128)
""")
    try:
        assert process.wait(timeout=60.0) == 0
        machine = machine_called(name)
        assert machine is not None
        assert machine.is_running
        listed = {device.name: device for device in list_devices(CACHE)}
        description = listed[f"emulator:{name}"].description
        assert description is not None
        assert description.ram_mb < 128
        assert f"adb:{machine.serial}" not in listed  # the same phone is not listed twice
        with closing(open_device(f"emulator:{name}", CACHE)) as device:
            assert device.run(["uname", "-m"], 60.0).stdout == "aarch64\n"
        with pytest.raises(ValueError, match="running already"):
            start_emulator(CACHE, name)
    finally:
        stop_emulator(CACHE, name)
    assert not machine.is_running
    assert machine_called(name) is None
    assert AdbServer().is_running() == server_was_running


def test_a_machine_that_died_is_shown_and_can_be_cleared_away() -> None:
    name = f"died-{os.getpid()}"
    phone = start_emulator(CACHE, name, memory_mb=128)
    phone.power_off()
    machine = machine_called(name)
    assert machine is not None
    assert not machine.is_running
    assert (
        next(device.state for device in list_devices(CACHE) if device.name == f"emulator:{name}")
        == "powered off"
    )
    with pytest.raises(DeviceError, match="powered off"):
        attach_emulator(CACHE, name).device().describe()
    stop_emulator(CACHE, name)
    assert machine_called(name) is None


def test_two_machines_at_once_have_each_their_own_memory_processor_and_files(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("only on the first")
    with (
        tied_emulator(CACHE, f"one-{os.getpid()}", memory_mb=128) as one,
        tied_emulator(CACHE, f"two-{os.getpid()}", memory_mb=256, cpu="cortex-a53", cores=2) as two,
    ):
        first, second = one.device(folder="/data/local/tmp/x"), two.device(folder="/data/local/tmp/x")
        assert first.describe().ram_mb < 128 < second.describe().ram_mb < 256
        assert (first.describe().cores, second.describe().cores) == (1, 2)
        first.push(tmp_path / "first", "file")
        assert first.run(["cat", "file"], 60.0).stdout == "only on the first"
        assert second.run(["cat", "file"], 60.0).exit_code == 1


def test_a_phone_opened_for_one_run_ends_with_it() -> None:
    device = open_device("emulator", CACHE, memory_mb=128)
    (name,) = [
        machine.name for machine in emulator_status(CACHE) if device.name == f"emulator:{machine.name}"
    ]
    machine = machine_called(name)
    device.close()
    assert machine is not None
    assert not machine.is_running
    assert machine_called(name) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "../up"}, "expected letters, digits"),
        ({"memory_mb": 16}, "at least"),
        ({"cores": 0}, "expected 1 to 8"),
    ],
)
def test_impossible_machines_are_refused_before_anything_is_made(
    changes: dict[str, object], complaint: str
) -> None:
    wanted: dict[str, object] = {"name": f"refused-{os.getpid()}", **changes}
    with pytest.raises(ValueError, match=complaint):
        start_emulator(CACHE, **wanted)  # type: ignore[arg-type]  # the values are wrong on purpose
    assert not (CACHE / "emulators" / f"refused-{os.getpid()}").exists()


def test_a_processor_that_qemu_does_not_know_is_reported_in_qemus_words() -> None:
    with pytest.raises(DeviceError, match="cortex-z99"):
        start_emulator(CACHE, f"unknown-{os.getpid()}", cpu="cortex-z99", tied=True)
    assert machine_called(f"unknown-{os.getpid()}") is None


def test_an_emulator_that_does_not_exist_is_gone_with_the_line_that_starts_it() -> None:
    with pytest.raises(DeviceError, match="fedss emulator start --name nowhere") as failure:
        open_device("emulator:nowhere", CACHE)
    assert failure.value.reason is FailureReason.GONE


@pytest.mark.parametrize("name", ["", "phone", "adb:", "emulator:", "host:1"])
def test_device_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected host, qemu, emulator, emulator:NAME or adb:SERIAL"):
        open_device(name, CACHE)


def test_a_tied_process_outlives_the_thread_that_asked_for_it() -> None:
    started = []

    def work() -> None:
        started.append(start_tied(["sleep", "100"]))
        time.sleep(0.3)  # long enough for the child to ask for the signal

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (process,) = started
    time.sleep(0.3)  # the signal of a dying thread would have come by now
    assert process.poll() is None
    process.kill()
    process.wait()
