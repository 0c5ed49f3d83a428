"""Code of somebody else by its name: a network's builder, or a loss.  Nothing is imported before it is asked for.

package.module:NAME      a function or class of an installed package
path/to/file.py:NAME     the same of a file
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FORMS = "package.module:NAME or path/to/file.py:NAME"

_LARGEST_LIST = 5


class UnusableCode(ValueError):
    """Somebody's code that cannot be used as it is; the message says why and what to do."""


def check_code_name(what: str, name: str, forms: str = FORMS) -> None:
    """ValueError for what cannot be such a name, as far as can be told without importing any code."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        raise ValueError(f"{what} is {name!r}; expected {forms}")
    if source.endswith(".py") and not Path(source).is_file():
        raise ValueError(f"{what} is {name!r}, but there is no file {source} in {Path.cwd()}")


def named_code(what: str, name: str, forms: str = FORMS) -> Callable[..., Any]:
    """The function or class of that name."""
    source, _, attribute = name.rpartition(":")
    module = _file_module(Path(source)) if source.endswith(".py") else _package_module(what, name, forms)
    found = getattr(module, attribute, None)
    if not callable(found):
        callables = [name for name, value in vars(module).items() if callable(value)]
        raise UnusableCode(
            f"{what} is {name!r}, but {source} has no function {attribute!r}{nearest(attribute, callables)}"
        )
    return found  # type: ignore[no-any-return]


def source_sha256(name: str) -> str | None:
    """Of the file that the code stands in, where it is one."""
    source = name.rpartition(":")[0]
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source.endswith(".py") else None


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not known."""
    near = difflib.get_close_matches(name, known, _LARGEST_LIST)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _package_module(what: str, name: str, forms: str) -> ModuleType:
    try:
        return importlib.import_module(name.rpartition(":")[0])
    except ModuleNotFoundError as error:
        raise UnusableCode(
            f"{what} is {name!r}, but there is no module {error.name!r} here; expected {forms}"
        ) from error


def _file_module(path: Path) -> ModuleType:
    """Imported once per process, under a name of its own."""
    name = f"fedss_model_{path.resolve().as_posix().strip('/').replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UnusableCode(f"there is no file {path} in {Path.cwd()}")
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
