"""What a device is to the rest of the project: a folder somewhere else in which programs can be run.

A device has four verbs (push, run, pull, describe) and two for tidiness (remove, close).  Every remote name is
relative to the device's own folder, and programs start in it, so that the same calls serve a child process here
and a phone, and nothing outside that folder is ever touched.

Failures that end a client's round without ending the round itself are `DeviceError`s with a `reason`; a program
that merely exits with a code other than zero is a result, not a failure of the device.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from ondevice.contract.wire import MAX_MESSAGE_BYTES


class FailureReason(enum.StrEnum):
    """Why a device could not do what it was asked: the report of a round quotes these words."""

    GONE = "gone"  # unplugged, powered off, unauthorised: nothing more can be asked of it
    TIMED_OUT = "timed out"
    KILLED_FOR_MEMORY = "killed for memory"
    DISK_FULL = "disk full"
    CORRUPT = "corrupt"  # what arrived is not what was sent, or makes no sense
    MISSING = "missing"  # no such file on the device
    WRONG = "wrong"  # the golden step was not reproduced, or training diverged
    FAILED = "failed"  # anything else; the message has the words of the tool that failed


class DeviceError(RuntimeError):
    """A device failed; `reason` says in which of the ways that callers tell apart."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class RunResult:
    """A program that ran to its end.  Death by signal n is exit code 128 + n, as in a shell."""

    exit_code: int
    stdout: str
    stderr: str
    wall_seconds: float
    instructions: int | None = (
        None  # executed by the guest; only where the device is emulated and counts them
    )
    marks: tuple[int, ...] = ()
    """The count at every place that the program marked (`instruction_count.c`)."""

    def expect_success(self, what: str) -> RunResult:
        """This result if the exit code is 0, otherwise a `DeviceError` that quotes the program's last words."""
        if self.exit_code == 0:
            return self
        full = "No space left on device" in self.stderr
        last_words = self.stderr.strip()[-2000:] or self.stdout.strip()[-2000:] or "(it printed nothing)"
        raise DeviceError(
            FailureReason.DISK_FULL if full else FailureReason.FAILED,
            f"{what} exited with code {self.exit_code}, expected 0: {last_words}",
        )


@dataclass(frozen=True)
class DeviceDescription:
    """What is written beside every measurement.  None: the device does not tell."""

    name: str  # as on the command line: host, qemu, emulator:NAME, adb:SERIAL
    model: str
    abi: str  # as `uname -m` says it (aarch64, x86_64); it names the bundle that runs there
    cores: int
    ram_mb: int
    kernel: str
    free_mb: int  # on the file system of the device's folder
    emulated: bool  # wall time says nothing about a phone then
    android_version: str | None = None
    battery_percent: int | None = None
    temperature_celsius: float | None = None


class Device(Protocol):
    """The four verbs, and tidying up."""

    @property
    def name(self) -> str:
        """As on the command line: host, qemu, emulator:NAME, adb:SERIAL."""

    def push(self, local: Path, remote: str) -> None:
        """Copies a file or a folder to the device.  All or nothing: `remote` is never seen half written."""

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        """Runs a program in the device's folder; after `timeout` seconds it is killed, children included."""

    def pull(self, remote: str, local: Path, at_most: int = MAX_MESSAGE_BYTES) -> None:
        """Copies a file or a folder from the device.  All or nothing, as `push`; nothing above `at_most` bytes."""

    def remove(self, remote: str) -> None:
        """Deletes a file or a folder on the device; it may be absent already."""

    def describe(self) -> DeviceDescription:
        """What the device is and how it is doing now."""

    def close(self) -> None:
        """Deletes the device's folder and lets go of what was started to reach it."""


def check_size(device: str, remote: str, size: int, at_most: int) -> None:
    """`DeviceError` if something to be pulled is larger than whoever wants it can use."""
    if size > at_most:
        raise DeviceError(
            FailureReason.CORRUPT, f"{device}: pull: {remote!r} has {size} bytes; expected at most {at_most}"
        )


def remote_name(remote: str) -> str:
    """`remote` if it names something inside the device's folder, otherwise ValueError."""
    path = PurePosixPath(remote)
    if not remote or path.is_absolute() or ".." in path.parts or path == PurePosixPath() or "\n" in remote:
        raise ValueError(
            f"remote name {remote!r}: expected a name inside the device's folder, such as 'bundle/runner'"
        )
    return str(path)
