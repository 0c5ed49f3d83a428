"""One page, complete in itself, of any number of runs, tables and measurements.

fedss.report("runs/first", out="report.html")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from android_harness.measuring.records import MeasurementRow, by_device, read_measurements
from android_harness.measuring.step_profile import PROFILES, StepProfile, read_profiles
from export.cost.timeline import MemoryTimeline, memory_timeline
from fedss.api.artifacts import program_calls
from fedss.api.errors import UsageError, WrongArgument
from fedss.api.measurements import RESULTS
from fedss.reporting.bench_memory import memory_section
from fedss.reporting.bench_profile import profile_section
from fedss.reporting.bench_sections import bench_headlines, bench_section
from fedss.reporting.page import Section, render_page, write_page
from fedss.reporting.paper_sections import paper_sections
from fedss.reporting.run_sections import run_headlines, run_sections, table_section
from ondevice.contract.artifact import MANIFEST, open_artifact
from server_sim.runs.records import (
    RunRecord,
    RunUnreadable,
    TableRecord,
    group_by_settings,
    is_run,
    read_run,
    read_table,
)


@dataclass(frozen=True)
class Report:
    """The page, and what went into it."""

    path: Path
    pictures: tuple[Path, ...]
    """The page's figures as PNG, beside it."""
    subtitle: str
    num_runs: int
    num_tables: int
    num_rows: int
    notes: tuple[str, ...]
    """What was left out, and why."""


def report(
    paths: str | Path | Iterable[str | Path], out: str | Path = "report.html", *, paper: bool = False
) -> Path:
    """Learning curves, communication, memory and time: one HTML file that needs nothing else, and PNGs beside it.

    paths  folders of runs, tables or measurements, or of many of them; results files of `bench`; artifacts
    paper  set the rows of tables beside those of the papers
    """
    sources = [paths] if isinstance(paths, str | Path) else paths
    return write_report([Path(source) for source in sources], Path(out), paper).path


def write_report(sources: Sequence[Path], out: Path, paper: bool = False) -> Report:
    """The page of everything that the sources hold; `paper` sets tables beside the papers'."""
    if out.suffix not in (".html", ".htm"):
        raise WrongArgument("out", f"is {out}; expected a name that ends in .html")
    material = collect(sources)
    sections = _sections(material, paper)
    page = render_page(
        title=_title(material),
        subtitle=_subtitle(material),
        headlines=[
            *run_headlines(group_by_settings(material.runs)),
            *bench_headlines(by_device(material.rows)),
        ],
        sections=sections,
        footer=f"Made by fedss report {version('fedss-mobile')}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    )
    return Report(
        path=out,
        pictures=tuple(write_page(out, page, sections)),
        subtitle=_subtitle(material),
        num_runs=len(material.runs),
        num_tables=len(material.tables),
        num_rows=len(material.rows),
        notes=tuple(material.notes),
    )


@dataclass
class Material:
    """What the sources hold."""

    runs: list[RunRecord] = field(default_factory=list)
    tables: list[TableRecord] = field(default_factory=list)
    rows: list[MeasurementRow] = field(default_factory=list)
    profiles: list[StepProfile] = field(default_factory=list)
    timelines: dict[str, MemoryTimeline] = field(default_factory=dict)
    """By the artifact's folder."""
    notes: list[str] = field(default_factory=list)


def collect(sources: Sequence[Path]) -> Material:
    """Everything that the sources name.  A run named by itself must be readable; one found in a folder is left out, noted,
    when it has not finished a round: the folder may be at work."""
    material = Material()
    for source in dict.fromkeys(sources):
        if is_run(source):
            material.runs.append(read_run(source))
        elif source.is_file() and source.name == PROFILES:
            material.profiles += read_profiles(source)
        elif source.is_file():
            material.rows += read_measurements(source)
        elif (source / MANIFEST).is_file():
            opened = open_artifact(source)
            calls = program_calls(opened)
            material.timelines[str(source)] = memory_timeline(calls, opened.signature, opened.bounds)
        else:
            _collect_folder(source, material)
    return material


def _collect_folder(folder: Path, material: Material) -> None:
    tables = sorted(found.parent for found in folder.rglob("table.json"))
    runs = sorted(found.parent for found in folder.rglob("experiment.json"))
    results = sorted(folder.rglob(RESULTS))
    profiles = sorted(folder.rglob(PROFILES))
    if not (tables or runs or results or profiles):
        raise RunUnreadable(
            f"{folder} holds no run, table or {RESULTS}; name what fedss simulate, bench or export wrote"
        )
    material.profiles += [profile for path in profiles for profile in read_profiles(path)]
    material.tables += [read_table(path) for path in tables]
    material.rows += [row for path in results for row in read_measurements(path)]
    for path in runs:
        if (path / "metrics.jsonl").exists():
            material.runs.append(read_run(path))
        else:
            material.notes.append(f"{path} has not finished a round and is left out")


def _sections(material: Material, paper: bool) -> list[Section]:
    sections = []
    in_tables = set()
    for number, table in enumerate(material.tables, start=1):
        own = [run for run in material.runs if table.path in run.path.parents]
        in_tables |= {run.path for run in own if run.complete}
        title = "Results" if len(material.tables) == 1 else table.title
        sections.append(table_section(title, table, own, f"table-{number}"))
    if paper:
        beside = paper_sections(material.tables, material.runs)
        if not beside:
            raise UsageError(
                "no table among them is one that a paper has; --paper is for tables of the experiments that are named "
                "after one, such as fedss-table1-small"
            )
        sections += beside
    if material.runs:
        results_shown = in_tables == {run.path for run in material.runs}
        sections += run_sections(group_by_settings(material.runs), results_shown)
    sections += [
        bench_section(measured, number) for number, measured in enumerate(by_device(material.rows), start=1)
    ]
    sections += [
        profile_section(profile, number) for number, profile in enumerate(material.profiles, start=1)
    ]
    sections += [
        memory_section(folder, timeline, number)
        for number, (folder, timeline) in enumerate(material.timelines.items(), start=1)
    ]
    for note in material.notes:
        sections[0].note(note)
    return sections


def _title(material: Material) -> str:
    titles = [table.title for table in material.tables] or [run.experiment.title for run in material.runs]
    distinct = list(dict.fromkeys(titles))
    return distinct[0] if len(distinct) == 1 else "FedSS Mobile"


def _subtitle(material: Material) -> str:
    counts = [
        (len(material.tables), "table"),
        (len(material.runs), "run"),
        (len(material.rows), "measurement"),
        (len(material.profiles), "profile"),
        (len(material.timelines), "artifact"),
    ]
    return ", ".join(f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in counts if count)
