"""Every figure in the tables of README and docs is one of the committed rows, rounded: nothing is typed from memory.

A table is claimed by a comparison here, or stands in `WITHOUT_MEASUREMENTS`: a new one that is neither fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers.documented import accuracy, hashing, scopes
from helpers.documented.tables import Cells, tables

from benchmarks.networks import table as zoo_table
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"

Row = dict[str, Any]

WITHOUT_MEASUREMENTS = {
    ("docs/analyses.md", "analysis"),
    ("docs/architecture.md", "folder"),
    ("docs/cluster.md", "what"),
    ("docs/data.md", "column"),
    ("docs/devices.md", "key"),
    ("docs/experiments.md", "field"),
    ("docs/experiments.md", "partitioner"),
    ("docs/data.md", "data set"),
    ("docs/data.md", "name"),
    ("docs/data.md", "augmentation"),
    ("docs/experiments.md", "shipped experiment"),
    ("docs/experiments.md", "setting"),
    ("docs/experiments.md", "transform"),
    ("docs/extending.md", "what"),
    ("docs/models.md", "item"),
}
"""Page and first heading of the tables that explain and measure nothing."""


# ------------------------------------------------------------------ the committed rows


def rows_of(name: str) -> list[Row]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def matching(rows: Iterable[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def host_rows(**wanted: object) -> list[Row]:
    """Of artifacts in which everything learns, unless a row's artifact is wanted; one thread unless said otherwise."""
    wanted = {"width": 170, "threads": 1, **wanted}
    rows = matching(rows_of("bench-host"), **wanted)
    if "artifact_sha256" not in wanted:
        all_learns, *others = artifacts_by_scope()
        assert all_learns not in others
        rows = [row for row in rows if row["artifact_sha256"] not in others]
    return rows


def artifacts_by_scope() -> list[str]:
    """Of the artifacts at 224 px with micro-batch 4: all, last-two, head; results/README.md has them in this order."""
    rows = matching(rows_of("bench-host"), batch=4, micro_batch=4, image_size=224, runtime="eager")
    return list(dict.fromkeys(row["artifact_sha256"] for row in rows))


def figure(values: list[float], decimals: int = 0) -> str:
    """One value, or the range of what several runs gave."""
    ends = [f"{value:,.{decimals}f}" for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


# ------------------------------------------------------------------ what each table must say

ON_HOST = ["eager", "eager-channels-last", "executorch", "onnxruntime-stock", "onnxruntime"]
ON_HOST += ["onnxruntime-training", "executorch-stock"]


def servers_ratios() -> tuple[Cells, list[Cells]]:
    bounds = ("at_most", "at_least")
    rows = [
        [
            row["figure"],
            f"{row['ratio']:.2f}",
            "".join(f"{bound.replace('_', ' ')} {row[bound]:.2f}" for bound in bounds if bound in row),
        ]
        for row in json.loads((RESULTS / "federation.json").read_text())
    ]
    return ["figure", "ratio", "target"], rows


def large_table() -> tuple[Cells, list[Cells]]:
    rows = []
    for row in json.loads((RESULTS / "large-table.json").read_text()):
        shown = [
            f"{number:,}" if isinstance(number, int) else f"{number:.2f}"
            for number in (row["value"], row.get("at_most", ""))
            if number != ""
        ]
        rows.append([row["figure"].strip(), shown[0], f"at most {shown[1]}" if shown[1:] else ""])
    return ["a table larger than memory", "value", "target"], rows


def images_that_stay_files() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            row["figure"].strip(),
            f"{row['value']:,.2f}",
            f"at most {row['at_most']:.2f}" if "at_most" in row else "",
        ]
        for row in json.loads((RESULTS / "image-files.json").read_text())
    ]
    return ["images that stay files", "value", "target"], rows


def races() -> tuple[Cells, list[Cells]]:
    rows = [
        [row["work"], row["contender"], f"{row['ratio']:.2f}"]
        for row in json.loads((RESULTS / "race.json").read_text())
    ]
    return ["the same work", "by", "ratio"], rows


def workers() -> tuple[Cells, list[Cells]]:
    rows = []
    for row in json.loads((RESULTS / "workers.json").read_text()):
        middle = "{:.2f} to {:.2f}".format(*row["middle_half"])
        target = f"at least {row['at_least']:.2f}" if "at_least" in row else ""
        rows.append([row["figure"], f"{row['ratio']:.2f}", middle, f"{row['cpu_ratio']:.2f}", target])
    return ["updates per second", "ratio", "middle half of the turns", "CPU time", "target"], rows


def steps_of_two_revisions() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            row["size"],
            f"{row['ratio']:.2f}",
            f"{row['eager_ratio']:.2f}",
            f"{row['peak_mb']:.0f}",
            f"{row['against_peak_mb']:.0f}",
        ]
        for row in json.loads((RESULTS / "step-race.json").read_text())
    ]
    return ["step: batch x px", "time / version 1", "time / eager", "peak MB", "version 1, MB"], rows


def steps_on_the_host(heading: str, key: str, cell: Callable[[float], str]) -> tuple[Cells, list[Cells]]:
    """A column per runtime; empty where it was not measured."""
    rows = []
    for batch, size, threads in [(4, 96, 1), (32, 96, 1), (4, 224, 1), (4, 96, 2), (4, 224, 2)]:
        cells = []
        for runtime in ON_HOST:
            # The first: later rows repeat a contender beside another.
            measured = host_rows(
                runtime=runtime, batch=batch, micro_batch=batch, image_size=size, threads=threads
            )
            cells.append(cell(measured[0][key]) if measured else "")
        rows.append([f"{batch}, {size}, {threads}", *cells])
    return [f"{heading}: batch, px, threads", *ON_HOST], rows


def ratios_to_eager() -> tuple[Cells, list[Cells]]:
    return steps_on_the_host("ratio", "ratio_to_eager", lambda ratio: f"{ratio:.{0 if ratio >= 10 else 2}f}")


def peaks_on_the_host() -> tuple[Cells, list[Cells]]:
    return steps_on_the_host("peak MB", "peak_mb", lambda peak: f"{peak:,.0f}")


def steps_now() -> tuple[Cells, list[Cells]]:
    """Eager, and ExecuTorch from Python and in the native client: CPU time, wall time where two threads share it."""
    found = rows_of("bench-executorch")
    runtimes = ("eager", "executorch", "executorch-client")
    rows = []
    for eager, python, client in zip(
        *(matching(found, runtime=runtime) for runtime in runtimes), strict=True
    ):
        cells = [f"{eager['batch']}, {eager['image_size']}, {eager['threads']}"]
        clock = "cpu_ms_p50" if eager["threads"] == 1 else "wall_ms_p50"
        cells += [
            f"{python['ratio_to_eager']:.2f}",
            *(f"{row[clock]:.1f}" for row in (eager, python, client)),
        ]
        rows.append([*cells, *(f"{row['peak_mb']:.0f}" for row in (python, client))])
    header = ["step: batch, px, threads", "executorch / eager", "eager, ms", "executorch, ms", "client, ms"]
    return [*header, "executorch, MB", "client, MB"], rows


def large_batches() -> tuple[Cells, list[Cells]]:
    rows = []
    for runtime in ("eager", "executorch", "executorch-client", "onnxruntime", "onnxruntime-client"):
        for micro_batch in (32, 4, 1):
            measured = host_rows(runtime=runtime, batch=32, micro_batch=micro_batch, image_size=224)
            if measured:
                peaks, times = ([row[key] for row in measured] for key in ("peak_mb", "cpu_ms_p50"))
                rows.append([runtime, str(micro_batch), figure(peaks), figure(times)])
    return ["batch 32 at 224 px", "micro-batch", "peak MB", "CPU ms"], rows


def what_learns() -> tuple[Cells, list[Cells]]:
    runtimes = ["eager", "executorch", "onnxruntime", "executorch-client"]
    rows = []
    for scope, artifact in zip(["all", "last-two", "head"], artifacts_by_scope(), strict=True):
        cells = []
        for runtime in runtimes:
            row, *_ = host_rows(
                runtime=runtime, batch=4, micro_batch=4, image_size=224, artifact_sha256=artifact
            )
            cells.append(f"{row['cpu_ms_p50']:.0f} ms, {row['peak_mb']:.0f} MB")
        rows.append([scope, *cells])
    return ["`--train`", *runtimes], rows


def peaks_on_devices() -> tuple[Cells, list[Cells]]:
    sizes = [(96, 4, width) for width in (1, 170, 1024)]
    sizes += [(224, micro_batch, width) for micro_batch in (4, 1) for width in (170, 1024)]
    on_devices = [row for row in rows_of("bench-devices") if row["device"]["name"] == "emulator"]
    rows = []
    for size, micro_batch, width in sizes:
        wanted = {"image_size": size, "micro_batch": micro_batch, "width": width}
        cells = []
        for runtime in ("executorch", "onnxruntime"):
            there = matching(on_devices, runtime=runtime, batch=4, **wanted)
            now = matching(
                rows_of("bench-executorch"), runtime=f"{runtime}-client", batch=4, threads=1, **wanted
            )
            here = now or host_rows(runtime=f"{runtime}-client", batch=4, **wanted)
            large = host_rows(runtime=f"{runtime}-client", batch=32, **wanted)
            cells.append(f"{there[0]['peak_mb']:.1f}" if there else "")
            remark = "" if here else " (batch 32)"
            cells.append(f"{(here or large)[0]['peak_mb']:.1f}{remark}" if here or large else "")
        rows.append([f"{size}, {micro_batch}, {width:,}", *cells])
    header = ["peak MB: px, micro-batch, classes"]
    for runtime in ("executorch", "onnxruntime"):
        header += [f"{runtime}, emulated phone", f"{runtime}, host"]
    return header, rows


def instructions() -> tuple[Cells, list[Cells]]:
    runtimes = ["executorch", "onnxruntime", "executorch-stock"]
    counted = [row for row in rows_of("bench-devices") if row["device"]["name"] == "qemu"]
    rows = []
    for size, width in ((96, 170), (96, 1024), (224, 170)):
        cells = []
        for runtime in runtimes:
            measured = matching(
                counted, runtime=runtime, width=width, batch=4, micro_batch=4, image_size=size
            )
            cells.append(f"{measured[0]['instructions_per_step'] / 1e6:,.0f}" if measured else "")
        rows.append([f"{size}, {width:,}", *cells])
    return ["million instructions: px, classes", *runtimes], rows


def zoo_in_short() -> tuple[Cells, list[Cells]]:
    return zoo_table.summary(zoo_table.rows_of())


def zoo_by_network() -> tuple[Cells, list[Cells]]:
    return zoo_table.networks(zoo_table.rows_of())


def inputs_of_the_step() -> tuple[Cells, list[Cells]]:
    """Not measured, but as easily out of date."""
    spec = StepSpec("three_convolutions", embedding_dim=64, image_shape=(1, 32, 32))
    signature = TrainStep(spec, build_extractor(spec)).signature
    first, *_, last = signature.dense
    names = f"`{first.name}` ... `{last.name}` ({len(signature.dense)})"
    rows = [["dense", names, "float32, each its own", ""]]
    rows += [[spec.role, f"`{spec.name}`", spec.describe(), f"{spec.padding:g}"] for spec in signature.data]
    return ["role", "name", "type and shape", "padding"], rows


CLAIMS: dict[str, list[Callable[[], tuple[Cells, list[Cells]]]]] = {
    "README.md": [accuracy.table_1_in_short],
    "docs/architecture.md": [inputs_of_the_step],
    "docs/data.md": [accuracy.data_by_name],
    "docs/models.md": [zoo_in_short, zoo_by_network],
    "docs/measurements.md": [
        accuracy.table_1,
        accuracy.table_2,
        accuracy.table_1_on_icons,
        accuracy.table_1_on_more_icons,
        accuracy.visual_schemes,
        accuracy.accuracy_at_budgets,
        hashing.hashed_labels,
        hashing.hashed_labels_by_frequency,
        hashing.words_near,
        hashing.words_near_of_80k,
        hashing.within_a_budget,
        hashing.grid_of_fedadam,
        hashing.sums_over_samples,
        accuracy.saved_by_sampling,
        accuracy.fewer_bytes,
        servers_ratios,
        large_table,
        hashing.hash_tables,
        hashing.steps_over_labels,
        images_that_stay_files,
        races,
        workers,
        steps_now,
        steps_of_two_revisions,
        ratios_to_eager,
        peaks_on_the_host,
        large_batches,
        what_learns,
        scopes.scopes_on_mobilenet,
        scopes.scopes_on_glyphs,
        peaks_on_devices,
        instructions,
    ],
}


@pytest.mark.parametrize(("page", "claim"), [(page, claim) for page in CLAIMS for claim in CLAIMS[page]])
def test_a_table_is_what_the_committed_rows_say(
    page: str, claim: Callable[[], tuple[Cells, list[Cells]]]
) -> None:
    header, rows = claim()
    assert tables()[page, header[0]] == (header, rows)


def test_every_table_is_compared_or_measures_nothing() -> None:
    compared = {(page, claim()[0][0]) for page, claims in CLAIMS.items() for claim in claims}
    assert not compared & WITHOUT_MEASUREMENTS
    assert set(tables()) == compared | WITHOUT_MEASUREMENTS
