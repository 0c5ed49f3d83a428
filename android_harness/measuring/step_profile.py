"""A profile of a step: which operators of which layers its time or its instructions go to, kept as a line of a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from android_harness.measuring.client_profile import Unit
from android_harness.measuring.records import MeasurementsUnreadable

PROFILES = "profile.jsonl"


@dataclass(frozen=True)
class ProfileRow:
    """The calls of one operator in one layer and one direction, in one step."""

    layer: str
    operator: str
    backward: bool
    calls: int
    cost: float
    """In the profile's unit."""
    multiply_adds: int
    """0 for an operator that is neither a product nor a convolution."""
    elements: int
    """Of the largest tensor of each call, added up."""


@dataclass(frozen=True)
class StepProfile:
    """One step on one device."""

    runtime: str
    batch: int
    micro_batch: int
    image_size: int
    width: int
    threads: int
    unit: Unit
    peak: float
    """Multiply-adds per unit that the processor does at most."""
    outside: float
    """What the step costs outside its operators."""
    rows: tuple[ProfileRow, ...]
    device: str
    emulated: bool
    artifact_sha256: str

    @property
    def total(self) -> float:
        return self.outside + sum(row.cost for row in self.rows)

    def share(self, cost: float) -> float:
        """Of the step."""
        return cost / self.total if self.total else 0.0

    def of_peak(self, row: ProfileRow) -> float | None:
        """The part of the processor's peak that was reached; None for what has no multiply-adds."""
        return row.multiply_adds / (row.cost * self.peak) if row.multiply_adds and row.cost else None

    def grouped(self, name: Callable[[ProfileRow], tuple[str, str]]) -> list[ProfileRow]:
        """Rows added up by (layer, operator) as `name` says it, the costliest first."""
        groups: dict[tuple[str, str], list[ProfileRow]] = {}
        for row in self.rows:
            groups.setdefault(name(row), []).append(row)
        added = [
            ProfileRow(
                layer,
                operator,
                all(row.backward for row in own),
                *(sum(getattr(row, each) for row in own) for each in ("calls", "cost")),
                *(sum(getattr(row, each) for row in own) for each in ("multiply_adds", "elements")),
            )
            for (layer, operator), own in groups.items()
        ]
        return sorted(added, key=lambda row: -row.cost)

    def by_operator(self) -> list[ProfileRow]:
        return self.grouped(lambda row: ("", row.operator))

    def by_layer(self, depth: int) -> list[ProfileRow]:
        """Layers told apart by the first parts of their path."""
        return self.grouped(lambda row: (shortened(row.layer, depth), ""))


def shortened(layer: str, depth: int) -> str:
    """The first parts of a module's path: blocks.3.expand of blocks.3.expand.conv."""
    return ".".join(layer.split(".")[:depth])


def read_profiles(path: Path) -> list[StepProfile]:
    """Every line of a file; the newest of what was measured again."""
    newest: dict[tuple[Any, ...], StepProfile] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            profile = _profile(json.loads(line))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise MeasurementsUnreadable(
                f"{path}, line {number} is no profile of fedss bench ({error!r}); remove the line, or profile again"
            ) from None
        newest[profile.device, profile.artifact_sha256, profile.batch, profile.width, profile.threads] = (
            profile
        )
    if not newest:
        raise MeasurementsUnreadable(f"{path} is empty; fill it with fedss bench --profile")
    return list(newest.values())


def as_document(profile: StepProfile) -> dict[str, Any]:
    """With the shares, so that a reader of the JSON need not compute them."""
    rows = [
        {**asdict(row), "share": profile.share(row.cost), "of_peak": profile.of_peak(row)}
        for row in profile.rows
    ]
    return {**asdict(profile), "total": profile.total, "rows": rows}


def _profile(content: dict[str, Any]) -> StepProfile:
    unit = content["unit"]
    if unit not in ("nanoseconds", "instructions"):
        raise ValueError(f"unit is {str(unit)[:50]!r}")
    return StepProfile(
        runtime=str(content["runtime"]),
        **{name: int(content[name]) for name in ("batch", "micro_batch", "image_size", "width", "threads")},
        unit=cast(Unit, unit),
        peak=_amount(content["peak"]),
        outside=_amount(content["outside"]),
        rows=_rows(content["rows"]),
        device=str(content["device"]),
        emulated=bool(content["emulated"]),
        artifact_sha256=str(content["artifact_sha256"]),
    )


def _rows(rows: Sequence[dict[str, Any]]) -> tuple[ProfileRow, ...]:
    return tuple(
        ProfileRow(
            str(row["layer"]),
            str(row["operator"]),
            bool(row["backward"]),
            int(row["calls"]),
            _amount(row["cost"]),
            int(row["multiply_adds"]),
            int(row["elements"]),
        )
        for row in rows
    )


def _amount(value: Any) -> float:
    amount = float(value)
    if not (math.isfinite(amount) and amount >= 0):
        raise ValueError(f"{amount} where an amount is expected")
    return amount
