"""Freed memory stays with the process: a training step asks for the same few megabytes over and over.

Whenever a step frees what it held, glibc hands the top of its heap back to the system, and the next step gets the same pages
anew, zeroed, one fault at a time: some 4,000 faults, a sixth of the CPU time, per client of the glyphs experiments.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
"""Free bytes at the top of the heap that are kept; what is beyond goes back to the system."""
_OWN_MAPPING_BYTES = 32 << 20
"""Larger arrays have pages of their own and give them back as soon as they are freed; the most that glibc allows."""


def keep_freed_memory() -> None:
    """For the rest of this process; another C library than glibc is left as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
