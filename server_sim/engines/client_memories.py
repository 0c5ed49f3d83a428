"""What simulated clients remember between rounds (`ondevice.client.memory`): a folder per client, in the folder of the run.

Any process on this machine that holds a client's conversation finds its memory here.  The files follow the saved state: what
a round left that did not count is forgotten, and what no resumed run can ask for is deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ondevice.client.memory import FolderMemory


class ClientMemories:
    """Of all clients of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, client_id: int) -> FolderMemory:
        return FolderMemory(self._folder / str(client_id))

    def forget(self, round_index: int, client_ids: Iterable[int]) -> None:
        """These clients' updates of that round were not taken: they remember what they did before it."""
        for client_id in client_ids:
            self.of(client_id).forget(round_index)

    def cut_back(self, round_index: int) -> None:
        """The run goes on with this round: nothing of it, or after it, has been yet."""
        if round_index == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        for memory in self._all():
            for kept in memory.rounds():
                if kept >= round_index:
                    memory.forget(kept)

    def prune(self, round_index: int) -> None:
        """The state before this round is saved: of all earlier rounds, a client's last memory is enough."""
        for memory in self._all():
            for kept in [kept for kept in memory.rounds() if kept < round_index][:-1]:
                memory.forget(kept)

    def _all(self) -> Iterator[FolderMemory]:
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                yield FolderMemory(path)
