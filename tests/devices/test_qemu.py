"""ARM64 programs under qemu's user mode, and the counting of their instructions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers.native.arm_programs import CACHE, COUNTED_LOOP, compile_for_arm64, require_programs

from android_harness.devices.qemu import QEMU_PROGRAMS, QemuDevice

pytestmark = pytest.mark.slow  # real machines, booted and killed


@pytest.fixture(scope="module")
def qemu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QemuDevice]:
    require_programs(*QEMU_PROGRAMS)
    with closing(QemuDevice(CACHE)) as device:
        device.push(compile_for_arm64(COUNTED_LOOP, tmp_path_factory.mktemp("arm") / "loop"), "bundle/loop")
        yield device


def test_instructions_are_counted_one_by_one(qemu: QemuDevice) -> None:
    short, long = (qemu.run(["./bundle/loop", turns], 60.0).instructions for turns in ("1000000", "3000000"))
    assert short is not None
    assert long is not None
    assert abs(long - short - 3 * 2_000_000) < 1000  # the decimal digits of the argument cost a few as well


def test_the_same_program_costs_the_same_every_time(qemu: QemuDevice) -> None:
    counts = [qemu.run(["./bundle/loop", "1000"], 60.0).instructions or 0 for _ in range(3)]
    assert min(counts) > 3000
    assert max(counts) - min(counts) <= 100


def test_programs_see_an_arm_processor(qemu: QemuDevice) -> None:
    result = qemu.run(["bundle/loop", "1"], 60.0)
    assert result.exit_code == 7
    assert "CPU architecture: 8" in result.stdout
    assert qemu.describe().abi == "aarch64"
    assert qemu.describe().emulated


def test_a_program_of_the_host_is_refused(qemu: QemuDevice) -> None:
    with pytest.raises(ValueError, match="inside the device's folder"):
        qemu.run(["/bin/true"], 60.0)


def test_folders_may_have_any_name_and_closing_leaves_none(tmp_path: Path) -> None:
    require_programs(*QEMU_PROGRAMS)
    awkward = tmp_path / "spaces, commas=signs"
    awkward.mkdir()
    device = QemuDevice(CACHE, parent=awkward)
    device.push(compile_for_arm64(COUNTED_LOOP, tmp_path / "loop"), "loop")
    assert device.run(["loop", "10"], 60.0).instructions is not None
    assert len(list(awkward.iterdir())) == 2
    device.close()
    assert list(awkward.iterdir()) == []
