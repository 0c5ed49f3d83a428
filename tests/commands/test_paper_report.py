"""`fedss report --paper`: the papers' figures stand in one file, and our rows beside those of the same name."""

from __future__ import annotations

import math
import re
import shutil
from html import unescape
from pathlib import Path

import pytest

import fedss
from fedss.reporting.paper_columns import PaperColumn, within_our_runs
from fedss.reporting.paper_sections import PaperTable, order_kept, paper_tables
from server_sim.experiment import experiment_names, load_experiment
from server_sim.runs.records import RunGroup, RunRecord, round_record
from server_sim.runs.tables import table_runs

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def table_1(tmp_path: Path) -> Path:
    """The committed rows, as a table's folder has them."""
    (tmp_path / "table").mkdir()
    shutil.copy(RESULTS / "glyphs-table1.json", tmp_path / "table/table.json")
    return tmp_path / "table"


def test_our_rows_stand_beside_the_papers(table_1: Path, tmp_path: Path) -> None:
    page = fedss.report(table_1, tmp_path / "page.html", paper=True).read_text()
    words = " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())
    assert "Beside Table 1 of FedSS" in words
    # The paper's 53.3 at |S_k| = 100, ours of the committed row with as many negatives; 5 negatives were not run.
    assert "FedSS 5 51.7 ± 0.4 FedSS 10 53.3 ± 0.6 58.6 ± 0.5" in words
    assert "PosOnly 43.1 ± 0.2 56.4 ± 0.7" in words


def test_without_paper_there_is_none_of_it(table_1: Path, tmp_path: Path) -> None:
    assert "Beside Table" not in fedss.report(table_1, tmp_path / "page.html").read_text()


def test_a_table_that_no_paper_has_is_refused(table_1: Path, tmp_path: Path) -> None:
    text = (table_1 / "table.json").read_text()
    (table_1 / "table.json").write_text(text.replace("glyphs-2028", "other data"))
    with pytest.raises(fedss.UsageError, match="no table among them is one that a paper has"):
        fedss.report(table_1, tmp_path / "page.html", paper=True)


def test_order_counts_the_pairs_that_the_paper_tells_apart() -> None:
    rows = [(50.0, 1.0, 0.2), (51.5, 1.0, 0.1), (60.0, 0.0, 0.3)]
    # The first two are within their deviations; the third is above both here too.
    assert order_kept(rows) == (2, 2)
    assert order_kept([rows[2], (50.0, 1.0, 0.4)]) == (0, 1)
    # Rounds that were not reached come behind all that were, and are not told apart from each other.
    assert order_kept([(165, 0, 4), (math.inf, 0, math.inf), (math.inf, 0, 20)]) == (2, 2)


@pytest.mark.parametrize("table", paper_tables(), ids=lambda table: table.name)
def test_the_runs_of_an_experiment_of_a_tables_name_are_rows_of_it(table: PaperTable) -> None:
    labels = {
        (label, negatives)
        for row in table.rows
        for label in (row.label, *row.also)
        for negatives in (row.num_negatives, row.also_negatives)
    }
    for name in {table.name, f"{table.name}-small"} & {*experiment_names()} & {*table.experiments}:
        planned = {
            (run.label, run.num_negatives)
            for run in table_runs(load_experiment(name))
            # Rounds to a share of the centralized accuracy are none of the centralized runs.
            if table.columns[0].kind != "reach" or run.experiment.scheme.sampler() is not None
        }
        assert planned <= labels, name


@pytest.mark.parametrize("table", paper_tables(), ids=lambda table: table.name)
def test_every_row_has_a_score_for_every_column_or_one_for_all(table: PaperTable) -> None:
    assert {len(row.scores) for row in table.rows} <= {1, len(table.columns)}


def group_of(label: str, curve: list[float], *settings: str) -> RunGroup:
    """A run with an evaluation after every round, each of two batches."""
    experiment = load_experiment("glyphs-tiny", ["client.batch_size=32", *settings])
    lines = [
        {
            "round": k,
            "mean_loss": 1.0,
            "num_updates": 4,
            "most_examples": 64,
            "bytes_down": 1,
            "bytes_up": 1,
            "top1": score,
        }
        for k, score in enumerate(curve)
    ]
    rounds = tuple(round_record(line, experiment) for line in lines)
    return RunGroup(label, (RunRecord(Path(label), experiment, {}, rounds, 60, complete=True),))


def test_a_budget_that_our_runs_do_not_reach_becomes_the_same_share_of_the_shortest() -> None:
    long, short = group_of("long", [0.1 * k for k in range(10)]), group_of("short", [0.05, 0.2, 0.3, 0.4])
    named = ("round 1000", "round 2500", "round 5000", "batch 10000", "batch 50000")
    columns = within_our_runs([PaperColumn.named(name) for name in named], [long, short])
    assert [column.at for column in columns] == [1, 2, 4, 2, 8]
    assert [column.score(short, [long, short]) for column in columns] == [
        (score, None) for score in (0.05, 0.2, 0.4, 0.05, 0.4)
    ]
    # Runs that are long enough are taken at the paper's own.
    kept = within_our_runs([PaperColumn("round", 2), PaperColumn("round", 4)], [long, short])
    assert [column.at for column in kept] == [2, 4]


def test_rounds_are_to_shares_of_the_centralized_run_of_the_same_model() -> None:
    pretrained, early = (f"model.pretrained={name}" for name in ("glyphs", "glyphs-early"))
    groups = [
        group_of("from trained weights", [0.1, 0.3, 0.5], pretrained),
        group_of("from early ones", [0.1, 0.15, 0.2], early),
        group_of("centralized", [0.8], pretrained, "scheme.name=centralized"),
        group_of("centralized from early ones", [0.3], early, "scheme.name=centralized"),
    ]
    half = PaperColumn.named("reach 50")
    assert [half.score(group, groups) for group in groups] == [(3, None), (2, None), None, None]
    assert half.score(groups[1], groups[:3]) is None
    assert (
        PaperColumn.named("reach 90").cell(PaperColumn.named("reach 90").score(groups[0], groups))
        == "not reached"
    )
