"""`fedss`: finds the verb and turns errors into exit codes.

A verb is a module of `fedss.commands` with a function `command`, or with an `app` of verbs of its own.  Only the one that
was asked for is imported, because torch alone takes seconds: the others lend the help page their first line, read as text.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import typer
from rich.text import Text

from fedss.console import ExitCode, UsageError, log

VERBS = (
    *("doctor", "data", "pretrain", "simulate", "report", "analyse", "demo"),
    *("export", "inspect", "bench"),
    *("devices", "emulator", "bundle"),
)


def main() -> None:
    """The console script."""
    try:
        build_app(
            asked=sys.argv[1] if len(sys.argv) > 1 else ""
        )()  # exits by itself: 0, or 2 for wrong usage
    except Exception as error:
        code = _exit_code(error)
        if code is ExitCode.BUG:
            raise  # a traceback is what a bug report needs; Python exits with 1
        log.print(Text("error:", "bold red"), str(error), soft_wrap=True)
        sys.exit(code)


def _exit_code(error: Exception) -> ExitCode:
    """Wrong usage is told at once; to know all other errors is to import everything."""
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    from fedss.errors import exit_code_for

    return exit_code_for(error)


def build_app(asked: str) -> typer.Typer:
    """All verbs by name, of which only `asked` can run."""
    app = typer.Typer(
        name="fedss",
        help="Train models with very many classes on phones, without any phone ever holding the classifier.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    for verb in VERBS:
        if verb != asked:
            app.command(verb, help=_first_line(verb))(_not_asked_for)
            continue
        module = import_module(f"fedss.commands.{verb}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            command: Callable[..., None] = module.command
            app.command(verb)(command)
    return app


def _first_line(verb: str) -> str:
    """What the verb's module says of itself, after its own name."""
    docstring = (
        ast.get_docstring(ast.parse(Path(__file__).parent.joinpath("commands", f"{verb}.py").read_text()))
        or ""
    )
    line = docstring.splitlines()[0].partition(": ")[2]
    return line[:1].upper() + line[1:]


def _not_asked_for() -> None:
    """Stands for a verb on the help page."""


if __name__ == "__main__":
    main()
