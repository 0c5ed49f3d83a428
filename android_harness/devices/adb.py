"""A device behind the real adb client: a phone, an Android emulator, a board, or our own emulated phone.

Everything goes through the `adb` program, so whatever it can reach is a device.  What is added here: exit codes
and losses that cannot be confused, killing on time-out, checked and atomic transfers, and patience with a link
that comes and goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from android_harness.devices.adb_description import DESCRIBE_SCRIPT, parse_description
from android_harness.devices.adb_server import AdbServer
from android_harness.devices.bounded_output import OutputTooLong
from android_harness.devices.command_frame import BadFrame, CommandEnd, CommandFrame
from android_harness.devices.device import (
    DeviceDescription,
    DeviceError,
    FailureReason,
    RunResult,
    check_size,
    remote_name,
)
from ondevice.contract.wire import MAX_MESSAGE_BYTES

Answer = TypeVar("Answer")

# What adb clients say, over several versions, when the link is not there at the moment and may come back.
_LINK_LOST = re.compile(
    r"device '.*' not found|device offline|no devices|error: closed|protocol fault|connection reset|connect failed"
    r"|cannot connect to daemon|failed to check server version|couldn't read from device|failed to read|broken pipe",
    re.IGNORECASE,
)
_HASH_LINE = re.compile(r"([0-9a-f]{64})\s+(\S.*)")
_SIZE_LINE = re.compile(r"[0-9]{1,19}")
_LINK_SECONDS = 10.0  # for a command about the link itself
_HOUSEKEEPING_SECONDS = 60.0  # for a shell command of our own: hashes, renames, deletions
_SLOWEST_TRANSFER = 2**20  # bytes per second below which a transfer counts as stuck


class _LinkLost(Exception):
    """The device could not be reached, and what was asked can be asked again."""


class AdbDevice:
    """The device `serial` of an adb server.  `folder` is ours alone and everything happens in it.

    `patience` is how many seconds a lost link may take to come back.  `has_power`, where somebody knows, says
    whether there is any point in waiting; `on_close` is called last of all, for whoever started the device.
    """

    def __init__(
        self,
        serial: str,
        server: AdbServer,
        *,
        name: str | None = None,
        folder: str | None = None,
        patience: float = 30.0,
        has_power: Callable[[], bool] = lambda: True,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._serial = serial
        self._server = server
        self._name = name or f"adb:{serial}"
        self._folder = folder or f"/data/local/tmp/fedss-{secrets.token_hex(4)}"
        self._patience = patience
        self._has_power = has_power
        self._on_close = on_close
        self._left_running: list[str] = []  # scripts that kill commands whose connection was lost

    @property
    def name(self) -> str:
        return self._name

    def push(self, local: Path, remote: str) -> None:
        if not local.exists():
            raise FileNotFoundError(f"push: {local} does not exist")
        target = self._path(remote)
        scratch = f"{target}.part"
        expected = _local_hashes(local)
        folder, new, old = (shlex.quote(path) for path in (posixpath.dirname(target), scratch, target))

        def transfer() -> None:
            self._housekeep(f"mkdir -p {folder} && rm -rf {new}")
            self._copy(["push", str(local), scratch], _size(local))
            self._check_arrival(f"push {local}", expected, self._remote_hashes(scratch))
            self._housekeep(f"rm -rf {old} && mv {new} {old}")

        try:
            self._patiently(transfer)
        except DeviceError as error:
            if error.reason in (FailureReason.DISK_FULL, FailureReason.CORRUPT):
                self._patiently(lambda: self._housekeep(f"rm -rf {new}"))
            raise

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        command = shlex.join(["env", *settings, *argv] if settings else argv)
        what = " ".join(argv)
        in_folder = f"mkdir -p {shlex.quote(self._folder)} && cd {shlex.quote(self._folder)} && {command}"
        started = time.monotonic()
        stdout, end = self._patiently(lambda: self._shell(in_folder, what, timeout, stdin))
        # Where the kernel does not say why, a SIGKILL that nobody here sent can only be its doing.
        if end.exit_code == 128 + signal.SIGKILL and end.memory_kills != 0:
            raise DeviceError(
                FailureReason.KILLED_FOR_MEMORY, f"{self.name}: the kernel killed {what} for memory"
            )
        return RunResult(
            exit_code=end.exit_code,
            stdout=stdout.decode(errors="replace"),
            stderr=end.stderr.decode(errors="replace"),
            wall_seconds=time.monotonic() - started,
        )

    def pull(self, remote: str, local: Path, at_most: int = MAX_MESSAGE_BYTES) -> None:
        source = self._path(remote)
        local.parent.mkdir(parents=True, exist_ok=True)

        def transfer() -> None:
            sizes = self._remote_sizes(source)
            if not sizes:
                raise DeviceError(
                    FailureReason.MISSING, f"{self.name}: pull: no file {remote!r} in {self._folder}"
                )
            size = sum(sizes)
            check_size(self.name, remote, size, at_most)
            expected = self._remote_hashes(source)
            with tempfile.TemporaryDirectory(dir=local.parent, prefix=".pulling-") as folder:
                scratch = Path(folder) / "copy"
                self._copy(["pull", source, str(scratch)], size)
                self._check_arrival(f"pull {remote}", expected, _local_hashes(scratch))
                if local.is_dir():
                    shutil.rmtree(local)
                os.replace(scratch, local)

        self._patiently(transfer)

    def remove(self, remote: str) -> None:
        self._patiently(lambda: self._housekeep(shlex.join(["rm", "-rf", self._path(remote)])))

    def describe(self) -> DeviceDescription:
        return parse_description(self.name, self._patiently(lambda: self._housekeep(DESCRIBE_SCRIPT)))

    def close(self) -> None:
        """Deletes the folder if the device can be reached; one that has gone is not waited for."""
        try:
            if self._has_power():
                with contextlib.suppress(_LinkLost):
                    self._housekeep(shlex.join(["rm", "-rf", self._folder]))
        finally:
            self._on_close()

    def wait_until_reachable(self, patience: float) -> None:
        """Returns once the device answers, making the link anew as often as it takes, with growing pauses."""
        deadline = time.monotonic() + patience
        pause = 0.1
        while (state := self._state()) != "device":
            if not self._has_power():
                raise DeviceError(FailureReason.GONE, f"{self.name} is powered off; start it again")
            if "unauthorized" in state:
                raise DeviceError(
                    FailureReason.GONE, f"{self.name} is not authorised; accept the prompt on its screen"
                )
            if time.monotonic() + pause > deadline:
                raise DeviceError(
                    FailureReason.GONE,
                    f"{self.name} did not answer for {patience:g} s ({state}); see `adb devices`",
                )
            if ":" in self._serial:  # over TCP the server does not reconnect by itself in any useful time
                self._ask_server("disconnect", self._serial)
                self._ask_server("connect", self._serial)
            time.sleep(pause)
            pause = min(2 * pause, 4.0)

    def _path(self, remote: str) -> str:
        return f"{self._folder}/{remote_name(remote)}"

    def _state(self) -> str:
        return self._ask_server("-s", self._serial, "get-state")

    def _ask_server(self, *arguments: str) -> str:
        try:
            done = self._server.run(arguments, _LINK_SECONDS)
        except subprocess.TimeoutExpired:
            return "the adb server does not answer"
        return (done.stdout + done.stderr).decode(errors="replace").strip()

    def _patiently(self, action: Callable[[], Answer]) -> Answer:
        """Does `action`, again if the link was lost, until the patience since the first loss is used up."""
        deadline: float | None = None
        pause = 0.0
        while True:
            try:
                return action()
            except _LinkLost as loss:
                deadline = deadline or time.monotonic() + self._patience
                if time.monotonic() + pause > deadline:
                    raise DeviceError(FailureReason.GONE, f"{self.name} keeps disappearing: {loss}") from loss
            time.sleep(pause)
            self.wait_until_reachable(deadline - time.monotonic())
            pause = min(2 * pause + 0.1, 4.0)

    def _copy(self, arguments: list[str], size: int) -> None:
        """One `adb push` or `adb pull` of `size` bytes."""
        timeout = _HOUSEKEEPING_SECONDS + size / _SLOWEST_TRANSFER
        what = f"{self.name}: adb {' '.join(arguments)}"
        try:
            done = self._server.run(["-s", self._serial, *arguments], timeout)
        except subprocess.TimeoutExpired:
            raise DeviceError(FailureReason.TIMED_OUT, f"{what}: not done after {timeout:.0f} s") from None
        if done.returncode == 0:
            return
        words = (done.stderr + done.stdout).decode(errors="replace").strip()
        if "No space left on device" in words:
            raise DeviceError(FailureReason.DISK_FULL, f"{what}: {words}")
        if _LINK_LOST.search(words) or self._state() != "device":
            raise _LinkLost(words)
        raise DeviceError(FailureReason.FAILED, f"{what}: {words}")

    def _check_arrival(self, what: str, expected: dict[str, str], arrived: dict[str, str]) -> None:
        wrong = sorted(
            name for name in expected.keys() | arrived.keys() if expected.get(name) != arrived.get(name)
        )
        if wrong:
            raise DeviceError(
                FailureReason.CORRUPT,
                f"{self.name}: {what}: sha256 differs or file missing for {', '.join(wrong[:5])}",
            )

    def _remote_hashes(self, path: str) -> dict[str, str]:
        """sha256 of every file below `path` by relative name; of a file itself under the name "."; empty if absent."""
        quoted = shlex.quote(path)
        lines = self._housekeep(
            f"if [ -d {quoted} ]; then cd {quoted} && find . -type f -exec sha256sum {{}} +; "
            f"elif [ -f {quoted} ]; then sha256sum < {quoted}; fi"
        ).splitlines()
        pairs = [_HASH_LINE.fullmatch(line) for line in lines]
        if None in pairs:
            raise self._nonsense("sha256sum", lines)
        found = [pair.groups() for pair in pairs if pair]
        return {name.removeprefix("./") if name != "-" else ".": digest for digest, name in found}

    def _remote_sizes(self, path: str) -> list[int]:
        """Bytes of every file below `path`, or of the file that it is; empty if there is none.  Holes count."""
        quoted = shlex.quote(path)
        lines = self._housekeep(
            f"if [ -d {quoted} ]; then find {quoted} -type f -exec stat -c %s {{}} +; "
            f"elif [ -f {quoted} ]; then stat -c %s {quoted}; fi"
        ).splitlines()
        if not all(_SIZE_LINE.fullmatch(line) for line in lines):
            raise self._nonsense("stat", lines)
        return [int(line) for line in lines]

    def _nonsense(self, program: str, lines: list[str]) -> DeviceError:
        said = " | ".join(lines)[:200]
        return DeviceError(FailureReason.CORRUPT, f"{self.name}: {program} there said {said!r}")

    def _housekeep(self, script: str) -> str:
        """A small script of our own, safe to repeat; its output, or a `DeviceError` if it failed."""
        stdout, end = self._shell(script, "housekeeping", _HOUSEKEEPING_SECONDS, repeatable=True)
        if end.exit_code != 0:
            words = end.stderr.decode(errors="replace").strip()
            full = "No space left on device" in words
            raise DeviceError(
                FailureReason.DISK_FULL if full else FailureReason.FAILED, f"{self.name}: {words}"
            )
        return stdout.decode(errors="replace")

    def _shell(
        self, script: str, what: str, timeout: float, stdin: bytes = b"", repeatable: bool = False
    ) -> tuple[bytes, CommandEnd]:
        """Runs `script` in one `adb shell`; its stdout and how it ended."""
        frame = CommandFrame()
        command = "\n".join([*self._left_running, frame.around(script)])
        _, output = self._server.start(["-s", self._serial, "shell", "-T", command], stdin)
        try:
            output.wait(timeout)
        except (subprocess.TimeoutExpired, OutputTooLong, KeyboardInterrupt) as interruption:
            output.kill()
            group = frame.process_group(output.stderr)
            if group is not None:  # adbd on a phone does not end a command when its client leaves
                self._ask_server("-s", self._serial, "shell", frame.kill(group))
            if isinstance(interruption, KeyboardInterrupt):
                raise
            if isinstance(interruption, OutputTooLong):
                raise DeviceError(
                    FailureReason.FAILED, f"{self.name}: {what} was killed: {interruption}"
                ) from None
            raise DeviceError(
                FailureReason.TIMED_OUT, f"{self.name}: {what} was killed after {timeout:g} s"
            ) from None
        errors = output.stderr
        try:
            end = frame.end(errors)
        except BadFrame as error:
            raise DeviceError(FailureReason.CORRUPT, f"{self.name}: {what} ended with {error}") from None
        if end is not None:
            self._left_running.clear()
            return output.stdout, end
        group = frame.process_group(errors)
        if group is not None:
            self._left_running.append(frame.kill(group))
            if not repeatable:
                raise DeviceError(
                    FailureReason.GONE, f"{self.name}: the connection was lost while {what} ran"
                )
        words = errors.decode(errors="replace").strip()
        if group is not None or _LINK_LOST.search(words) or self._state() != "device":
            raise _LinkLost(words)
        raise DeviceError(FailureReason.FAILED, f"{self.name}: adb shell: {words}")


def _size(local: Path) -> int:
    return sum(path.stat().st_size for path in [local, *local.rglob("*")])


def _local_hashes(local: Path) -> dict[str, str]:
    """As `_remote_hashes`, of a file or folder here."""
    if local.is_file():
        return {".": _sha256(local)}
    return {str(path.relative_to(local)): _sha256(path) for path in local.rglob("*") if path.is_file()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
