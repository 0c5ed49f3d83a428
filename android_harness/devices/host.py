"""This machine as a device: programs are child processes in a private temporary folder."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from android_harness.devices.bounded_output import BoundedOutput, OutputTooLong
from android_harness.devices.device import (
    DeviceDescription,
    DeviceError,
    FailureReason,
    RunResult,
    check_size,
    remote_name,
)
from android_harness.processes.tied_process import start_tied
from ondevice.contract.wire import MAX_MESSAGE_BYTES


class HostDevice:
    """A `Device` that is a folder here.  `parent` is where that folder is made; the system's choice if None."""

    def __init__(self, parent: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fedss-device-", dir=parent))

    @property
    def name(self) -> str:
        return "host"

    def push(self, local: Path, remote: str) -> None:
        target = self._folder / remote_name(remote)
        if not local.exists():
            raise FileNotFoundError(f"push: {local} does not exist")
        try:
            _copy_whole(local, target)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DeviceError(FailureReason.DISK_FULL, f"{self.name}: push {local}: {error}") from error

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        return self._run(list(argv), timeout, env, stdin)

    def pull(self, remote: str, local: Path, at_most: int = MAX_MESSAGE_BYTES) -> None:
        source = self._folder / remote_name(remote)
        if not source.exists():
            raise DeviceError(
                FailureReason.MISSING, f"{self.name}: pull: no file {remote!r} in the device's folder"
            )
        check_size(self.name, remote, _size(source), at_most)
        _copy_whole(source, local)

    def remove(self, remote: str) -> None:
        _delete(self._folder / remote_name(remote))

    def describe(self) -> DeviceDescription:
        return DeviceDescription(
            name=self.name,
            model=cpu_model(Path("/proc/cpuinfo").read_text()) or platform.processor() or "unknown",
            abi=platform.machine(),
            cores=len(os.sched_getaffinity(0)),
            ram_mb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
            kernel=platform.release(),
            free_mb=shutil.disk_usage(self._folder).free // 2**20,
            emulated=False,
        )

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(
        self, command: list[str], timeout: float, env: Mapping[str, str] | None, stdin: bytes
    ) -> RunResult:
        killed_before = _memory_kills()
        started = time.monotonic()
        process = start_tied(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder,
            env={**os.environ, **(env or {})},
        )
        output = BoundedOutput(process, stdin)
        try:
            output.wait(timeout)
        except subprocess.TimeoutExpired:
            raise DeviceError(
                FailureReason.TIMED_OUT, f"{self.name}: {command} was killed after {timeout:g} s"
            ) from None
        except OutputTooLong as error:
            raise DeviceError(FailureReason.FAILED, f"{self.name}: {command} was killed: {error}") from None
        finally:
            _kill_session(process)
        exit_code = 128 - process.returncode if process.returncode < 0 else process.returncode
        if exit_code == 128 + signal.SIGKILL and _memory_kills() > killed_before:
            raise DeviceError(
                FailureReason.KILLED_FOR_MEMORY, f"{self.name}: the kernel killed {command} for memory"
            )
        return RunResult(
            exit_code=exit_code,
            stdout=output.stdout.decode(errors="replace"),
            stderr=output.stderr.decode(errors="replace"),
            wall_seconds=time.monotonic() - started,
        )


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name as /proc/cpuinfo tells it; ARM kernels give only part numbers, so None there."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a program's session: after a time-out or Ctrl-C, and children it left behind."""
    with contextlib.suppress(ProcessLookupError):  # everything had ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _memory_kills() -> int:
    """How many processes the kernel has killed for memory since it started."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _size(source: Path) -> int:
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _copy_whole(source: Path, target: Path) -> None:
    """Copies a file or folder so that `target` appears complete or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as folder:
        scratch = Path(folder) / "copy"
        if source.is_dir():
            shutil.copytree(source, scratch, symlinks=True)
        else:
            shutil.copy2(source, scratch)
        if target.is_dir():
            _delete(target)
        os.replace(scratch, target)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
