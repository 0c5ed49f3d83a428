"""The border between a device and the run: whatever a device answers, the run sees an answer or a `DeviceError`.

A phone may be of any make, damaged or hostile.  Readers of its answers are written with care; should one of them stumble
all the same, that is the device's failure and costs its client, and never the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from android_harness.devices.device import Device, DeviceDescription, DeviceError, FailureReason, RunResult
from ondevice.contract.wire import MAX_MESSAGE_BYTES


class GuardedDevice:
    """`device`, with every error of its verbs turned into a `DeviceError`; that of a file missing *here* is ours."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def name(self) -> str:
        return self._device.name

    def push(self, local: Path, remote: str) -> None:
        if not local.exists():
            raise FileNotFoundError(f"push: {local} does not exist")
        with self._guard(f"push {remote}"):
            self._device.push(local, remote)

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        with self._guard(f"run {' '.join(argv)}"):
            return self._device.run(argv, timeout, env, stdin)

    def pull(self, remote: str, local: Path, at_most: int = MAX_MESSAGE_BYTES) -> None:
        with self._guard(f"pull {remote}"):
            self._device.pull(remote, local, at_most)

    def pull_message(self, remote: str, local: Path) -> bytes:
        """The content of a file on the device, which must be one file of at most `MAX_MESSAGE_BYTES`."""
        self.pull(remote, local)
        with self._guard(f"read {remote}"):
            # Looked at again here: what the device said of the size need not be true.
            if not local.is_file():
                raise ValueError("it is not a file")
            size = local.stat().st_size
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"it has {size} bytes; expected at most {MAX_MESSAGE_BYTES}")
            return local.read_bytes()

    def remove(self, remote: str) -> None:
        with self._guard(f"remove {remote}"):
            self._device.remove(remote)

    def describe(self) -> DeviceDescription:
        with self._guard("describe"):
            return self._device.describe()

    def close(self) -> None:
        with self._guard("close"):
            self._device.close()

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except DeviceError:
            raise
        except OSError as error:
            raise DeviceError(FailureReason.FAILED, f"{self.name}: {what}: {error}") from error
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise DeviceError(
                FailureReason.CORRUPT,
                f"{self.name}: {what}: an answer that makes no sense ({type(error).__name__}: {error})",
            ) from error
