"""Which exit code an error earns."""

from __future__ import annotations

from android_harness.bundles.bundle import BundleError
from android_harness.bundles.debian_packages import MissingPackage
from android_harness.bundles.wheels import WheelError
from android_harness.devices.device import DeviceError
from android_harness.measuring.records import MeasurementsUnreadable
from fedss.api.errors import CheckFailed, UsageError
from fedss.console import ExitCode
from fedss.device_rounds import DevicesExhausted
from ondevice.contract.artifact import ArtifactError
from ondevice.native.build import KernelBuildError
from ondevice.native.runtime.program import ProgramError
from ondevice.tools.registries import RegistryError
from ondevice.tools.step_process import StepProcessError
from server_sim.data.population_files import PopulationError
from server_sim.engines import EngineError
from server_sim.experiment import ConfigurationError
from server_sim.one_round import RoundAbandoned
from server_sim.runs.records import RunUnreadable
from server_sim.server.state import StateError


def exit_code_for(error: Exception) -> ExitCode:
    """Errors that a user can act on have a code and one line; anything else is a bug."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.BUG


_CODES: tuple[tuple[tuple[type[Exception], ...], ExitCode], ...] = (
    ((UsageError, ConfigurationError), ExitCode.USAGE),
    ((CheckFailed,), ExitCode.CHECK_FAILED),
    (
        (
            FileNotFoundError,
            ArtifactError,
            ProgramError,
            PopulationError,
            RegistryError,
            StateError,
            RunUnreadable,
            MeasurementsUnreadable,
            BundleError,
        ),
        ExitCode.BAD_DATA,
    ),
    # What a device, or the making of a program for one, stumbled over.
    (
        (
            RoundAbandoned,
            EngineError,
            DevicesExhausted,
            DeviceError,
            MissingPackage,
            WheelError,
            KernelBuildError,
            StepProcessError,
        ),
        ExitCode.DEVICE,
    ),
)
