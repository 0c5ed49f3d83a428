"""Memory that two processes see: what one writes the other reads, and neither can take it from the other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator

import numpy as np
import pytest

from ondevice.contract.wire import MAX_MESSAGE_BYTES
from server_sim.engines.shared_bytes import SharedBytes


@pytest.fixture
def shared() -> Iterator[SharedBytes]:
    memory = SharedBytes()
    yield memory
    memory.close()


def double_what_is_there(memory: SharedBytes, size: int) -> None:
    numbers = np.frombuffer(memory.read(size), np.float32)
    memory.write(2 * numbers)


def test_another_process_reads_and_writes_the_same_memory(shared: SharedBytes) -> None:
    numbers = np.arange(1000, dtype=np.float32)
    size = shared.write(numbers)
    assert size == numbers.nbytes
    worker = multiprocessing.get_context("spawn").Process(target=double_what_is_there, args=(shared, size))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    np.testing.assert_array_equal(np.frombuffer(bytes(shared.read(size)), np.float32), 2 * numbers)


def test_a_worker_cannot_cut_off_what_the_server_reads(shared: SharedBytes) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(shared._file, 0)


@pytest.mark.parametrize("size", [-1, MAX_MESSAGE_BYTES + 1, 2**63])
def test_a_size_that_no_message_has_is_refused(shared: SharedBytes, size: int) -> None:
    with pytest.raises(ValueError, match=f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES}"):
        shared.read(size)


def test_only_what_is_written_takes_memory(shared: SharedBytes) -> None:
    shared.write(bytes(3 << 20))
    assert os.fstat(shared._file).st_blocks * 512 < 4 << 20


def test_closing_twice_is_closing_once() -> None:
    memory = SharedBytes()
    memory.close()
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        memory.read(1)
