"""A population's folder in the cache, made on first use: its name carries a digest of the recipe, so a changed recipe never
meets old data."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server_sim.data.population import open_population


def made_once(cache: Path, name: str, recipe: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """The folder, written by `write` if it is not there yet, and verified.

    Several processes may call this at once: each writes a folder of its own, and the first to finish wins.
    """
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    directory = Path(cache) / f"{name}-{digest}"
    if not directory.exists():
        # Another process may be quicker, and its folder is as good.
        with contextlib.suppress(FileExistsError):
            write(directory)
    open_population(directory)
    return directory
