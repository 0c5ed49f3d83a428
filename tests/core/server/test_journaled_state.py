"""A state in files is the state in memory, row for row; a kill at any instant leaves it at the end of a round."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.federations.journaled_rounds import (
    content,
    contents_by_round,
    play,
    reopened,
    saved_at,
    small_state,
)

from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate
from server_sim.server.journal import Journal
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.state import ServerState, StateError
from server_sim.server.stores import mapped
from server_sim.server.stores.mapped import MappedStore
from server_sim.server.stores.new_table import NewTable


def begun(run: Path, rounds: int, optimizer: ServerOptimizer | None = None) -> ServerState:
    """A run of some rounds whose only checkpoint is its start."""
    state = small_state(run, "mapped", optimizer)
    state.begin(saved_at(run))
    for _ in range(rounds):
        play(state)
    return state


@pytest.mark.parametrize("optimizer", [FedAvg(), FedAvgM(), FedAdam()])
def test_it_is_the_state_in_memory_round_for_round_and_again_after_it_was_reopened(
    optimizer: ServerOptimizer, tmp_path: Path
) -> None:
    expected = contents_by_round(6, optimizer)
    state = begun(tmp_path, 0, optimizer)
    for round_index in range(6):
        assert content(state) == expected[round_index]
        play(state)
        if round_index == 2:
            state.save(saved_at(tmp_path))
        state = reopened(tmp_path, optimizer)
        assert state.round_index == round_index + 1
    assert content(state) == expected[6]


STRIDE = 37
"""Lines from one kill to the next, of some 700; every single one was tried with a stride of 1."""
DURABLE = {"journal.py", "journaled_state.py", "mapped.py", "whole_file.py", "state.py"}


def killed_at_line(run: Path, number: int) -> bool:
    """Two rounds with a checkpoint between them in a process of their own, which is killed at that line, counted as they are
    run, of the code that keeps them; whether it was."""
    child = os.fork()
    if not child:
        left = number

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if Path(frame.f_code.co_filename).name not in DURABLE:
                return None
            left -= event == "line"
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        state = reopened(run)
        sys.settrace(trace)
        play(state)
        state.save(saved_at(run))
        play(state)
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def test_killed_at_any_line_of_a_round_it_is_at_the_end_of_a_round(tmp_path: Path) -> None:
    expected = contents_by_round(5)
    start, run = tmp_path / "start", tmp_path / "run"
    begun(start, 2).close()
    found, number, before = set(), 1, 2
    while True:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(start, run)
        killed = killed_at_line(run, number)
        state = reopened(run)
        found.add(state.round_index)
        assert before <= state.round_index <= 4
        assert content(state) == expected[state.round_index]
        last = state.last_line()
        # Right after a checkpoint the line is in no journal: it was written before.
        assert last is None or last["round"] == state.round_index - 1
        before = state.round_index
        play(state)
        assert content(state) == expected[state.round_index]
        state.close()
        if not killed:
            break
        number += STRIDE
    assert found == {2, 3, 4}
    assert number > 100


def test_a_journal_cut_anywhere_is_whole_up_to_the_round_before(tmp_path: Path) -> None:
    expected = contents_by_round(3)
    run = tmp_path / "run"
    begun(run, 2).close()
    path = run / "tables/journal"
    two = path.stat().st_size
    state = reopened(run)
    play(state)
    state.close()
    whole = path.read_bytes()
    assert len(list(Journal(path).replay())) == 3
    for length in [*range(two, len(whole), 37), len(whole) - 1, len(whole)]:
        path.write_bytes(whole[:length])
        state = reopened(run)
        assert state.round_index == (3 if length == len(whole) else 2)
        assert content(state) == expected[state.round_index]
        state.close()


def test_records_are_written_over_old_ones_and_never_taken_for_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, new=True)
    for value in range(3):
        journal.append({"value": np.array([value])})
    length = path.stat().st_size
    journal.clear()
    assert list(Journal(path).replay()) == []
    journal.append({"value": np.array([3])})
    assert path.stat().st_size == length
    assert [int(record["value"][0]) for record in Journal(path).replay()] == [3]
    # The last one was cut short, and an old one stands right behind it.
    flipped(path, journal.size - 1)
    cut = Journal(path)
    assert list(cut.replay()) == []
    assert cut.ends_in_a_part()
    cut.append({"value": np.array([4])})
    assert [int(record["value"][0]) for record in Journal(path).replay()] == [4]


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "journal": (
        lambda run: flipped(run / "tables/journal", 500),
        "record 1 follows one that is not what was written",
    ),
    "records": (lambda run: flipped(run / "tables/columns.records", 40), r"columns\.records is damaged: row"),
    "moments": (lambda run: flipped(run / "tables/topics.records", 16), r"topics\.records is damaged: row"),
    "round of a row": (
        lambda run: flipped(run / "tables/columns.index", 9),
        r"columns\.records is damaged: row",
    ),
    "which row": (lambda run: flipped(run / "tables/columns.index", 1), "names rows that the table has not"),
    "a row twice": (lambda run: flipped(run / "tables/columns.index", 0), "damaged"),
    "shorter": (lambda run: os.truncate(run / "tables/topics.index", 24), "has 24 bytes; expected 168"),
    "gone": (lambda run: (run / "tables/topics.records").unlink(), "topics.records is missing"),
    "no journal": (lambda run: (run / "tables/journal").unlink(), "journal is missing"),
    "dense": (lambda run: flipped(saved_at(run), -1), "its content is not what was saved"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_it_was_saved_is_refused(damage: str, tmp_path: Path) -> None:
    state = begun(tmp_path, 2)
    state.save(saved_at(tmp_path))
    if damage == "journal":
        play(state)
        play(state)
    state.close()
    how, message = DAMAGES[damage]
    how(tmp_path)
    with pytest.raises(StateError, match=message):
        reopened(tmp_path)


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    begun(tmp_path, 1).close()
    with pytest.raises(StateError, match="of another optimizer or model"):
        reopened(tmp_path, FedAdam())


def test_a_spoilt_round_is_not_kept(tmp_path: Path) -> None:
    state = begun(tmp_path, 2)
    rows = AggregatedRows(np.array([3]), np.full((1, 5), np.inf, np.float32))
    none = AggregatedRows(np.empty(0, np.int64), np.empty((0, 3), np.float32))
    state.apply(AggregatedUpdate(state.dense, {"columns": rows, "topics": none}, 1, 0.0))
    with pytest.raises(StateError, match=r"columns\.records holds NaN or infinity after round 3"):
        state.commit({})
    state.close()
    assert content(reopened(tmp_path)) == contents_by_round(2)[2]


def test_a_full_disk_is_told_and_costs_nothing_that_was_kept(tmp_path: Path) -> None:
    """The journal meets a real limit of the system: the largest size of a file that this process may write."""
    state = begun(tmp_path, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "tables/journal").stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(StateError, match=r"round 2 cannot be kept \(File too large\); make room"):
            play(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    state.close()
    state = reopened(tmp_path)
    assert content(state) == contents_by_round(2)[2]
    play(state)
    assert content(state) == contents_by_round(3)[3]


def test_no_room_for_new_rows_is_told_before_anything_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = begun(tmp_path, 0)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(
            StateError, match=r"no room for .* more rows .* \(No space left on device\); make"
        ):
            play(state)
    state.close()
    assert content(reopened(tmp_path)) == contents_by_round(0)[0]


def test_pages_beyond_the_limit_are_given_back_and_the_rows_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mapped, "RESIDENT_BYTES", mapped.PAGE)
    state = begun(tmp_path, 5)
    assert content(state) == contents_by_round(5)[5]


def test_rows_that_nobody_touched_take_no_disk(tmp_path: Path) -> None:
    store = MappedStore(
        NewTable(
            10_000_000, 128, lambda ids: np.ones((len(ids), 128), np.float32), (0.0,), tmp_path / "large"
        )
    )
    store.create()
    ids = np.array([9_999_999, 0, 5_000_000])
    store.wrote(ids, store.open(ids))
    store.publish()
    store.sync()
    on_disk = sum(512 * path.stat().st_blocks for path in tmp_path.iterdir())
    assert on_disk < 6 << 20
