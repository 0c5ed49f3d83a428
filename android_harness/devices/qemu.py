"""ARM64 programs on this machine under qemu's user mode: quick to start, and counts instructions.

Only the processor is emulated; files and memory are the host's, so peak memory measured here is qemu's own and
must not be reported.  The program must be self-contained (a static one, or a bundle with its own loader).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from android_harness.bundles.debian_packages import find_program
from android_harness.devices.device import DeviceDescription, RunResult, remote_name
from android_harness.devices.host import HostDevice

QEMU_PROGRAMS = ("qemu-aarch64", "gcc", "setpriv")  # what must be installed for a `QemuDevice`
_PLUGIN_SOURCE = Path(__file__).parent / "instruction_count.c"
_CPU = "cortex-a76"  # as in `_CPUINFO`

# Libraries ask /proc/cpuinfo which processor they are on and crash on x86_64's answer: this is a Cortex-A76's.
_CPUINFO = """processor\t: 0
BogoMIPS\t: 125.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

"""


class QemuDevice(HostDevice):
    """A `HostDevice` whose programs are ARM64."""

    def __init__(self, cache_dir: Path, parent: Path | None = None) -> None:
        self._emulator = find_program("qemu-aarch64")
        self._plugin = _compiled_plugin(cache_dir)
        super().__init__(parent)
        # Where qemu looks first for every file the guest opens; outside the folder that programs see.
        self._sysroot = Path(tempfile.mkdtemp(prefix="fedss-sysroot-", dir=parent))
        (self._sysroot / "proc").mkdir()
        (self._sysroot / "proc" / "cpuinfo").write_text(_CPUINFO)

    @property
    def name(self) -> str:
        return "qemu"

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        program, *arguments = argv
        count_file = self._sysroot / f"instructions-{secrets.token_hex(4)}"  # several may run at once
        emulator = [self._emulator, "-L", str(self._sysroot), "-cpu", _CPU]
        counting = ["-plugin", f"file={option_path(self._plugin)},out={option_path(count_file)}"]
        result = self._run([*emulator, *counting, remote_name(program), *arguments], timeout, env, stdin)
        if (
            not count_file.exists()
        ):  # the guest died by a signal; so did qemu then, without calling the plugin
            return result
        count, *marks = map(int, count_file.read_text().split())
        count_file.unlink()
        return dataclasses.replace(result, instructions=count, marks=tuple(marks))

    def describe(self) -> DeviceDescription:
        return dataclasses.replace(
            super().describe(),
            name=self.name,
            model=f"qemu user mode, {_CPU}",
            abi="aarch64",
            emulated=True,
        )

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._sysroot, ignore_errors=True)


def option_path(path: Path) -> str:
    """`path` inside an option of qemu, where a comma must be doubled."""
    return str(path).replace(",", ",,")


def _compiled_plugin(cache_dir: Path) -> Path:
    """The instruction counter as a shared library, compiled on first use and again when its source changes."""
    digest = hashlib.sha256(_PLUGIN_SOURCE.read_bytes()).hexdigest()[:16]
    library = (cache_dir / f"instruction_count-{digest}.so").resolve()
    if not library.exists():
        compiler = find_program("gcc")
        cache_dir.mkdir(parents=True, exist_ok=True)
        scratch = library.with_suffix(f".{os.getpid()}.part")
        command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
        subprocess.run([*command, "-o", scratch, _PLUGIN_SOURCE], check=True)
        os.replace(scratch, library)
    return library
