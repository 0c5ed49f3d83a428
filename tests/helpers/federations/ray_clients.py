"""Clients in Ray actors that misbehave in some rounds, and what they read from disk on machines that lack it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from helpers.federations.tiny_federation import TinyFederation
from ondevice.client.client import Client
from ondevice.contract.link import Ask
from ondevice.contract.vocabulary import RoundPlan
from server_sim.engines import OpenClients
from server_sim.engines.travelling_folder import TravellingFolder

HONEST, BUG, BAD_REQUEST, DIES, HANGS, HANGS_ON_ONE_NODE = range(6)
"""What client 1 does, by the number of the round."""
BAD_CLIENT = 1
PATIENCE = 600.0


class FaultyClients:
    """The tiny federation's clients; `folder` is where they and the test tell each other what happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> Callable[[int], FaultyClient]:
        federation = TinyFederation()
        return lambda client_id: FaultyClient(federation.client(client_id), self._folder)


class FaultyClient:
    def __init__(self, honest: Client, folder: Path) -> None:
        self._honest, self._folder = honest, folder

    def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
        fault = plan.round_index
        if fault == HANGS_ON_ONE_NODE:
            hangs = self._folder / "hangs"
            if os.getppid() == int((self._folder / "victim").read_text()):
                hangs.touch()
                time.sleep(PATIENCE)
            # The others' actors may be ready long before the victim's, and would leave it no client.
            while not hangs.exists():
                time.sleep(0.05)
        if self._honest.client_id == BAD_CLIENT:
            if fault == BUG:
                bug_of_ours()
            if fault == BAD_REQUEST:
                ask(b"nonsense")
            if fault == DIES:
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == HANGS:
                time.sleep(PATIENCE)
        return self._honest.converse(plan, ask)


def bug_of_ours() -> None:
    raise KeyError("a bug")


class ClientsWithData:
    """They read a folder that no other machine has under the server's path."""

    def __init__(self, folder: TravellingFolder, place: Path | None = None) -> None:
        self._folder, self._place = folder, place

    def folders(self) -> dict[str, TravellingFolder]:
        return {"population": self._folder}

    def at(self, places: Mapping[str, Path]) -> OpenClients:
        return ClientsWithData(self._folder, places["population"])

    def __call__(self) -> Callable[[int], Client]:
        assert self._place is not None
        assert (self._place / "client_images.npy").is_file()
        return TinyFederation().client

    def __reduce__(self) -> tuple[type[ClientsWithData], tuple[TravellingFolder]]:
        """As it arrives on another machine."""
        elsewhere = Path("/nowhere") / self._folder.path.name
        return ClientsWithData, (replace(self._folder, path=elsewhere),)
