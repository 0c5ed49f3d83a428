"""Arrays that rounds touch here and there, on huge pages where the system has them.

The processor knows the places of a few thousand pages by heart.  A row somewhere in a large table, on pages of 4 kB, costs a
trip to memory to find its page and another one for the row; with pages of 2 MB the first is hardly ever made.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20
_WORTHWHILE = 1 << 20
"""Bytes: what is smaller is left on small pages, of which the processor knows enough."""


def large_array(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros, of pages that come with their first use.  It begins with a line of the processor's cache if it is large."""
    wanted = np.dtype(dtype)
    num_bytes = int(np.prod(shape)) * wanted.itemsize
    if num_bytes < _WORTHWHILE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, wanted)
    room = mmap.mmap(-1, num_bytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A system may have been built without them.
    with suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    # Only whole huge pages are: the first begins where such a page does.
    first = -np.frombuffer(room, np.uint8).ctypes.data % _HUGE_PAGE
    return np.frombuffer(room, wanted, int(np.prod(shape)), first).reshape(shape)
