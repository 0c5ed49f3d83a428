"""The runs that an analysis looks at, each under the name that its table gives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedss.api.reports import Material, collect
from server_sim.runs.records import RunGroup, RunRecord, RunUnreadable, TableRecord, group_by_settings

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or tables, or of many of them.")
]


def labelled_groups(sources: Sequence[Path]) -> list[RunGroup]:
    """Runs that differ in the seed alone together, as the row of their table is labelled, or by what tells them apart."""
    material = collect(sources)
    if not material.runs:
        raise RunUnreadable(
            f"{', '.join(map(str, sources))}: no run among them; name folders of fedss simulate"
        )
    return [
        RunGroup(_label(group, material) or group.label, group.runs)
        for group in group_by_settings(material.runs)
    ]


def _label(group: RunGroup, material: Material) -> str | None:
    """A run's folder in its table's is called by its row."""
    for table in material.tables:
        if table.path in group.first.path.parents:
            return _row_label(group.first, table)
    return None


def _row_label(run: RunRecord, table: TableRecord) -> str | None:
    folder = run.path.relative_to(table.path).parts[0]
    for cell in table.cells:
        if cell.folder == folder:
            return cell.label if cell.num_negatives is None else f"{cell.label} {cell.num_negatives}"
    return None
