"""Every analysis, on one small table of real runs: what it says is what the runs say, by plain loops."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data.tiny_texts import import_tiny_chats
from helpers.federations.experiment_runs import TINY

import fedss
from fedss.analyses import ANALYSES
from fedss.analyses.gradient_noise import MeanDifference
from fedss.analyses.parameter_counts import extractor_parameters, head_share
from fedss.command_line import main
from ondevice.contract.safetensors_file import read_file
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.runs.records import read_run
from server_sim.runs.trained_model import open_trained

ROWS = """[
  {label="FedSS", num_negatives=[2, 10]},
  {label="NegOnly", num_negatives=[10], override={"scheme.name"="negatives_only"}},
  {label="FedAvg", override={"scheme.name"="full_softmax"}, vary={"client.learning_rate"=[0.01, 0.1]}},
  {label="Centralized", override={"scheme.name"="centralized"}},
]""".replace("\n", " ")


SAMPLED = ("fedss-2", "fedss-10", "negonly-10")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> fedss.Table:
    return fedss.simulate_table(
        "glyphs-tiny",
        rounds=3,
        overrides=[
            f"table={{seeds=[0], rows={ROWS}}}",
            "evaluation.every=1",
            "server.optimizer=fedavg",
            'data.partition={name="dirichlet", num_clients=10, concentration=5.0}',
        ],
        out=tmp_path_factory.mktemp("analyse") / "table",
    )


def analyse(
    capsys: pytest.CaptureFixture[str], out: Path, name: str, *arguments: object
) -> list[dict[str, Any]]:
    """The rows that the command prints; its page and pictures are there."""
    page = out / f"{name}.html"
    with pytest.MonkeyPatch.context() as patched:
        words = ["fedss", "analyse", name, *map(str, arguments), "--out", str(page), "--json"]
        patched.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    printed = json.loads(capsys.readouterr().out)
    assert page.read_text().count("<svg") == len(printed["pictures"]) == 1
    assert Path(printed["pictures"][0]).stat().st_size > 5_000
    rows: list[dict[str, Any]] = printed["rows"]
    return rows


def curve_of(table: fedss.Table, folder: str) -> list[tuple[int, float]]:
    return fedss.open_run(table.path / folder / "seed-0").curve


def test_points_of_a_grid_are_rows_of_their_own(table: fedss.Table) -> None:
    assert [(cell.label, cell.num_negatives) for cell in table.cells] == [
        ("FedSS", 2),
        ("FedSS", 10),
        ("NegOnly", 10),
        ("FedAvg, learning_rate 0.01", None),
        ("FedAvg, learning_rate 0.1", None),
        ("Centralized", None),
    ]
    assert [run.experiment.client.learning_rate for run in table.runs] == [0.05, 0.05, 0.05, 0.01, 0.1, 0.05]


def test_budgets(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = analyse(capsys, tmp_path, "budgets", table.path, "--rounds", "2,3", "--batches", "3,1000")
    own = {(row["budget"], row["at"]): row["mean"] for row in rows if row["label"] == "FedSS 10"}
    curve = dict(curve_of(table, "fedss-10"))
    assert own["round", 2] == curve[2]
    assert own["round", 3] == curve[3]
    # Ten clients of the same size: a round costs each of them as many batches.
    lines = (table.path / "fedss-10/seed-0/metrics.jsonl").read_text().splitlines()
    sizes = [json.loads(line)["most_examples"] for line in lines]
    batches = -(-sizes[0] // 32)
    assert sizes == [sizes[0]] * 3
    assert own["batch", 3] == curve[3 // batches]
    assert own["batch", 1000] is None


def test_rounds_to_accuracy(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = analyse(capsys, tmp_path, "rounds-to-accuracy", table.path, "--targets", "1,100")
    centralized = curve_of(table, "centralized")[-1][1]
    for row in rows:
        folder = row["label"].lower()
        folder = {name.replace("-", " "): name for name in SAMPLED}.get(folder, folder)
        reached = [
            rounds for rounds, score in curve_of(table, folder) if score / centralized >= row["target"] / 100
        ]
        assert row["rounds"] == (reached[0] if reached else None)


def test_skew(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = analyse(capsys, tmp_path, "skew", table.path)
    assert len(rows) == 5
    assert all(0 < row["emd"] <= 2 for row in rows)
    assert len({row["emd"] for row in rows}) == 1


def test_grid(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = analyse(capsys, tmp_path, "grid", table.path)
    best = max(curve_of(table, folder)[-1][1] for folder in SAMPLED)
    assert [(row["split"], row["effective_learning_rate"]) for row in rows] == [
        ("α = 5", rate) for rate in (0.01, 0.05, 0.1)
    ]
    assert rows[1]["mean"] == best


def test_partition_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats = import_tiny_chats(tmp_path)
    rows: dict[int, dict[str, dict[str, Any]]] = {}
    for num_negatives in (2, 40):
        changes = {**TINY, "data.population": str(chats), "scheme.num_negatives": num_negatives}
        run = fedss.simulate("chitchat-simhash", out=tmp_path / f"{num_negatives}", overrides=changes)
        found = analyse(capsys, tmp_path, "partition-sum", run.path, "--clients", "3")
        rows[num_negatives] = {row["found"]: row for row in found}
    # Whoever has all rows has the whole sum, and otherwise lacks the smallest terms.
    for row in rows[40].values():
        assert (row["low"], row["high"]) == (pytest.approx(1, rel=1e-5), pytest.approx(1, rel=1e-5))
    few = rows[2]
    assert few["as the run"]["high"] < 1
    assert few["exact inner products"]["mean"] < 1
    assert few["as the run"]["deviation"] < few["uniform"]["deviation"]
    assert few["as the run"]["mean"] < few["uniform"]["mean"] == pytest.approx(1, abs=0.2)


def test_head_parameters(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["label"]: row for row in analyse(capsys, tmp_path, "head-parameters", table.path)}
    assert rows["FedAvg, learning_rate 0.1"]["parameters"] == 60 * 64
    assert rows["FedSS 10"]["parameters"] == pytest.approx(64 * rows["FedSS 10"]["classes"])
    assert rows["Centralized"]["parameters"] is None


def test_parameter_budget(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["label"]: row for row in analyse(capsys, tmp_path, "parameter-budget", table.path)}
    arrays, _ = read_file(table.path / "fedss-10/seed-0/state.safetensors")
    dense = [array for name, array in arrays.items() if name.startswith("dense.")]
    layers = sum(array.size for array in dense if isinstance(array, np.ndarray))
    assert rows["FedSS 10"]["layers"] == layers
    assert rows["FedAvg, learning_rate 0.1"]["parameters"] == layers + 60 * 64
    assert rows["FedAvg, learning_rate 0.1"]["share"] == 1
    assert rows["FedSS 10"]["parameters"] == pytest.approx(layers + 64 * rows["FedSS 10"]["rows"])
    assert "Centralized" not in rows


def test_composition(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["label"]: row for row in analyse(capsys, tmp_path, "composition", table.path)}
    assert rows["NegOnly 10"]["negatives"] == 10
    width = read_run(table.path / "fedss-10/seed-0").mean(lambda line: line.mean_width)
    assert rows["FedSS 10"]["negatives"] == pytest.approx(width - 1)


def test_confusion(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [table.path / name / "seed-0" for name in ("fedss-10", "negonly-10")]
    rows = analyse(capsys, tmp_path, "confusion", *folders, "--client", 3)
    model = open_trained(read_run(folders[0]), default_cache_folder())
    examples = model.population.client_examples(3)
    classes = sorted(set(examples.labels.tolist()))
    columns = model.columns(np.array(classes))
    counts = np.zeros((len(classes), len(classes)))
    for embedding, label in zip(model.embeddings(examples), examples.labels.tolist(), strict=True):
        cosines = [float(embedding @ column) / float(np.linalg.norm(column)) for column in columns]
        counts[classes.index(label), int(np.argmax(cosines))] += 1
    np.testing.assert_allclose(rows[0]["matrix"], counts / counts.sum(axis=1, keepdims=True), atol=1e-4)


def test_gradient_noise(table: fedss.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = table.path / "fedss-10/seed-0"
    rows = analyse(
        capsys, tmp_path, "gradient-noise", folder, "--negatives", "1,20", "--batches", 2, "--clients", 3
    )
    assert rows[0]["noise"] > rows[1]["noise"] > 0


def test_with_all_classes_as_negatives_there_is_no_noise(table: fedss.Table) -> None:
    model = open_trained(read_run(table.path / "fedss-10/seed-0"), default_cache_folder())
    few, all_others = MeanDifference(model, num_clients=2).of_batch(0, [1, 60])
    assert few > 0.05
    assert all_others < 1e-4


def test_head_share_and_communication(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = analyse(capsys, tmp_path, "head-share", "--dims", "64", "--classes", "2028,11318")
    extractor = extractor_parameters("mobilenet_v3_large", 64)
    assert [row["share"] for row in shares] == [64 * n / (extractor + 64 * n) for n in (2028, 11_318)]
    rows = analyse(capsys, tmp_path, "communication")
    assert rows[0]["saving"] == pytest.approx(shares[1]["share"] * (1 - 100 / 11_318))


def test_the_papers_shares_fit_an_extractor_of_3_69_million() -> None:
    """Section 4.3: 16 % and 3.4 % at d = 64; 79 % and 38 % saved at d = 1,280."""
    assert round(head_share(3_690_000, 64, 11_318), 2) == 0.16
    assert round(head_share(3_690_000, 64, 2_028), 3) == 0.034
    assert round(head_share(3_690_000, 1_280, 11_318) * (1 - 100 / 11_318), 2) == 0.79
    assert round(head_share(3_690_000, 1_280, 2_028) * (1 - 170 / 2_028), 2) == 0.38


def test_every_analysis_is_tried_here() -> None:
    tried = Path(__file__).read_text()
    assert [name for name in ANALYSES if f'"{name}"' not in tried] == []


@pytest.mark.slow
def test_runs_side_by_side_are_those_of_one_after_the_other(table: fedss.Table, tmp_path: Path) -> None:
    experiment = table.experiment.overridden({"table.rows": [{"label": "FedSS", "num_negatives": [2, 10]}]})
    together = fedss.simulate_table(experiment, out=tmp_path / "table", parallel=2)
    alone = [cell for cell in table.cells if cell.label == "FedSS"]
    assert list(together.cells) == alone
    assert fedss.simulate_table(experiment, out=tmp_path / "table", parallel=2, resume=True) == together
    with pytest.raises(fedss.UsageError, match="parallel is 2"):
        fedss.simulate_table(experiment, out=tmp_path / "other", parallel=2, workers=2)


def test_what_cannot_be_compared_is_refused(table: fedss.Table, tmp_path: Path) -> None:
    def refused(*arguments: object) -> int:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "argv", ["fedss", "analyse", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0)

    run = table.path / "fedss-10/seed-0"
    assert refused("rounds-to-accuracy", run) == 2
    assert refused("confusion", run, "--client", 99) == 2
    assert refused("gradient-noise", run, "--negatives", "61") == 2
    assert refused("budgets", table.path, "--out", tmp_path / "page.txt") == 2
    assert refused("budgets", tmp_path) == 3


def test_the_best_evaluation_is_told_with_what_was_sent_until_then(
    table: fedss.Table, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = {row["label"]: row for row in analyse(capsys, tmp_path, "early-stopping", table.path / "fedss-10")}
    (run,) = [read_run(path) for path in (table.path / "fedss-10").iterdir()]
    best, rounds, sent = -1.0, 0, 0.0
    volume = 0.0
    for line in run.rounds:
        volume += line.num_updates * (line.bytes_down + line.bytes_up)
        if line.score is not None and line.score > best:
            best, rounds, sent = line.score, line.round + 1, volume
    (row,) = rows.values()
    assert (row["best"], row["rounds"], row["num_seeds"]) == (best, rounds, 1)
    assert row["measures"] == {run.experiment.evaluation.metric: best}
    assert row["bytes"] == pytest.approx(sent)
