"""Who holds a round's conversations, by name: in this process, in others, or wherever a new engine holds them.

Adding one is a file here and a line in `ENGINES`: a context that gives a `Link`.  Engines that hold several conversations at
once share one ordered window (`ondevice.contract.ordered_window`), so that every engine ends in the same state.  Devices are
an engine of `fedss`, which alone knows both them and the server; `mixture` puts two engines together.

An engine is imported when it is opened, not to know its name: some take seconds to import, or are not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module

from ondevice.contract.link import Conversing, Link

OpenClients = Callable[[], Callable[[int], Conversing]]
"""Makes the clients, by their ids, in the process that will run them: a worker calls it once, at its start."""

ENGINES = {
    "in-process": "server_sim.engines.in_process:open_in_process",
    "workers": "server_sim.engines.workers:open_workers",
}
"""Name -> `module:callable`, which makes a context that gives a `Link` of `OpenClients` and `EngineSettings`."""


@dataclass(frozen=True)
class EngineSettings:
    """What every engine is told."""

    workers: int = 1
    """How many conversations to hold at once, where an engine can choose."""
    client_timeout: float = 600.0
    """Seconds that a client may take, where an engine can give one up."""


def open_engine(
    name: str, open_clients: OpenClients, settings: EngineSettings
) -> AbstractContextManager[Link]:
    module, _, build = ENGINES[name].partition(":")
    opened: AbstractContextManager[Link] = getattr(import_module(module), build)(open_clients, settings)
    return opened
