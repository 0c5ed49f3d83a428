"""What every device promises, shown on this host and on an emulated phone behind the real adb client."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers.native.arm_programs import CACHE, require_programs

from android_harness.devices.device import Device, DeviceError, FailureReason, RunResult
from android_harness.devices.host import HostDevice
from android_harness.emulator.machine import EMULATOR_PROGRAMS, tied_emulator

pytestmark = pytest.mark.slow  # real machines, booted and killed


@pytest.fixture(scope="module", params=["host", "emulator"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "host":
        with closing(HostDevice()) as host:
            yield host
    else:
        require_programs(*EMULATOR_PROGRAMS)
        name = f"contract-{os.getpid()}"
        with tied_emulator(CACHE, name, memory_mb=192) as phone, closing(phone.device()) as behind_adb:
            yield behind_adb


def shell(device: Device, script: str, timeout: float = 60.0, stdin: bytes = b"") -> RunResult:
    return device.run(["sh", "-c", script], timeout, stdin=stdin)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3_000_001])
def test_a_pushed_file_comes_back_byte_for_byte(device: Device, tmp_path: Path, size: int) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(np.random.default_rng(size).bytes(size))
    device.push(sent, "some folder/it's a file")
    device.pull("some folder/it's a file", tmp_path / "back" / "received")
    assert (tmp_path / "back" / "received").read_bytes() == sent.read_bytes()


def test_a_pushed_folder_replaces_the_one_before_and_keeps_what_is_executable(
    device: Device, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "lib").mkdir(parents=True)
    (bundle / "lib" / "data").write_text("data\n")
    (bundle / "start").write_text("#!/bin/sh\ncat bundle/lib/data\n")
    (bundle / "start").chmod(0o755)
    (bundle / "old").write_text("old\n")
    device.push(bundle, "bundle")
    (bundle / "old").unlink()
    device.push(bundle, "bundle")
    assert device.run(["./bundle/start"], 60.0).stdout == "data\n"
    device.pull("bundle", tmp_path / "back")
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")) == [
        "lib",
        "lib/data",
        "start",
    ]
    assert shell(device, "ls -d *.part .copying-*").stdout == ""


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes_arrive(device: Device, code: int) -> None:
    assert shell(device, f"exit {code}").exit_code == code


def test_death_by_a_signal_is_128_plus_its_number(device: Device) -> None:
    assert shell(device, "kill -TERM $$").exit_code == 128 + signal.SIGTERM


def test_a_program_that_does_not_exist_is_exit_code_127(device: Device) -> None:
    assert device.run(["./no-such-program"], 60.0).exit_code == 127


def test_stdout_and_stderr_come_apart_and_whole(device: Device) -> None:
    result = shell(
        device, "echo out; echo err >&2; printf 'no newline'; printf '\\n\\nblank lines\\n\\n' >&2"
    )
    assert (result.stdout, result.stderr) == ("out\nno newline", "err\n\n\nblank lines\n\n")


def test_megabytes_on_both_streams_arrive_in_order(device: Device) -> None:
    result = shell(device, "seq 1 120000; seq 1 90000 >&2")
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 120_001))
    assert result.stderr == "".join(f"{number}\n" for number in range(1, 90_001))


def test_stdin_is_read_to_its_end(device: Device) -> None:
    sent = np.random.default_rng(1).bytes(700_001).hex().encode()
    assert device.run(["cat"], 60.0, stdin=sent).stdout.encode() == sent
    assert device.run(["cat"], 60.0).stdout == ""


def test_a_program_that_ignores_its_stdin_still_ends(device: Device) -> None:
    assert shell(device, "echo done", stdin=bytes(2_000_000)).stdout == "done\n"


def test_arguments_and_environment_pass_unchanged(device: Device) -> None:
    awkward = "a b'c\"d$HOME`x`\\n*;&|"
    result = device.run(
        ["sh", "-c", 'printf "%s|%s" "$1" "$SETTING"', "sh", awkward], 60.0, env={"SETTING": awkward}
    )
    assert result.stdout == f"{awkward}|{awkward}"


def test_after_the_time_out_nothing_of_the_program_is_left(device: Device) -> None:
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"killed after 0\.5 s") as failure:
        shell(device, "(sleep 2; touch survived) & sleep 60", timeout=0.5)
    assert failure.value.reason is FailureReason.TIMED_OUT
    assert time.monotonic() - began < 20  # and not 60
    time.sleep(max(0.0, began + 3 - time.monotonic()))
    assert shell(device, "ls survived").exit_code != 0


def test_pulling_what_is_not_there_says_so_and_writes_nothing(device: Device, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no file 'nothing/here'") as failure:
        device.pull("nothing/here", tmp_path / "target")
    assert failure.value.reason is FailureReason.MISSING
    assert list(tmp_path.iterdir()) == []


def test_pushing_what_is_not_there_says_so(device: Device, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        device.push(tmp_path / "absent", "target")


def test_removing_deletes_folders_and_forgives_absence(device: Device, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    device.push(tmp_path, "folder")
    device.remove("folder")
    device.remove("folder")
    assert shell(device, "ls -d folder").exit_code != 0


@pytest.mark.parametrize("name", ["", ".", "/etc/passwd", "../other", "a/../../b", "two\nlines"])
def test_names_outside_the_devices_folder_are_refused(device: Device, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="inside the device's folder"):
        device.push(tmp_path / "file", name)
    with pytest.raises(ValueError, match="inside the device's folder"):
        device.pull(name, tmp_path / "back")
    with pytest.raises(ValueError, match="inside the device's folder"):
        device.remove(name)


def test_a_failed_program_is_quoted_and_a_full_disk_recognised(device: Device) -> None:
    assert shell(device, "exit 0").expect_success("nothing").exit_code == 0
    with pytest.raises(DeviceError, match=r"training exited with code 3, expected 0: the reason") as failure:
        shell(device, "echo the reason >&2; exit 3").expect_success("training")
    assert failure.value.reason is FailureReason.FAILED
    with pytest.raises(DeviceError) as failure:
        shell(device, "echo 'write: No space left on device' >&2; exit 1").expect_success("training")
    assert failure.value.reason is FailureReason.DISK_FULL


def test_closing_the_host_deletes_its_folder(tmp_path: Path) -> None:
    host = HostDevice(parent=tmp_path)
    shell(host, "touch something")
    assert len(list(tmp_path.iterdir())) == 1
    host.close()
    assert list(tmp_path.iterdir()) == []
