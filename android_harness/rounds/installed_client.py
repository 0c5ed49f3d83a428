"""A client as it lies on a device: its bundle and an artifact, pushed, and its verbs run there.

Whoever trains on a device and whoever measures there start from this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from android_harness.bundles.bundle import Bundle
from android_harness.devices.device import Device, DeviceError, FailureReason, RunResult

BUNDLE, ARTIFACT = "bundle", "artifact"

_REASONS = {3: FailureReason.CORRUPT, 5: FailureReason.WRONG}
"""By the client's exit code: a file that it cannot use; a check that failed."""


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
            if error.reason is not FailureReason.FAILED or result.exit_code not in _REASONS:
                raise
            raise DeviceError(_REASONS[result.exit_code], str(error)) from None
