"""Every figure in the tables of README and docs is one of the committed rows, rounded: nothing is typed from memory.

A table is claimed by a comparison here, or stands in `WITHOUT_MEASUREMENTS`: a new one that is neither fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Cells = list[str]
Row = dict[str, Any]

WITHOUT_MEASUREMENTS = {
    ("docs/architecture.md", "folder"),
    ("docs/data.md", "column"),
    ("docs/devices.md", "key"),
    ("docs/experiments.md", "field"),
    ("docs/extending.md", "what"),
}
"""Page and first heading of the tables that explain and measure nothing."""


def tables() -> dict[tuple[str, str], tuple[Cells, list[Cells]]]:
    """Header and rows of every Markdown table, by its page and first heading, which no two tables of a page share."""
    found: dict[tuple[str, str], tuple[Cells, list[Cells]]] = {}
    for page in PAGES:
        inside: list[Cells] | None = None
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]
            if not line.startswith("|"):
                inside = None
            elif inside is None:
                key = (page.relative_to(ROOT).as_posix(), cells[0])
                assert key not in found, f"two tables of {key[0]} start with {key[1]!r}: tell them apart"
                found[key] = (cells, inside := [])
            elif set(line) - set("|-: "):
                inside.append(cells)
    return found


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

METHODS = ["method", "¦N_k¦", "¦S_k¦", "% of n"]
ON_HOST = ["eager", "eager-channels-last", "executorch", "onnxruntime-stock", "onnxruntime"]
ON_HOST += ["onnxruntime-training", "executorch-stock"]


def method_rows(name: str) -> list[Cells]:
    expected = []
    for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
        sent = [row["bytes_down_per_client"], row["bytes_up_per_client"]]
        expected.append(
            [
                row["label"],
                str(row["num_negatives"] if row["num_negatives"] is not None else ""),
                f"{row['mean_width']:.0f}",
                f"{100 * row['width_share']:.1f}",
                f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
                *("" if not size else f"{size / 1000:.0f}" for size in sent),
            ]
        )
    return expected


def table_1() -> tuple[Cells, list[Cells]]:
    return [*METHODS, "top-1 (%)", "kB down", "kB up"], method_rows("glyphs-table1")


def table_2() -> tuple[Cells, list[Cells]]:
    # The first heading tells the two tables apart.
    header = ["method, retrieval", *METHODS[1:], "MAP@10 (%)", "kB down", "kB up"]
    return header, method_rows("glyphs-table2")


def table_1_in_short() -> tuple[Cells, list[Cells]]:
    wanted = ["FedSS 10", "FedSS 160", "NegOnly 160", "PosOnly", "FullSoftmax"]
    rows = {
        f"{label} {negatives}".strip(): [width, share, score]
        for label, negatives, width, share, score, *_ in method_rows("glyphs-table1")
    }
    header = ["method, negatives", "classes per client", "% of all classes", "top-1 (%)"]
    return header, [[name, *rows[name]] for name in wanted]


def servers_ratios() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            row["figure"],
            f"{row['ratio']:.2f}",
            f"at most {row['at_most']:.2f}" if "at_most" in row else f"at least {row['at_least']:.2f}",
        ]
        for row in json.loads((RESULTS / "federation.json").read_text())
    ]
    return ["figure", "ratio", "target"], rows


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
    sizes = [
        (96, 4, 1),
        (96, 4, 170),
        (96, 4, 1024),
        (224, 4, 170),
        (224, 4, 1024),
        (224, 1, 170),
        (224, 1, 1024),
    ]
    on_devices = [row for row in rows_of("bench-devices") if row["device"]["name"] == "emulator"]
    rows = []
    for size, micro_batch, width in sizes:
        wanted = {"image_size": size, "micro_batch": micro_batch, "width": width}
        cells = []
        for runtime in ("executorch", "onnxruntime"):
            there = matching(on_devices, runtime=runtime, batch=4, **wanted)
            here = host_rows(runtime=f"{runtime}-client", batch=4, **wanted)
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
    for width in (170, 1024):
        cells = []
        for runtime in runtimes:
            measured = matching(counted, runtime=runtime, width=width, batch=4, micro_batch=4, image_size=96)
            cells.append(f"{measured[0]['instructions_per_step'] / 1e6:,.0f}" if measured else "")
        rows.append([f"{width:,}", *cells])
    return ["million instructions: classes", *runtimes], rows


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
    "README.md": [table_1_in_short],
    "docs/architecture.md": [inputs_of_the_step],
    "docs/measurements.md": [
        table_1,
        table_2,
        servers_ratios,
        ratios_to_eager,
        peaks_on_the_host,
        large_batches,
        what_learns,
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


@pytest.mark.parametrize("heading", ["In this process", "With a device"])
def test_the_walk_of_a_class_id_is_counted_as_it_is_listed(heading: str) -> None:
    _, _, text = (ROOT / "docs" / "architecture.md").read_text().partition(f"\n### {heading}\n")
    text, _, _ = text.partition("\n### ")
    files = re.findall(r"^\d+\. `([^`]+)`", text, re.MULTILINE)
    assert all((ROOT / file).is_file() for file in files), files
    back = len(files) - len(set(files))
    assert f"\n{len(set(files))} files in {len(files) - 1} jumps, {back} of them back to a file" in text
