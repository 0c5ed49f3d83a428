"""`fedss`: registers the verbs and turns errors into exit codes."""

from __future__ import annotations

import sys

import click
import typer

from fedss import data, doctor, pretrain, simulate
from fedss.console import INTERRUPTED, ExitCode, log
from fedss.errors import exit_code_for

app = typer.Typer(
    name="fedss",
    help="Train image models with very many classes on phones, without any phone ever holding the classifier.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


app.command("simulate")(simulate.command)
app.command("pretrain")(pretrain.command)
app.command("data")(data.command)
app.command("doctor")(doctor.command)


def main() -> None:
    """The console script."""
    try:
        sys.exit(app(standalone_mode=False))  # the code of a typer.Exit, or None
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = exit_code_for(error)
        if code is ExitCode.BUG:
            raise  # a traceback is what a bug report needs; Python exits with 1
        log.print(f"[bold red]error:[/] {error}", markup=True)
        sys.exit(code)


if __name__ == "__main__":
    main()
