"""What devices and tools say, and what is made of it; nothing here needs a device."""

from __future__ import annotations

import io
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.native.arm_programs import CACHE, require_programs
from rich.console import Console

from android_harness.bundles.debian_packages import (
    MissingPackage,
    find_program,
    missing_programs,
    unpack_package,
)
from android_harness.devices.adb_description import parse_description
from android_harness.devices.command_frame import CommandFrame
from android_harness.devices.device import DeviceError
from android_harness.devices.listing import ListedDevice, parse_adb_devices
from android_harness.emulator.guest_image import in_loading_order, read_drivers
from android_harness.emulator.register import emulator_status
from android_harness.measuring.client_bench import parse_bench
from android_harness.measuring.power_state import PowerState, parse_power_state
from fedss.commands.devices import devices_table

PHONE = """machine=aarch64
kernel=5.10.157-android13-4
cores=8
ram=MemTotal:        7654321 kB
free=123456 4096
ro.product.manufacturer=Google
ro.product.model=Pixel 7
ro.build.version.release=14
ro.kernel.qemu=
ro.boot.qemu=
zone=41200
battery.Current=Battery Service state:
battery.AC=powered: false
battery.level:=85
battery.scale:=100
battery.temperature:=287
"""


def test_a_phone_tells_its_android_battery_and_temperature() -> None:
    phone = parse_description("adb:123", PHONE)
    assert (phone.model, phone.android_version, phone.emulated) == ("Google Pixel 7", "14", False)
    assert (phone.abi, phone.cores, phone.ram_mb, phone.free_mb) == ("aarch64", 8, 7474, 482)
    assert (phone.battery_percent, phone.temperature_celsius) == (85, 28.7)


def test_a_board_without_battery_tells_the_temperature_of_its_processor() -> None:
    board = parse_description(
        "adb:board", "\n".join(line for line in PHONE.splitlines() if "battery" not in line)
    )
    assert (board.battery_percent, board.temperature_celsius) == (None, 41.2)


def test_an_android_emulator_is_recognised_as_emulated() -> None:
    assert parse_description("adb:emulator-5554", PHONE.replace("ro.boot.qemu=", "ro.boot.qemu=1")).emulated


def test_a_description_that_makes_no_sense_is_quoted() -> None:
    with pytest.raises(DeviceError, match="adb:123 described itself"):
        parse_description("adb:123", "sh: nproc: not found")


@pytest.mark.parametrize("wrong", ["1" * 400, "1" * 5000, "warm"])
def test_a_description_with_numbers_that_cannot_be_is_refused_briefly(wrong: str) -> None:
    with pytest.raises(DeviceError, match="adb:123 described itself") as failure:
        parse_description("adb:123", PHONE.replace("287", wrong))
    assert len(str(failure.value)) < 2000


@pytest.mark.parametrize("markup", [True, False])
def test_a_phone_may_call_itself_what_it_likes(markup: bool) -> None:
    """Markup of the console, escapes of the terminal, a novel: shown as text, and not for long."""
    name = "[/evil] \x1b[31m" + "x" * 5000
    phone = parse_description("adb:[/evil]", PHONE.replace("Pixel 7", name))
    assert "\x1b" not in phone.model
    assert len(phone.model) < 300
    listed = ListedDevice("adb:[/evil]", "ready", description=phone)
    shown = Console(file=io.StringIO(), width=400, markup=markup)
    shown.print(devices_table([listed]))
    assert isinstance(shown.file, io.StringIO)
    assert "adb:[/evil]: Google [/evil] ?[31m" in shown.file.getvalue()


BENCH = """{"event": "ready", "load_ms": 2.5, "swap_ms": 1}
{"warmup": true, "cpu_ms": 9, "wall_ms": 9, "loss": 4}
{"warmup": false, "cpu_ms": 3, "wall_ms": 4, "loss": 4.5}
{"event": "done", "peak_footprint_bytes": 4096}
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("2.5", '"quick"'),
        ("2.5", "true"),
        ("2.5", "NaN"),
        ("2.5", "1" * 400),
        ("2.5", "1" * 5000),
        ("2.5", "[" * 100_000 + "]" * 100_000),
        ("4096", "null"),
        ("4.5", "{}"),
        ('"warmup": false', '"warmup": true'),
    ],
)
def test_a_bench_that_makes_no_sense_is_quoted_briefly(right: str, wrong: str) -> None:
    assert parse_bench(BENCH).peak_footprint_bytes == 4096
    with pytest.raises(DeviceError, match="bench printed something") as failure:
        parse_bench(BENCH.replace(right, wrong))
    assert len(str(failure.value)) < 3000


def test_what_is_no_number_is_left_out_of_a_power_state() -> None:
    for wrong in ("warm", "²", "1" * 5000, "1" * 400, "-"):
        assert parse_power_state(f"battery.temperature={wrong}\nkhz={wrong}\nzone=41000\n") == PowerState(
            41.0
        )


def run_here(script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", script], capture_output=True, start_new_session=True)


def test_a_framed_command_gives_its_exit_code_and_its_own_words() -> None:
    frame = CommandFrame()
    done = run_here(frame.around("echo out; printf 'begin 7\\nend 8' >&2; (exit 9)"))
    assert done.stdout == b"out\n"
    end = frame.end(b"a warning of the client\n" + done.stderr)
    assert end is not None
    assert (end.exit_code, end.stderr, end.memory_kills) == (9, b"begin 7\nend 8", 0)


def test_a_framed_command_that_was_cut_off_or_never_began_has_no_end() -> None:
    frame = CommandFrame()
    whole = run_here(frame.around("echo words >&2")).stderr
    assert frame.end(whole) is not None
    for length in range(len(whole)):
        assert frame.end(whole[:length]) is None
    assert frame.process_group(b"error: device offline\n") is None
    assert frame.process_group(whole) is not None


def test_where_memory_kills_cannot_be_read_they_are_unknown() -> None:
    frame = CommandFrame(word="w")
    end = frame.end(b"w begin 12 \nKilled\nw end 137 \n")
    assert end is not None
    assert (end.exit_code, end.memory_kills, end.stderr) == (137, None, b"Killed")


def test_a_command_left_behind_is_killed_with_its_children_and_nobody_else() -> None:
    frame, other = CommandFrame(), CommandFrame()
    script = frame.around("sleep 100 & sleep 100; wait")
    left = subprocess.Popen(["sh", "-c", script], stderr=subprocess.PIPE, start_new_session=True)
    assert left.stderr is not None
    group = frame.process_group(left.stderr.readline())
    assert group == left.pid
    run_here(other.kill(group))  # somebody else's number now
    assert left.poll() is None
    run_here(frame.kill(group))
    assert left.wait(timeout=10.0) == -9
    assert left.stderr.read() == b""  # nobody holds it open any more


def test_adb_devices_are_read_with_their_states() -> None:
    answer = "List of devices attached\n0A1B2C\tdevice\n127.0.0.1:40441\toffline\nXYZ\tunauthorized\n\n"
    assert parse_adb_devices(answer) == [
        ("0A1B2C", "device"),
        ("127.0.0.1:40441", "offline"),
        ("XYZ", "unauthorized"),
    ]


@pytest.mark.parametrize("content", ["", "{}", '{"name": "old"}', "[]"])
def test_a_machine_noted_by_another_version_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "emulators" / "old"
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text(content)
    with pytest.raises(ValueError, match=f"delete the folder {folder}"):
        emulator_status(tmp_path)


def test_a_missing_program_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage, match="apt-get install qemu-system-arm"):
        find_program("qemu-system-aarch64")
    assert missing_programs("adb", "qemu-aarch64", "mke2fs") == [
        "adb",
        "qemu-user",
    ]  # mke2fs: also where root's path is


def test_a_cached_package_that_has_changed_is_not_used(tmp_path: Path) -> None:
    require_programs("apt-get", "dpkg-deb")
    unpack_package(CACHE, "busybox-static")
    home = tmp_path / "debian" / "arm64" / "busybox-static"
    shutil.copytree(CACHE / "debian" / "arm64" / "busybox-static", home, symlinks=True)
    assert unpack_package(tmp_path, "busybox-static").file_name.startswith("busybox-static_")
    (package,) = home.glob("*.deb")
    content = bytearray(package.read_bytes())
    content[1000] ^= 1
    package.write_bytes(content)
    with pytest.raises(MissingPackage, match="has changed since it was fetched; delete the folder"):
        unpack_package(tmp_path, "busybox-static")


def test_a_package_that_does_not_exist_is_reported_in_apts_words() -> None:
    require_programs("apt-get", "dpkg-deb")
    with pytest.raises(MissingPackage, match="no-such-package-anywhere"):
        unpack_package(CACHE, "no-such-package-anywhere")
    assert not (CACHE / "debian" / "arm64" / "no-such-package-anywhere").exists()


def test_drivers_are_loaded_behind_those_that_they_need() -> None:
    def driver(needs: str) -> bytes:
        return b"\x7fELF\0license=GPL\0depends=" + needs.encode() + b"\0name=x\0"

    drivers = {
        "virtio": driver("virtio_ring"),
        "virtio_ring": driver(""),
        "block": driver("virtio,virtio_ring"),
    }
    assert list(in_loading_order(drivers)) == ["virtio_ring", "virtio", "block"]
    with pytest.raises(RuntimeError, match=r"need others.*'block': \['virtio'\]"):
        in_loading_order({"block": drivers["block"], "virtio_ring": drivers["virtio_ring"]})


def test_drivers_are_plain_packed_or_built_in_and_one_that_is_none_of_these_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "kernel/drivers/block/virtio_blk.ko"
    packed = tmp_path / "kernel/drivers/net/virtio_net.ko.xz"
    for file, content in ((plain, b"block"), (packed, lzma.compress(b"net"))):
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    built_in = ["drivers/virtio/virtio", "drivers/virtio/virtio_ring", "drivers/virtio/virtio_mmio"]
    built_in += ["net/core/failover", "drivers/net/net_failover"]
    listed = tmp_path / "modules.builtin"
    listed.write_text("".join(f"kernel/{driver}.ko\n" for driver in built_in))
    assert read_drivers(tmp_path) == {"virtio_blk": b"block", "virtio_net": b"net"}
    listed.write_text("".join(f"kernel/{driver}.ko\n" for driver in built_in[1:]))
    with pytest.raises(RuntimeError, match=r"has no driver drivers/virtio/virtio$"):
        read_drivers(tmp_path)
