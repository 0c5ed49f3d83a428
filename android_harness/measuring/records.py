"""Measurements as they are read again from results files: checked rows, the newest of each, by device.

Rows of emulated and physical devices never share a `DeviceRows`: the time an emulator takes says nothing about a phone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class MeasurementsUnreadable(ValueError):
    """A results file is missing, empty or damaged."""


@dataclass(frozen=True)
class MeasurementRow:
    """One line of a results file: a runtime at one size on one device."""

    runtime: str
    batch: int
    micro_batch: int
    image_size: int
    width: int
    threads: int
    cpu_ms_p50: float | None
    cpu_ms_p90: float | None
    wall_ms_p50: float | None
    wall_ms_p90: float | None
    ratio_to_eager: float | None
    peak_mb: float | None
    load_ms: float | None
    swap_ms: float | None
    instructions_per_step: float | None
    """Of the guest, where the device is emulated."""
    device: str
    emulated: bool
    artifact_sha256: str
    time: str
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DeviceRows:
    """What was measured on one device."""

    device: str
    emulated: bool
    rows: tuple[MeasurementRow, ...]
    num_superseded: int
    """Older rows of the same artifact, runtime and sizes, which are not among `rows`."""


_SIZES = ("batch", "micro_batch", "image_size", "width", "threads")
_OPTIONAL = (
    *("cpu_ms_p50", "cpu_ms_p90", "wall_ms_p50", "wall_ms_p90", "ratio_to_eager"),
    *("peak_mb", "load_ms", "swap_ms", "instructions_per_step"),
)


def read_measurements(path: Path) -> list[MeasurementRow]:
    """Every row of a results file."""
    if not path.is_file():
        raise MeasurementsUnreadable(f"{path} does not exist; make it with fedss bench")
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(_row(json.loads(line)))
        except (KeyError, TypeError, ValueError) as error:
            raise MeasurementsUnreadable(
                f"{path}, line {number} is not a row of fedss bench ({error!r}); remove the line, or measure again"
            ) from None
    if not rows:
        raise MeasurementsUnreadable(f"{path} is empty; fill it with fedss bench")
    return rows


def by_device(rows: Sequence[MeasurementRow]) -> list[DeviceRows]:
    """Physical devices first; of rows that measured the same thing, the newest."""
    devices = dict.fromkeys((row.emulated, row.device) for row in rows)
    grouped = []
    for emulated, device in sorted(devices):
        own = [row for row in rows if (row.emulated, row.device) == (emulated, device)]
        newest: dict[tuple[Any, ...], MeasurementRow] = {}
        for row in sorted(own, key=lambda each: each.time):
            newest[row.artifact_sha256, row.runtime, *(getattr(row, name) for name in _SIZES)] = row
        grouped.append(DeviceRows(device, emulated, tuple(newest.values()), len(own) - len(newest)))
    return grouped


def _row(content: dict[str, Any]) -> MeasurementRow:
    described = content["device"]
    if isinstance(described, str):
        described = {"name": described}
    facts = [described.get("model"), described.get("abi")]
    words = ", ".join(str(fact) for fact in facts if fact and fact != described["name"])
    figures: dict[str, Any] = {name: int(content[name]) for name in _SIZES}
    figures |= {name: _number(content.get(name)) for name in _OPTIONAL}
    return MeasurementRow(
        runtime=str(content["runtime"]),
        **figures,
        device=described["name"] + (f" ({words})" if words else ""),
        emulated=bool(content.get("emulated", described.get("emulated", False))),
        artifact_sha256=str(content.get("artifact_sha256", "")),
        time=str(content.get("time", "")),
        versions=tuple(sorted(content.get("versions", {}).items())),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
