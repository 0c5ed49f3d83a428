"""A state whose tables lie in files: a round costs what it touches, and is kept when `commit` returns.

    state.safetensors   φ, its moments, the round and the extent of the tables at the last checkpoint
    tables/T.records    the rows of table T, and
    tables/T.index      which they are (`server_sim.server.stores.mapped`)
    tables/journal      one record per round since the checkpoint: what φ, its moments and the touched rows have become

The order of a round: the rows are computed and staged; the journal has them, on the disk; then the files do, in the
system's cache.  A kill leaves the files anywhere between the checkpoint and now.  Playing the journal over them is right
wherever that is: a record holds values and no differences, and every row that changed since the checkpoint is in one.  A
record that was cut short is the round that was not.

A checkpoint is made when the journal is large enough to pay for it: the files are synced, φ and its moments are saved
whole, and only then is the journal cleared, which keeps its room on the disk.  A kill before that leaves records of rounds
that are saved already, and these are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.contract.files.whole_file import sync_folder
from ondevice.contract.safetensors_file import Array
from ondevice.contract.vocabulary import FloatArray, largest_entry
from server_sim.server.aggregation import AggregatedUpdate
from server_sim.server.journal import Journal, JournalDamaged
from server_sim.server.optimizers import ServerOptimizer
from server_sim.server.row_table import RowTable
from server_sim.server.state import ServerState, StateError
from server_sim.server.stores import STORES
from server_sim.server.stores.mapped import DiskFull, MappedStore, StoreDamaged
from server_sim.server.stores.new_table import NewTable

CHECKPOINT_BYTES = 256 << 20
"""A journal of this size is worth a checkpoint; what is played after a kill is hardly more."""


def new_state(
    optimizer: ServerOptimizer,
    dense: Mapping[str, FloatArray],
    tables: Mapping[str, NewTable],
    store: str,
) -> ServerState:
    """Round 0 on the store of that name; nothing is on the disk before `begin`."""
    rows = {name: RowTable(optimizer, STORES[store](table)) for name, table in tables.items()}
    in_files = any(isinstance(table.store, MappedStore) for table in rows.values())
    return (JournaledState if in_files else ServerState).of_tables(optimizer, dense, rows)


@dataclass
class JournaledState(ServerState):
    """Its tables are on mapped stores, all in one folder with the journal."""

    checkpoint_bytes: int = CHECKPOINT_BYTES
    _journal: Journal | None = field(default=None, init=False)
    _last_line: dict[str, Any] | None = field(default=None, init=False)

    def begin(self, path: Path) -> None:
        """New files, in place of any that a run left which was killed before it had a state."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for _, store in self._stores():
            store.create()
        self._journal = Journal(self._journal_path, new=True)
        sync_folder(self._folder)
        super().save(path)

    def apply(self, update: AggregatedUpdate) -> None:
        with _disk_full_told():
            super().apply(update)

    def adopt(self, weights: Mapping[str, FloatArray]) -> None:
        with _disk_full_told():
            super().adopt(weights)

    def commit(self, line: Mapping[str, Any]) -> None:
        """The round is on the disk on return, with its line; or StateError, and the disk has the rounds before it."""
        record = self._record()
        for part, values in record.items():
            if not np.isfinite(largest_entry(values)):
                raise StateError(
                    f"{part} holds NaN or infinity after round {self.round_index}; {self._journal_path} ends with the round "
                    "before: run it anew in another folder with a lower server.learning_rate or server.max_change"
                )
        record["line"] = np.frombuffer(json.dumps(dict(line)).encode(), np.uint8)
        try:
            self._open_journal.append(record)
        except OSError as error:
            raise StateError(
                f"{self._journal_path}: round {self.round_index - 1} cannot be kept ({error.strerror}); make room and go on "
                "with --resume: the run stands where its last round ended"
            ) from None
        for _, store in self._stores():
            store.publish()

    def is_due(self, save_every: int) -> bool:  # noqa: ARG002 - every round is kept
        return self._open_journal.size >= self.checkpoint_bytes

    def last_line(self) -> dict[str, Any] | None:
        return self._last_line

    def save(self, path: Path) -> None:
        """A checkpoint: costs the pages that were touched since the last one, and φ."""
        try:
            for _, store in self._stores():
                store.sync()
            super().save(path)
            self._open_journal.clear()
        except OSError as error:
            raise StateError(
                f"{path}: no checkpoint could be made ({error.strerror}); make room and go on with --resume: every round "
                "that has a line is kept"
            ) from None

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            for _, store in self._stores():
                store.close()

    @staticmethod
    def load(path: Path, fresh: ServerState) -> ServerState:
        """The checkpoint, and the journal played over it."""
        if not isinstance(fresh, JournaledState):
            raise TypeError(f"a {type(fresh).__name__} has no files to be read from")
        state = ServerState.load(path, fresh)
        assert state is fresh
        try:
            for name, store in fresh._stores():
                if store.extent[:2].tolist() != [store.num_rows, store.width]:
                    raise StateError(
                        f"{path}: {name} has {store.extent[0]} rows of {store.extent[1]} numbers; expected "
                        f"{store.num_rows} of {store.width}: it is of another model or population"
                    )
                store.open_files()
            fresh._journal = Journal(fresh._journal_path)
            for record in fresh._journal.replay():
                if record["round_index"][0] > fresh.round_index:
                    fresh._play(record, path)
            for _, store in fresh._stores():
                store.check(fresh.round_index)
        except FileNotFoundError as error:
            raise StateError(
                f"{error.filename} is missing, which {path} goes with; restore it, or start the run anew"
            ) from None
        except (StoreDamaged, JournalDamaged) as error:
            raise StateError(str(error)) from None
        return fresh

    def _record(self) -> dict[str, Array]:
        """What the round has made of the state."""
        record: dict[str, Array] = {"round_index": np.array([self.round_index], np.int64)}
        for name, store in self._stores():
            ids, rows, current_at = store.staged()
            record |= {f"{name}.ids": ids, f"{name}.current_at": current_at, f"{name}.records": rows}
        moments = {f"moment{index}": moment.flat for index, moment in enumerate(self.dense_moments)}
        return {**record, "dense": self.dense.flat, **moments}

    def _play(self, record: Mapping[str, Array], path: Path) -> None:
        shapes = {name: array.shape[1:] for name, array in self._record().items()}
        if {name: array.shape[1:] for name, array in record.items() if name != "line"} != shapes:
            raise JournalDamaged(
                f"{self._journal_path} does not go with {path}: it is of another model or optimizer"
            )
        self.dense.flat[...] = record["dense"]
        for index, moment in enumerate(self.dense_moments):
            moment.flat[...] = record[f"moment{index}"]
        for name, store in self._stores():
            store.stage(record[f"{name}.ids"], record[f"{name}.records"], record[f"{name}.current_at"])
            store.publish()
        self.round_index = int(record["round_index"][0])
        self._last_line = json.loads(record["line"].tobytes())

    def _stores(self) -> Iterator[tuple[str, MappedStore]]:
        for name, table in self.tables.items():
            assert isinstance(table.store, MappedStore)
            yield name, table.store

    @property
    def _folder(self) -> Path:
        return next(store.folder for _, store in self._stores())

    @property
    def _journal_path(self) -> Path:
        return self._folder / "journal"

    @property
    def _open_journal(self) -> Journal:
        if self._journal is None:
            raise ValueError("the state has no files yet: `begin` or `load` comes first")
        return self._journal


@contextmanager
def _disk_full_told() -> Iterator[None]:
    try:
        yield
    except DiskFull as error:
        raise StateError(str(error)) from None
