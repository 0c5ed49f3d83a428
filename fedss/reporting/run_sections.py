"""The parts of a report that are about runs: results, learning, communication, faults, settings, how to run them again."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from fedss.reporting.page import Headline, Section
from fedss.reporting.run_charts import (
    bytes_chart,
    communication_chart,
    learning_chart,
    metric_name,
    table_chart,
)
from server_sim.metrics import METRICS
from server_sim.runs.records import RunGroup, RunRecord, TableRecord, flat_settings
from server_sim.runs.reproduction import reproduction_command, table_command
from server_sim.schemes import SCHEMES

MAX_COMMANDS = 4  # in plain sight; more are folded
MAX_REASONS = 12  # of dropped clients; the rest is in metrics.jsonl


def run_headlines(groups: Sequence[RunGroup]) -> list[Headline]:
    """Of the FedSS group with the best score; where there is none, of the best of all."""
    scored = [group for group in groups if group.scores]
    if not scored:
        return []
    sampled = [group for group in scored if group.first.experiment.scheme.name == "fedss"]
    best = max(sampled or scored, key=lambda group: statistics.fmean(group.scores))
    run = best.first
    headlines = [Headline(_percent(best.scores, sign="%"), f"{metric_name([best])} of {best.label}")]
    width = best.mean(lambda line: line.mean_width)
    if run.num_classes and width:
        headlines.append(
            Headline(
                f"{width / run.num_classes:.1%}",
                f"of {run.num_classes:,} classes held by a client: {width:.0f}",
            )
        )
    total = best.mean(lambda line: line.bytes_down + line.bytes_up)
    if total:
        words = "per client and round, down and up"
        if run.full_softmax_bytes:
            words += f"; {_size(run.full_softmax_bytes)} with all columns"
        headlines.append(Headline(_size(total), words))
    updates = sum(line.num_updates for group in groups for each in group.runs for line in each.rounds)
    if updates:
        dropped = sum(len(line.dropped) for group in groups for each in group.runs for line in each.rounds)
        headlines.append(Headline(f"{updates:,}", f"client updates in all runs; {dropped:,} clients dropped"))
    return headlines


def table_section(title: str, table: TableRecord, runs: Sequence[RunRecord], chart_name: str) -> Section:
    """A table as in the paper, and its figure."""
    section = Section(title)
    score_name = METRICS[runs[0].experiment.evaluation.metric].title if runs else "score"
    seeds = max(cell.num_seeds for cell in table.cells)
    section.table(
        ["method", "|N_k|", "|S_k|", "% of n", f"{score_name} (%)", "kB down", "kB up"],
        [
            [
                cell.label,
                "" if cell.num_negatives is None else str(cell.num_negatives),
                f"{cell.mean_width:.0f}",
                f"{100 * cell.width_share:.1f}",
                f"{100 * cell.mean:.1f}" + (f" ± {100 * cell.deviation:.1f}" if cell.num_seeds > 1 else ""),
                f"{cell.bytes_down_per_client / 1000:,.0f}" if cell.bytes_down_per_client else "",
                f"{cell.bytes_up_per_client / 1000:,.0f}" if cell.bytes_up_per_client else "",
            ]
            for cell in table.cells
        ],
    )
    section.words(
        (f"Mean and standard deviation over {seeds} seeds.  " if seeds > 1 else "One seed.  ")
        + "Bytes are per client and round."
    )
    section.chart(table_chart(table, score_name, chart_name))
    command = table_command([run.experiment for run in runs]) if runs else None
    if command:
        section.words("The whole table again:")
        section.commands(command)
    return section


def run_sections(groups: Sequence[RunGroup], results_shown: bool) -> list[Section]:
    """Everything about these runs; their results only where no table has shown them."""
    sections = [_learning(groups)] if results_shown else [_results(groups), _learning(groups)]
    if any(line.bytes_down for group in groups for line in group.first.rounds):
        sections.append(
            _communication([group for group in groups if group.mean(lambda line: line.bytes_down)])
        )
    return [*sections, _faults(groups), _settings(groups), _reproduction(groups)]


def _results(groups: Sequence[RunGroup]) -> Section:
    section = Section("Results")
    for group in groups:
        for run in group.runs:
            if not run.complete:
                section.note(
                    f"{run.path} was stopped after {len(run.rounds)} of {run.experiment.server.rounds} rounds; "
                    "what is shown of it is what it finished."
                )
    section.table(
        [
            "run",
            "seeds",
            "rounds",
            f"{metric_name(groups)} (%)",
            "loss",
            "|S_k|",
            "% of n",
            "kB down",
            "kB up",
        ],
        [
            [
                group.label,
                ", ".join(str(run.experiment.seed) for run in group.runs),
                str(min(len(run.rounds) for run in group.runs)),
                _percent(group.scores),
                f"{statistics.fmean(run.rounds[-1].mean_loss for run in group.runs):.3f}",
                *_width_cells(group),
                _kilobytes(group.mean(lambda line: line.bytes_down)),
                _kilobytes(group.mean(lambda line: line.bytes_up)),
            ]
            for group in groups
        ],
        num_words=2,
    )
    if any(len(group.runs) > 1 for group in groups):
        section.words("± is the standard deviation over the seeds.")
    return section


def _learning(groups: Sequence[RunGroup]) -> Section:
    section = Section("Learning")
    section.chart(learning_chart(groups))
    return section


def _communication(groups: Sequence[RunGroup]) -> Section:
    section = Section("Communication")
    section.chart(communication_chart(groups))
    section.chart(bytes_chart(groups))
    return section


def _faults(groups: Sequence[RunGroup]) -> Section:
    section = Section("Dropped clients")
    rows = []
    for group in groups:
        for run in group.runs:
            dropped = Counter(reason for line in run.rounds for reason in line.dropped.values())
            abandoned = Counter(reason for line in run.rounds for reason in line.abandoned)
            for kind, reasons in (("client dropped", dropped), ("round abandoned, tried again", abandoned)):
                rows += [
                    [f"{group.label}, seed {run.experiment.seed}", kind, reason, str(count)]
                    for reason, count in reasons.most_common()
                ]
    if not rows:
        section.words("No client was dropped and no round was abandoned.")
        return section
    rows.sort(key=lambda row: -int(row[3]))
    section.table(["run", "what", "reason", "times"], rows[:MAX_REASONS], num_words=3)
    if len(rows) > MAX_REASONS:
        section.words(f"{len(rows) - MAX_REASONS} more reasons are in the runs' metrics.jsonl.")
    return section


def _settings(groups: Sequence[RunGroup]) -> Section:
    section = Section("Settings")
    settings = [flat_settings(group.first.experiment) for group in groups]
    names = [
        name
        for name in dict.fromkeys(name for own in settings for name in own)
        if name not in ("seed", "title")
    ]
    # A scheme has settings that another one has not.
    differing = [
        name
        for name in names
        if any(name not in own or own[name] != settings[0].get(name) for own in settings)
    ]
    shared = [name for name in names if name not in differing]
    if differing:
        section.words("What differs between the runs:")
        section.table(
            ["setting", *(group.label for group in groups)],
            [[name, *(_value(own[name]) if name in own else "" for own in settings)] for name in differing],
            num_words=1 + len(groups),
            marked=range(len(differing)),
        )
    section.table(
        ["setting", "value"],
        [[name, _value(settings[0][name])] for name in shared],
        num_words=2,
        folded="What all runs share" if len(groups) > 1 else "All settings",
    )
    return section


def _reproduction(groups: Sequence[RunGroup]) -> Section:
    section = Section("Run it again")
    section.words(
        "Any number of workers gives the same bytes; other versions or processors may differ in the last digits."
    )
    commands = [
        f"# {group.label}, seed {run.experiment.seed}\n{reproduction_command(run.experiment)}"
        for group in groups
        for run in group.runs
    ]
    folded = f"The commands of all {len(commands)} runs" if len(commands) > MAX_COMMANDS else ""
    section.commands("\n\n".join(commands), folded=folded)
    versions = list(dict.fromkeys(tuple(run.versions.items()) for group in groups for run in group.runs))
    section.words("Versions:" if len(versions) == 1 else "The runs were made with different versions:")
    names = list(dict.fromkeys(name for own in versions for name, _ in own))
    section.table(
        ["", *(["version"] * len(versions))],
        [[name, *(dict(own).get(name, "") for own in versions)] for name in names],
        num_words=1 + len(versions),
    )
    return section


def _width_cells(group: RunGroup) -> list[str]:
    width, classes = group.mean(lambda line: line.mean_width), group.first.num_classes
    if not width:
        return ["", ""]
    return [f"{width:.0f}", "" if classes is None else f"{100 * width / classes:.1f}"]


def _percent(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{sign}{spread}"


def _kilobytes(size: float) -> str:
    return f"{size / 1000:,.0f}" if size else ""


def _size(size: float) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _value(value: object) -> str:
    if isinstance(value, str) and value in SCHEMES:
        return SCHEMES[value].label
    return "none" if value is None else str(value)
