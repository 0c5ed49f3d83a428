"""Where rendered data, compiled programs and downloads are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_folder() -> Path:
    """`~/.cache/fedss`, or where XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedss"
