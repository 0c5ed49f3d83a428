"""How every verb talks: one JSON object or a table on stdout, everything else on stderr, and documented exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedss.api.callbacks import Advance
from fedss.api.errors import CheckFailed, UsageError, WrongArgument

__all__ = [
    "INTERRUPTED",
    "CheckFailed",
    "ExitCode",
    "Json",
    "UsageError",
    "arguments_as_options",
    "log",
    "progress",
    "show_result",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; logs go to stderr.")]

log = Console(stderr=True, highlight=False, markup=False, emoji=False)
"""Progress, notes and errors: never part of a verb's result.  Text is text here and in results: what a client, an artifact
or a folder is called must not be taken for markup; whatever has a style is a `Text`, or is printed with `style=`."""


class ExitCode(IntEnum):
    """What the process tells the shell."""

    DONE = 0
    BUG = 1
    USAGE = 2
    """Wrong usage or configuration."""
    BAD_DATA = 3
    """A bad or missing artifact, data set or run."""
    DEVICE = 4
    """A device or a cluster failed, a program for a device cannot be built, or too few clients of a round were left."""
    CHECK_FAILED = 5
    """A check (parity, resume) failed."""


INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""


@contextmanager
def arguments_as_options(**options: str) -> Iterator[None]:
    """Who typed `--micro-batch 0` is told about --micro-batch; `options` has the names that differ from the argument's."""
    try:
        yield
    except WrongArgument as error:
        option = options.get(error.argument, error.argument).replace("_", "-")
        raise UsageError(f"--{option} {error.problem}") from error


def show_result(as_json: bool, payload: Mapping[str, Any], table: RenderableType) -> None:
    """A verb's result: machine-readable, or for people."""
    if as_json:
        json.dump(payload, sys.stdout)
        sys.stdout.write("\n")
    else:
        Console(highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """A progress bar on a terminal, from the first call on; elsewhere a plain line at every tenth of the way."""
    if log.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=log)
        task = bar.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            bar.start()
            bar.update(task, completed=done, total=total)

        try:
            yield show
        finally:
            bar.stop()
        return
    last_tenth = -1

    def plain_lines(done: int, total: int) -> None:
        nonlocal last_tenth
        tenth = 10 * done // max(total, 1)
        if tenth > last_tenth:
            last_tenth = tenth
            log.print(f"{title}: {done} of {total}")

    yield plain_lines
