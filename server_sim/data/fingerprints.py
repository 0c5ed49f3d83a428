"""Size and hash of a file, and a memo of the files whose hash was found right, so that it is computed once."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

Memo = dict[str, list[int | str]]
"""File -> its size, its time and the hash that it was found to have."""


def fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def read_memo(path: Path) -> Memo:
    """What was verified before; a missing or unreadable memo only means verifying again."""
    try:
        memo = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return {}
    return memo if isinstance(memo, dict) else {}


def write_memo(path: Path, memo: Memo) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        json.dump(memo, file)
    os.replace(file.name, path)
