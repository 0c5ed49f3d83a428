"""Runs as they are read again: checked records of the folders that `server_sim.runs.directory` writes; seeds of
one setting together.

A run that was stopped is a record too, of the rounds it finished.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from server_sim.experiment import Experiment, TransformSettings
from server_sim.metrics import METRICS
from server_sim.runs.tables import TableCell
from server_sim.schemes import SCHEMES

_BYTES_PER_NUMBER = {"fp32": 4, "fp16": 2, "bf16": 2}


class RunUnreadable(ValueError):
    """A folder that should hold a run or a table does not, or its files are damaged."""


@dataclass(frozen=True)
class RoundRecord:
    """One line of metrics.jsonl.  What a centralized run has not is 0 or empty."""

    round: int
    mean_loss: float
    score: float | None
    """Top-1 accuracy or MAP@R, where it was evaluated."""
    measures: dict[str, float]
    """Everything that the metric told with it, the score too; empty where it was not evaluated."""
    num_updates: int
    mean_width: float
    most_examples: int
    """Of the round's largest client; 0 in runs of version 1, which did not keep it."""
    bytes_down: float
    """Per client, as all bytes here."""
    bytes_up: float
    dropped: dict[str, str]
    """Client -> reason."""
    abandoned: tuple[str, ...]
    """The reason of every attempt at this round that was given up."""


@dataclass(frozen=True)
class RunRecord:
    """One run, at least one round of it."""

    path: Path
    experiment: Experiment
    versions: dict[str, str]
    rounds: tuple[RoundRecord, ...]
    num_classes: int | None
    """n; not known of a run that was stopped."""
    complete: bool

    @property
    def label(self) -> str:
        return self.experiment.scheme.title

    @property
    def score(self) -> float | None:
        """The last that was taken."""
        return next((line.score for line in reversed(self.rounds) if line.score is not None), None)

    def mean(self, figure: Callable[[RoundRecord], float]) -> float:
        """Of a figure over the rounds that had clients; 0 where none had."""
        return statistics.fmean([figure(line) for line in self.rounds if line.num_updates] or [0.0])

    @property
    def full_softmax_bytes(self) -> float | None:
        """What down and up would take per client and round if they carried all n columns: their numbers, without ids.
        None of a run without clients, or whose classes are no rows."""
        if self.num_classes is None or not self.mean(lambda line: line.mean_width):
            return None
        model = self.experiment.model
        both_ways = (self.experiment.server.slice_transforms, self.experiment.client.transforms)
        numbers = (model.embedding_dim + (model.logits == "dot")) * sum(map(_bytes_per_number, both_ways))
        missing = self.num_classes - self.mean(lambda line: line.mean_width)
        return self.mean(lambda line: line.bytes_down + line.bytes_up) + missing * numbers


@dataclass(frozen=True)
class RunGroup:
    """Runs of the same settings with different seeds: one line in a figure."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    def mean(self, figure: Callable[[RoundRecord], float]) -> float:
        return statistics.fmean(run.mean(figure) for run in self.runs)

    @property
    def scores(self) -> list[float]:
        return [run.score for run in self.runs if run.score is not None]


@dataclass(frozen=True)
class TableRecord:
    """The table.json of a table's folder."""

    path: Path
    title: str
    cells: tuple[TableCell, ...]


def is_run(path: Path) -> bool:
    return (path / "experiment.json").is_file()


def read_run(path: Path) -> RunRecord:
    """The run in a folder."""
    experiment = _read_experiment(path)
    lines = _read_lines(path / "metrics.jsonl")
    try:
        rounds = [round_record(line, experiment) for line in lines]
    except (KeyError, TypeError, ValueError) as error:
        raise RunUnreadable(
            f"{path / 'metrics.jsonl'}: a round's line is not as fedss simulate writes it ({error!r}); run it again"
        ) from None
    if not rounds:
        raise RunUnreadable(f"{path} has no finished round; run it further with fedss simulate --resume")
    if [line.round for line in rounds] != list(range(len(rounds))):
        raise RunUnreadable(
            f"{path / 'metrics.jsonl'} does not count its rounds 0, 1, 2, ...; "
            "resume the run, which cuts the file back to the saved state, or run it again"
        )
    summary = _read_object(path / "summary.json") if (path / "summary.json").exists() else {}
    return RunRecord(
        path=path,
        experiment=experiment,
        versions=_read_object(path / "versions.json"),
        rounds=tuple(rounds),
        num_classes=summary.get("num_classes"),
        complete=bool(summary),
    )


def read_table(path: Path) -> TableRecord:
    """The table in a folder; its runs are read one by one, with `read_run`."""
    file = path / "table.json"
    content = _read_object(file)
    names = {field.name for field in fields(TableCell)}
    rows = content.get("rows", [])
    if "title" not in content or not rows or any(set(row) != names for row in rows):
        raise RunUnreadable(
            f"{file} is not a table: expected a title and rows of {', '.join(sorted(names))}; make it again"
        )
    return TableRecord(path, content["title"], tuple(TableCell(**row) for row in rows))


def group_by_settings(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Runs that differ in nothing but the seed belong together; groups of one name are told apart by what differs."""
    members: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=_place):
        settings = run.experiment.model_dump(mode="json", exclude={"seed", "table", "title"})
        members.setdefault(json.dumps(settings), []).append(run)
    groups = [tuple(group) for group in members.values()]
    labels = [group[0].label for group in groups]
    return [
        RunGroup(
            label=label if labels.count(label) == 1 else f"{label}, {_difference(group[0], same_label)}",
            runs=group,
        )
        for group, label in zip(groups, labels, strict=True)
        for same_label in [[other[0] for other in groups if other[0].label == label]]
    ]


def _place(run: RunRecord) -> tuple[int, int, int]:
    scheme = run.experiment.scheme
    width = getattr(scheme, "num_negatives", 0)
    return list(SCHEMES).index(scheme.name), width, run.experiment.seed


def flat_settings(experiment: Experiment) -> dict[str, Any]:
    """Dotted field -> value, of everything but the table that the run may have come from."""
    flat = {}
    for name, value in experiment.model_dump(mode="json", exclude={"table"}).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": own for inner, own in value.items()})
        else:
            flat[name] = value
    return flat


def _difference(run: RunRecord, others: Sequence[RunRecord]) -> str:
    settings = [flat_settings(other.experiment) for other in others]
    own = flat_settings(run.experiment)
    differing = [
        name
        for name in own
        if name not in ("seed", "title") and any(other.get(name) != own[name] for other in settings)
    ]
    return ", ".join(f"{name.rpartition('.')[2]} {own[name]}" for name in differing)


def round_record(line: dict[str, Any], experiment: Experiment) -> RoundRecord:
    """A line as `Simulation` makes it and metrics.jsonl keeps it; KeyError, TypeError or ValueError for anything else."""
    updates = line.get("num_updates", 0)
    return RoundRecord(
        round=line["round"],
        mean_loss=float(line["mean_loss"]),
        score=line.get(experiment.evaluation.metric),
        measures={name: line[name] for name in METRICS[experiment.evaluation.metric].titles if name in line},
        num_updates=updates,
        mean_width=float(line.get("mean_width", 0)),
        most_examples=int(line.get("most_examples", 0)),
        bytes_down=line["bytes_down"] / updates if updates else 0.0,
        bytes_up=line["bytes_up"] / updates if updates else 0.0,
        dropped=dict(line.get("dropped", {})),
        abandoned=tuple(line.get("abandoned", ())),
    )


def _read_experiment(path: Path) -> Experiment:
    file = path / "experiment.json"
    if not file.is_file():
        raise RunUnreadable(
            f"{path} is not a run: it has no experiment.json; name a folder of fedss simulate"
        )
    try:
        return Experiment.model_validate(_read_object(file))
    except ValidationError as errors:
        fields_at_fault = ", ".join(".".join(map(str, error["loc"])) for error in errors.errors())
        raise RunUnreadable(
            f"{file} is not an experiment of this version ({fields_at_fault}); run it again"
        ) from None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a kill may have cut the last one short."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not text.endswith(b"\n"):
            break
        lines.append(_parse_object(text, f"{path}, line {number}"))
    return lines


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise RunUnreadable(f"{path} is missing; the run is not whole: run it again")
    return _parse_object(path.read_bytes(), str(path))


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RunUnreadable(f"{where} is damaged: {error}; restore the file, or run it again") from None
    if not isinstance(content, dict):
        raise RunUnreadable(f"{where} holds {text[:40]!r}, expected a JSON object; run it again")
    return content


def _bytes_per_number(transforms: Sequence[TransformSettings]) -> int:
    """What a weight takes on the wire after these transforms."""
    formats = [
        str(transform.choice.settings["format"]) for transform in transforms if transform.name == "precision"
    ]
    return _BYTES_PER_NUMBER[formats[-1] if formats else "fp32"]
