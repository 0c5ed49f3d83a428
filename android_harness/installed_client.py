"""A client as it lies on a device: its bundle and an artifact, pushed, and its verbs run there.

Whoever trains on a device and whoever measures there start from this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from android_harness.bundle import Bundle
from android_harness.device import Device, DeviceError, FailureReason, RunResult

BUNDLE, ARTIFACT = "bundle", "artifact"

_BAD_FILE = 3  # the client's exit code for a file that it cannot use


class InstalledClient:
    """The program of `bundle` beside `artifact` in the device's folder; what was there under these names is replaced."""

    def __init__(self, device: Device, bundle: Bundle, artifact: Path, timeout: float) -> None:
        device.push(bundle.folder, BUNDLE)
        device.push(artifact, ARTIFACT)
        self._device = device
        self._command = bundle.command(BUNDLE)
        self._timeout = timeout

    def run(self, verb: str, options: Mapping[str, str | int]) -> RunResult:
        """Runs one of the client's verbs to its end; `DeviceError` unless it succeeds."""
        words = [str(word) for option in options.items() for word in option]
        result = self._device.run([*self._command, verb, *words], self._timeout)
        try:
            return result.expect_success(f"{self._device.name}: {verb}")
        except DeviceError as error:
            if result.exit_code == _BAD_FILE and error.reason is FailureReason.FAILED:
                raise DeviceError(FailureReason.CORRUPT, str(error)) from None
            raise
