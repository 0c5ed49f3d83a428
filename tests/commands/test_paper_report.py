"""`fedss report --paper`: the papers' figures stand in one file, and our rows beside those of the same name."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path

import pytest

import fedss
from fedss.reporting.paper_sections import PaperRow, PaperTable, order_kept, paper_tables
from server_sim.experiment import experiment_names, load_experiment
from server_sim.runs.tables import TableCell, table_runs

RESULTS = Path(__file__).parents[2] / "results"


def cell(label: str, mean: float, num_negatives: int | None = None) -> TableCell:
    return TableCell(label, num_negatives, 3, mean, 0.0, 1.0, 0.1, 0.0, 0.0)


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
    rows = [
        (PaperRow("a", 50.0, 1.0), cell("a", 0.2)),
        (PaperRow("b", 51.5, 1.0), cell("b", 0.1)),
        (PaperRow("c", 60.0), cell("c", 0.3)),
    ]
    # a and b are within their deviations; c is above both here too.
    assert order_kept(rows) == (2, 2)
    assert order_kept([rows[2], (rows[0][0], cell("a", 0.4))]) == (0, 1)


@pytest.mark.parametrize("table", paper_tables(), ids=lambda table: table.name)
def test_the_runs_of_an_experiment_of_a_tables_name_are_rows_of_it(table: PaperTable) -> None:
    labels = {(label, row.num_negatives) for row in table.rows for label in (row.label, row.also)}
    for name in {table.name, f"{table.name}-small"} & {*experiment_names()} & {*table.experiments}:
        planned = {(run.label, run.num_negatives) for run in table_runs(load_experiment(name))}
        assert planned <= labels, name
