"""The `[table]` of an experiment: many runs of it, as in the papers' tables."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableRow(_Settings):
    """One scheme of a table; a run for every entry of `num_negatives` and every point of `vary`, or one run."""

    label: str
    num_negatives: tuple[int, ...] = ()
    override: dict[str, Any] = Field(
        default_factory=dict, description="Dotted fields of the experiment that differ."
    )
    vary: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict,
        description="Dotted fields with several values each: a run for every point of the grid.",
    )


class TableSettings(_Settings):
    seeds: tuple[int, ...] = Field((0, 1, 2), description="Every row is run with each of them.")
    rows: tuple[TableRow, ...] = Field(
        description="`label`, `num_negatives` (a list), `override` and `vary` (fields with lists: a grid) of each."
    )

    @field_validator("rows")
    @classmethod
    def _told_apart(cls, rows: tuple[TableRow, ...]) -> tuple[TableRow, ...]:
        """A label is the name of a folder too."""
        labels = [row.label.lower() for row in rows]
        wrong = [
            label for label in labels if labels.count(label) > 1 or "/" in label or not label.strip(" .")
        ]
        if wrong:
            raise ValueError(f"labels are {', '.join(labels)}; expected each once, without a slash")
        return rows
