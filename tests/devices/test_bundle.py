"""A bundle with its own loader and libraries needs nothing from the ARM64 device it lands on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from helpers.native.arm_programs import CACHE, CPP_CLIENT, require_programs, self_contained_bundle

from android_harness.devices.listing import open_device
from android_harness.devices.qemu import QEMU_PROGRAMS
from android_harness.emulator.machine import EMULATOR_PROGRAMS

pytestmark = pytest.mark.slow  # real machines, booted and killed


@pytest.mark.parametrize("name", ["qemu", "emulator"])
def test_a_bundle_runs_where_no_library_is_installed(name: str, tmp_path: Path) -> None:
    require_programs(*(QEMU_PROGRAMS if name == "qemu" else EMULATOR_PROGRAMS))
    command = self_contained_bundle(CPP_CLIENT, tmp_path / "bundle")
    with closing(open_device(name, CACHE, memory_mb=128)) as device:
        device.push(tmp_path / "bundle", "bundle")
        result = device.run([*command, "20"], 60.0)
        assert (result.exit_code, result.stderr) == (9, "thrown and caught\n")
        if name == "emulator":  # under user-mode emulation the peak would be qemu's own
            peak_kb = int(result.stdout.split()[1])
            assert 20 * 1024 < peak_kb < 30 * 1024
        else:
            assert result.instructions is not None
