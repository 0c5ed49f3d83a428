"""A report shows what the runs and measurements say, and nothing that they do not; bad input is one clear error."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from android_harness.measuring.records import MeasurementsUnreadable, by_device, read_measurements
from fedss.command_line import main
from fedss.reporting.bench_sections import bench_section
from server_sim.experiment import load_experiment
from server_sim.runs.records import RunUnreadable, group_by_settings, read_run

SETTINGS = {
    "model.embedding_dim": 32,
    "scheme.num_negatives": 10,
    "client.learning_rate": 0.05,
    "evaluation.every": 1,
}


def make_run(
    path: Path, *, scores: tuple[float, ...] = (0.1, 0.4), complete: bool = True, **settings: Any
) -> Path:
    """Writes a run as `fedss simulate` does; `client__epochs` is the field client.epochs."""
    changes = {field.replace("__", "."): value for field, value in settings.items()}
    as_in_all = load_experiment("glyphs-tiny").overridden(SETTINGS | {"server.rounds": len(scores)})
    experiment = as_in_all.overridden(changes)
    path.mkdir(parents=True)
    (path / "experiment.json").write_text(experiment.model_dump_json())
    (path / "versions.json").write_text('{"torch": "2.13.0+cpu"}')
    lines = [
        {
            "round": number,
            "mean_loss": 2.0 - score,
            "num_updates": 4,
            "mean_width": 20.0,
            "bytes_down": 4_000_000,
            "bytes_up": 4_400_000,
            "dropped": {"7": "timed out <b>& gone</b>"} if number == 1 else {},
            "abandoned": ["only 0 of 4 clients answered"] if number == 1 else [],
            "seconds": 0.5,
            "top1": score,
        }
        for number, score in enumerate(scores)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if complete:
        (path / "summary.json").write_text('{"num_classes": 60}')
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that is complete, and of one with another learning rate that was killed while it wrote its third round."""
    folder = tmp_path_factory.mktemp("page")
    title = "A <i>title</i>"
    complete = make_run(folder / "complete", scores=(0.1, 0.2, 0.4), title=title)
    stopped = make_run(
        folder / "stopped",
        scores=(0.1, 0.2, 0.3),
        complete=False,
        title=title,
        client__learning_rate=0.2,
        seed=3,
    )
    lines = (stopped / "metrics.jsonl").read_text()
    (stopped / "metrics.jsonl").write_text(lines[:-9])
    out = folder / "new" / "page.html"
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert report(monkeypatch, complete, stopped, "--out", out) == 0
    return out


def bench_row(**changes: Any) -> dict[str, Any]:
    sizes = {"batch": 4, "micro_batch": 4, "image_size": 96, "width": 170, "threads": 1}
    times = {"cpu_ms_p50": 40.0, "cpu_ms_p90": 44.0, "wall_ms_p50": 41.5, "wall_ms_p90": 45.5}
    rest = {"ratio_to_eager": 0.5, "peak_mb": 72.0, "load_ms": 90.0, "swap_ms": 3.0}
    where = {"device": {"name": "host", "model": "box", "emulated": False}, "artifact_sha256": "ab" * 32}
    return {"runtime": "executorch", **sizes, **times, **rest, **where, "time": "2026-01-01"} | changes


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def report(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fedss", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def words_of(page: str) -> str:
    """What a reader sees, as one line."""
    without_style = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", without_style)).split())


def test_the_page_is_complete_in_itself_and_its_pictures_lie_beside_it(page: Path) -> None:
    html = page.read_text()
    assert not re.search(r"<script|<link|@import|<img|url\((?!#)|(?:src|href)=\"(?!#)", html)
    assert html.count("<svg") == 3
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"page.html", "page-learning.png", "page-communication.png", "page-bytes.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in page.parent.glob("*.png"))


def test_what_the_run_says_is_on_the_page_and_cannot_become_markup(page: Path) -> None:
    html = page.read_text()
    words = words_of(html)
    for expected in (
        "40.0%",
        "33.3%",
        "1,000",
        "1,100",
        "A <i>title</i>",
        "timed out <b>& gone</b>",
        "2.13.0+cpu",
    ):
        assert expected in words
    assert "only 0 of 4 clients answered" in words
    assert "<b>& gone" not in html
    # 40 columns of 32 numbers of 4 bytes come on top of 1 MB down and 1.1 MB up with 20 columns, in both directions
    assert "2.10 MB per client and round" in words
    assert "2.11 MB with all columns" in words


def test_a_reason_that_no_file_can_hold_does_not_stop_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace("timed out", "half a pair: \\ud800"))
    assert report(monkeypatch, run, "--out", tmp_path / "page.html") == 0
    assert "half a pair" in (tmp_path / "page.html").read_text()


def test_a_stopped_run_is_shown_as_far_as_it_went(page: Path) -> None:
    words = words_of(page.read_text())
    assert "stopped was stopped after 2 of 3 rounds" in words
    assert "FedSS 10, learning_rate 0.2 3 2 20.0" in words, (
        "label, seed, rounds and score of what was finished"
    )


def test_differences_between_runs_are_marked(page: Path) -> None:
    marked = re.findall(
        r'<tr class="differs"><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td>', page.read_text()
    )
    assert marked == [("client.learning_rate", "0.05", "0.2")]


def test_settings_that_only_one_scheme_has_are_shown_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = [
        make_run(tmp_path / "positives", scheme__name="positives_only"),
        make_run(tmp_path / "fedss"),
    ]
    assert report(monkeypatch, *runs, "--out", tmp_path / "page.html") == 0
    marked = re.findall(
        r'<tr class="differs"><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td>',
        (tmp_path / "page.html").read_text(),
    )
    assert marked == [("scheme.name", "FedSS", "PosOnly"), ("scheme.num_negatives", "10", "")]


def test_seeds_become_one_line_and_other_settings_another(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed-{seed}", seed=seed) for seed in (1, 0)]
    runs.append(make_run(tmp_path / "fast", client__learning_rate=0.2))
    runs.append(make_run(tmp_path / "positives", scheme__name="positives_only"))
    groups = group_by_settings([read_run(path) for path in runs])
    assert [group.label for group in groups] == [
        "FedSS 10, learning_rate 0.05",
        "FedSS 10, learning_rate 0.2",
        "PosOnly",
    ]
    assert [run.experiment.seed for run in groups[0].runs] == [0, 1]


def test_the_full_softmax_carries_the_missing_columns_both_ways(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))  # 20 of 60 columns of 32 floats; 1 MB down, 1.1 MB up
    assert run.full_softmax_bytes == 2_100_000 + 2 * 40 * 32 * 4
    assert read_run(make_run(tmp_path / "stopped", complete=False)).full_softmax_bytes is None


def test_a_table_is_shown_with_its_means_and_its_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "table/fedss-10/seed-0")
    make_run(tmp_path / "table/fedss-10/seed-1", seed=1)
    (tmp_path / "table" / "posonly" / "seed-0").mkdir(parents=True)
    shutil.copy(
        tmp_path / "table/fedss-10/seed-0/experiment.json", tmp_path / "table/posonly/seed-0/experiment.json"
    )
    cell = {"label": "FedSS", "num_negatives": 10, "num_seeds": 2, "mean": 0.4321, "deviation": 0.0123}
    cell |= {
        "mean_width": 20.0,
        "width_share": 1 / 3,
        "bytes_down_per_client": 1e6,
        "bytes_up_per_client": 2e6,
    }
    (tmp_path / "table" / "table.json").write_text(json.dumps({"title": "Small table", "rows": [cell]}))
    out = tmp_path / "page.html"
    assert report(monkeypatch, tmp_path / "table", "--out", out, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    words = words_of(out.read_text())
    assert (answer["tables"], answer["runs"]) == (1, 2)
    assert "Small table" in words
    assert "43.2 ± 1.2" in words
    assert "posonly/seed-0 has not finished a round" in answer["notes"][0]
    assert answer["notes"][0] in words
    assert (tmp_path / "page-table-1.png").exists()


def test_emulated_and_physical_rows_never_share_a_figure_and_emulated_time_is_not_shown(
    tmp_path: Path,
) -> None:
    emulator = {"name": "emulator:phone", "emulated": True}
    path = write_rows(
        tmp_path / "results.jsonl",
        bench_row(),
        bench_row(width=1024, peak_mb=75.0),
        bench_row(device=emulator, wall_ms_p50=98765.4, cpu_ms_p50=87654.3, instructions_per_step=441e6),
    )
    physical, emulated = by_device(read_measurements(path))
    assert (physical.emulated, len(physical.rows), emulated.emulated, len(emulated.rows)) == (
        False,
        2,
        True,
        1,
    )
    shown = words_of("".join(bench_section(emulated, 2).html))
    assert "441" in shown
    assert "98,765" not in shown
    assert "87,654" not in shown
    assert "CPU" not in shown


def test_of_rows_that_measured_the_same_the_newest_counts(tmp_path: Path) -> None:
    rows = [bench_row(time=f"2026-01-0{day}", peak_mb=70.0 + day) for day in (1, 3, 2)]
    (measured,) = by_device(read_measurements(write_rows(tmp_path / "results.jsonl", *rows)))
    assert ([row.peak_mb for row in measured.rows], measured.num_superseded) == ([73.0], 2)


def test_every_size_that_was_varied_has_its_figure_with_eager_beside(tmp_path: Path) -> None:
    rows = [
        bench_row(runtime=runtime, batch=batch, micro_batch=batch if runtime == "eager" else 4, width=width)
        for runtime in ("eager", "executorch")
        for batch in (4, 32)
        for width in (7, 170)
    ]
    (measured,) = by_device(read_measurements(write_rows(tmp_path / "results.jsonl", *rows)))
    section = bench_section(measured, 1)
    charts = section.charts
    assert [chart.name for chart in charts] == ["bench-1-width", "bench-1-batch", "bench-1-classes"]
    assert all(">eager<" in chart.svg and ">executorch<" in chart.svg for chart in charts[:2])
    assert "wall ms p50" in words_of("".join(section.html))


def test_bad_input_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    fresh = make_run(tmp_path / "fresh")
    (fresh / "metrics.jsonl").unlink()
    damaged = make_run(tmp_path / "damaged")
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text(f"{lines[0][:-5]}\n{lines[1]}\n")
    mistakes = [
        (empty, "holds no run"),
        (tmp_path / "absent", "holds no run"),
        (fresh, "no finished round"),
        (damaged, "metrics.jsonl, line 1 is damaged"),
        (write_rows(tmp_path / "odd.jsonl", {"runtime": "executorch"}), "odd.jsonl, line 1 is not a row"),
        (write_rows(tmp_path / "none.jsonl"), "is empty"),
    ]
    for source, complaint in mistakes:
        assert report(monkeypatch, source, "--out", tmp_path / "page.html") == 3
        assert complaint in " ".join(capsys.readouterr().err.split())
    assert report(monkeypatch, fresh, "--out", tmp_path / "page.pdf") == 2
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("experiment.json", '{"title": "x", "scheme": {"name": "magic"}}'),
        ("experiment.json", '{"title": "x", "client": {"method": "fedss"}}'),
        ("experiment.json", "[]"),
        ("versions.json", "{"),
        ("metrics.jsonl", '{"round": 0}\n'),
        ("metrics.jsonl", '{"round": 1, "mean_loss": 1.0}\n'),
        ("metrics.jsonl", "\xff\n"),
    ],
)
def test_damaged_files_of_a_run_are_refused_by_name(tmp_path: Path, file: str, content: str) -> None:
    path = make_run(tmp_path / "run")
    (path / file).write_text(content, encoding="latin-1")
    with pytest.raises(RunUnreadable, match=file.replace(".", r"\.")):
        read_run(path)


def test_a_results_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementsUnreadable, match="does not exist"):
        read_measurements(tmp_path / "results.jsonl")
