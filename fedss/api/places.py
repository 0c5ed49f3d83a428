"""Where the clients of a run train: on which runtime, in which processes, on which devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedss.api.callbacks import Note
from fedss.api.errors import UsageError, WrongArgument
from fedss.api.exported_step import EAGER, check_runtime
from ondevice.client.transforms import remember
from ondevice.contract.link import Link
from server_sim.engines import (
    ENGINES,
    WITH_CLIENT_MEMORY,
    EngineNotInstalled,
    EngineSettings,
    check_installed,
    open_engine,
)
from server_sim.experiment import Experiment
from server_sim.preparation import ClientsRecipe

if TYPE_CHECKING:
    from fedss.device_rounds import DeviceChoice

ON_DEVICES = "executorch"
"""The runtime of choice on devices: the fastest and smallest."""
ON_CLUSTERS = "ray"
"""The engine that has an address."""


@dataclass(frozen=True)
class Place:
    """Checked as it is made."""

    runtime: str
    workers: int
    """0: one per core of the cluster."""
    devices: DeviceChoice | None
    engine: str
    """Of the simulated clients."""
    address: str | None = None
    """Of a cluster that is there already."""

    def open_link(
        self, recipe: ClientsRecipe, client_timeout: float, cache: Path, note: Note
    ) -> AbstractContextManager[Link]:
        settings = EngineSettings(self.workers, client_timeout, self.address, note)
        if self.devices is None:
            return open_engine(self.engine, recipe, settings)
        from fedss.device_rounds import open_device_link

        beside = replace(settings, workers=min(self.workers, self.devices.simulated))
        simulated = partial(open_engine, self.engine, recipe, beside)
        return open_device_link(self.devices, recipe, cache, simulated, note)


def place_for(
    experiment: Experiment,
    workers: int,
    runtime: str | None,
    devices: DeviceChoice | Sequence[str],
    engine: str | None = None,
    address: str | None = None,
) -> Place:
    """What the arguments of `simulate` mean; an error for what cannot be, before anything is made or booted."""
    if workers < 0:
        raise WrongArgument("workers", f"is {workers}; expected 1 or more, or 0 for one per core")
    if address is not None:
        check_address(address, engine)
    elif not workers:
        workers = os.cpu_count() or 1
    if isinstance(devices, str):
        raise WrongArgument("devices", f"is {devices!r}; expected a list of names")
    if isinstance(devices, Sequence) and not devices:
        check_runtime(runtime or EAGER)
        chosen = check_engine(engine, workers)
        if chosen not in WITH_CLIENT_MEMORY:
            _check_no_memory(experiment, f"clients of the engine {chosen}")
        return Place(runtime or EAGER, workers, None, chosen, address)
    from fedss.device_rounds import DeviceChoice

    choice = devices if isinstance(devices, DeviceChoice) else DeviceChoice(tuple(devices))
    if experiment.scheme.sampler() is None:
        raise UsageError(
            f"scheme.name is {experiment.scheme.name}: there are no clients to train on devices; name no device"
        )
    _check_no_memory(experiment, "clients on devices")
    if address is not None:
        raise WrongArgument("address", "is for runs without devices; name either")
    check_runtime(runtime or ON_DEVICES)
    choice.check(experiment.server.clients_per_round, runtime or ON_DEVICES)
    return Place(runtime or ON_DEVICES, workers, choice, check_engine(engine or "workers", workers))


def _check_no_memory(experiment: Experiment, who: str) -> None:
    names = [transform.name for transform in experiment.client.transforms if remember([transform.choice])]
    if names:
        raise UsageError(
            f"client.transforms holds {', '.join(names)}, which remembers what was not sent; {who} have no memory that "
            f"lasts over rounds: simulate with the engine {' or '.join(WITH_CLIENT_MEMORY)}, or choose int8 or precision"
        )


def engine_names() -> list[str]:
    """What `engine` may be, those of other packages too."""
    return list(ENGINES)


def check_engine(name: str | None, workers: int) -> str:
    """The engine of that name; without one, worker processes where more than one is wanted."""
    chosen = name or ("workers" if workers > 1 else "in-process")
    if chosen not in ENGINES:
        raise WrongArgument("engine", f"is {chosen!r}; expected one of {', '.join(ENGINES)}")
    try:
        check_installed(chosen)
    except EngineNotInstalled as error:
        raise WrongArgument("engine", f"is {chosen!r}, but {error}") from None
    return chosen


def check_address(address: str, engine: str | None) -> None:
    """`WrongArgument` unless the engine has an address, and this could be one."""
    if engine != ON_CLUSTERS:
        raise WrongArgument(
            "address", f"is for the engine {ON_CLUSTERS}, not for {engine or 'the default one'}"
        )
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isascii() or not port.isdigit():
        raise WrongArgument("address", f"is {address!r}; expected HOST:PORT, as `ray start --head` prints it")
