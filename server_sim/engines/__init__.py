"""Who holds a round's conversations, by name: in this process, in others, or wherever a new engine holds them.

Adding one is a file here and a line in `ENGINES`: a context that gives a `Link`.  Engines that hold several conversations at
once share one ordered window (`ondevice.contract.conversations.ordered_window`), so that every engine ends in the same
state.  Devices are an engine of `fedss`, which alone knows both them and the server; `mixture` puts two engines together.

An engine is imported when it is opened, not to know its name: some take seconds to import, or are not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from ondevice.contract.link import Conversing, Link

OpenClients = Callable[[], Callable[[int], Conversing]]
"""Makes the clients, by their ids, in the process that will run them: a worker calls it once, at its start."""

ENGINES = {
    "in-process": "server_sim.engines.in_process:open_in_process",
    "workers": "server_sim.engines.workers:open_workers",
    "ray": "server_sim.engines.ray_session:open_ray",
}
"""Name -> `module:callable`, which makes a context that gives a `Link` of `OpenClients` and `EngineSettings`."""

OPTIONAL = {"ray": ("ray", "cluster")}
"""Engine -> the package that it needs, and the extra of this project that brings it."""


class EngineError(RuntimeError):
    """The engine cannot hold conversations, whoever the client."""


class EngineNotInstalled(EngineError):
    """The engine is known, what it needs is not there."""


WITH_CLIENT_MEMORY = ("in-process", "workers")
"""Engines whose clients see the run's folder, where they keep what they remember between rounds (`client_memories`)."""


@dataclass(frozen=True)
class EngineSettings:
    """What every engine is told."""

    workers: int = 1
    """How many conversations to hold at once, where an engine can choose.  0: one per core of the cluster."""
    client_timeout: float = 600.0
    """Seconds that a client may take, where an engine can give one up."""
    address: str | None = None
    """HOST:PORT of the cluster, for an engine that has one; None: this machine alone."""
    note: Callable[[str], None] = lambda _: None
    """Told what a person should know, such as a machine that was lost."""


def check_installed(name: str) -> None:
    """`EngineNotInstalled` with the words that help, before anything is made or rendered."""
    package, extra = OPTIONAL.get(name, ("", ""))
    if package and find_spec(package) is None:
        raise EngineNotInstalled(
            f"it needs the package {package}, which is not installed: pip install 'fedss-mobile[{extra}]'"
        )


def open_engine(
    name: str, open_clients: OpenClients, settings: EngineSettings
) -> AbstractContextManager[Link]:
    check_installed(name)
    module, _, build = ENGINES[name].partition(":")
    opened: AbstractContextManager[Link] = getattr(import_module(module), build)(open_clients, settings)
    return opened
