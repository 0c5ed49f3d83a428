"""One builder at a time for what the cache holds: two processes that need the same file must not both make it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def cache_lock(cache_dir: Path, what: str) -> Iterator[None]:
    """Waits until no other process builds `what`.  The lock goes with its holder, so a crash leaves none behind."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
