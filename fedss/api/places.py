"""Where the clients of a run train: on which runtime, in which processes, on which devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedss.api.callbacks import Note
from fedss.api.errors import UsageError, WrongArgument
from fedss.api.exported_step import EAGER, check_runtime
from ondevice.contract.link import Link
from server_sim.engines import ENGINES, EngineSettings, open_engine
from server_sim.experiment import Experiment
from server_sim.preparation import ClientsRecipe

if TYPE_CHECKING:
    from fedss.device_rounds import DeviceChoice

ON_DEVICES = "executorch"
"""The runtime of choice on devices: the fastest and smallest."""


@dataclass(frozen=True)
class Place:
    """Checked as it is made."""

    runtime: str
    workers: int
    devices: DeviceChoice | None
    engine: str
    """Of the simulated clients."""

    def open_link(
        self, recipe: ClientsRecipe, client_timeout: float, cache: Path, note: Note
    ) -> AbstractContextManager[Link]:
        if self.devices is None:
            return open_engine(self.engine, recipe, EngineSettings(self.workers, client_timeout))
        from fedss.device_rounds import open_device_link

        beside = EngineSettings(min(self.workers, self.devices.simulated), client_timeout)
        simulated = partial(open_engine, self.engine, recipe, beside)
        return open_device_link(self.devices, recipe, cache, simulated, note)


def place_for(
    experiment: Experiment,
    workers: int,
    runtime: str | None,
    devices: DeviceChoice | Sequence[str],
    engine: str | None = None,
) -> Place:
    """What the arguments of `simulate` mean; an error for what cannot be, before anything is made or booted."""
    if workers < 1:
        raise WrongArgument("workers", f"is {workers}; expected 1 or more")
    if isinstance(devices, str):
        raise WrongArgument("devices", f"is {devices!r}; expected a list of names")
    if isinstance(devices, Sequence) and not devices:
        check_runtime(runtime or EAGER)
        return Place(runtime or EAGER, workers, None, check_engine(engine, workers))
    from fedss.device_rounds import DeviceChoice

    choice = devices if isinstance(devices, DeviceChoice) else DeviceChoice(tuple(devices))
    if experiment.scheme.sampler() is None:
        raise UsageError(
            f"scheme.name is {experiment.scheme.name}: there are no clients to train on devices; name no device"
        )
    check_runtime(runtime or ON_DEVICES)
    choice.check(experiment.server.clients_per_round, runtime or ON_DEVICES)
    return Place(runtime or ON_DEVICES, workers, choice, check_engine(engine or "workers", workers))


def engine_names() -> list[str]:
    """What `engine` may be, those of other packages too."""
    return list(ENGINES)


def check_engine(name: str | None, workers: int) -> str:
    """The engine of that name; without one, worker processes where more than one is wanted."""
    chosen = name or ("workers" if workers > 1 else "in-process")
    if chosen not in ENGINES:
        raise WrongArgument("engine", f"is {chosen!r}; expected one of {', '.join(ENGINES)}")
    return chosen
