"""`fedss`: registers the verbs and turns errors into exit codes."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from fedss import (
    bench,
    bundle,
    data,
    demo,
    devices,
    doctor,
    emulator,
    export,
    inspect,
    pretrain,
    report,
    simulate,
)
from fedss.console import ExitCode, log
from fedss.errors import exit_code_for

app = typer.Typer(
    name="fedss",
    help="Train image models with very many classes on phones, without any phone ever holding the classifier.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


app.command("export")(export.command)
app.command("inspect")(inspect.command)
app.command("bench")(bench.command)
app.command("simulate")(simulate.command)
app.command("devices")(devices.command)
app.add_typer(emulator.app, name="emulator")
app.command("bundle")(bundle.command)
app.command("pretrain")(pretrain.command)
app.command("data")(data.command)
app.command("doctor")(doctor.command)
app.command("report")(report.command)
app.command("demo")(demo.command)


def main() -> None:
    """The console script."""
    try:
        app()  # exits by itself: 0, 2 for wrong usage, or the code of a typer.Exit
    except Exception as error:
        code = exit_code_for(error)
        if code is ExitCode.BUG:
            raise  # a traceback is what a bug report needs; Python exits with 1
        log.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(code)


if __name__ == "__main__":
    main()
