"""Where things are kept unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ondevice.tools.cache_folder import default_cache_folder

Cache = Annotated[
    Path,
    typer.Option(
        "--cache",
        help="Where rendered data, built programs and downloads are kept.",
        show_default="~/.cache/fedss",
    ),
]
DEFAULT_CACHE = default_cache_folder()
