"""What a program of this repository consists of: the modules that it imports, and those that they import.

Found by reading the sources, functions included, so that a bundle has a module the moment the client imports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_modules(entry: str, repository: Path) -> list[Path]:
    """The files of module `entry` and of all that it needs below `repository`, sorted."""
    found: set[Path] = set()
    waiting = [entry]
    while waiting:
        for path in _files(waiting.pop(), repository):
            if path not in found:
                found.add(path)
                waiting += _imports(path)
    return sorted(found)


def _files(module: str, repository: Path) -> Iterator[Path]:
    """The module's file and those of the packages around it; none for what is not ours."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = repository.joinpath(*parts[:depth])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(
                    f"{path}, line {node.lineno}: a relative import; expected the module's whole name"
                )
            # What is imported from a package may be a module of it.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
