"""`fedss analyse NAME`: the papers' tables and figures of runs and models, each as a page, PNGs and JSON."""

from __future__ import annotations

import typer

from fedss.analyses import ANALYSES

app = typer.Typer(
    help="The papers' tables and figures of runs and models; learning curves are in `fedss report`.",
    no_args_is_help=True,
)
for _name, _command in ANALYSES.items():
    app.command(_name)(_command)
