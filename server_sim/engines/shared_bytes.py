"""Memory that the server and a worker process both see: what is written there need not go through a pipe.

It is a file without a name, so it is gone with the last process that has it, however that ends.  Its size is sealed: a
worker that cuts it off would end the server, which reads there.  Pages that nobody wrote to take no memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from ondevice.contract.safetensors_file import Array
from ondevice.contract.wire import MAX_MESSAGE_BYTES


class SharedBytes:
    """One end writes, then says in its own way how many bytes there are; the other reads them."""

    def __init__(self, file: int | None = None) -> None:
        self._file = _nameless_file() if file is None else file
        self._map = mmap.mmap(self._file, MAX_MESSAGE_BYTES)

    def __reduce__(self) -> tuple[Callable[..., SharedBytes], tuple[object]]:
        """To a process that is being started: the same memory."""
        return _of_another_process, (reduction.DupFd(self._file),)

    def write(self, content: bytes | Array) -> int:
        """How many bytes it has now."""
        view = memoryview(content if isinstance(content, bytes) else content.data).cast("B")
        if len(view) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(view)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
        self._map[: len(view)] = view
        return len(view)

    def read(self, size: int) -> memoryview:
        """The first bytes, where they lie: they are what the other end wrote until it writes again."""
        if not 0 <= size <= MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
        return memoryview(self._map)[:size]

    def close(self) -> None:
        if not self._map.closed:
            self._map.close()
            os.close(self._file)


def _nameless_file() -> int:
    if not hasattr(os, "memfd_create"):  # not Linux
        with tempfile.TemporaryFile() as on_disk:
            os.ftruncate(on_disk.fileno(), MAX_MESSAGE_BYTES)
            return os.dup(on_disk.fileno())
    file = os.memfd_create("fedss", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, MAX_MESSAGE_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file


def _of_another_process(duplicate: Any) -> SharedBytes:
    return SharedBytes(duplicate.detach())
