"""The zoo's bookkeeping: which networks, rows that are made once, and the tables that they become."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import zoo
from benchmarks.networks.examine import ZooRow, without_figures
from benchmarks.networks.surveyed import KNOWN, OTHERS, SURVEYED, Network
from benchmarks.networks.table import markdown, networks, reasons, rows_of, summary

RESNET = KNOWN["timm:resnet18"]


def proven(network: Network, runtime: str, ratio: float) -> ZooRow:
    return replace(
        without_figures(network, runtime, "proven"),
        parameters=11_200_000,
        error=2.3e-6,
        ratio_to_eager=ratio,
        peak_mb=100.0,
        eager_peak_mb=400.0,
        planned_mb=7.25 if runtime == "executorch" else None,
        portable=0.02 if runtime == "executorch" else None,
    )


def test_the_survey_has_74_networks_and_the_others_are_others() -> None:
    assert len(SURVEYED) == 74
    assert len(KNOWN) == len(SURVEYED) + len(OTHERS)


def test_a_row_is_made_once_and_a_stopped_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def examined(network: Network, runtimes: list[str]) -> list[ZooRow]:
        asked.append((network.model, runtimes))
        return [proven(network, runtime, 0.5) for runtime in runtimes]

    monkeypatch.setattr(zoo, "examined", examined)
    out = tmp_path / "zoo.jsonl"

    def run(*options: str) -> None:
        monkeypatch.setattr(sys, "argv", ["zoo", "--out", str(out), *options])
        zoo.main()

    run("--only", "timm:resnet18", "--runtime", "executorch")
    run("--only", "timm:resnet[13]*")
    both = ["executorch", "onnxruntime-stock"]
    assert asked == [
        ("timm:resnet18", both[:1]),
        ("timm:resnet18", both[1:]),
        ("timm:resnet34", both),
    ]
    run("--only", "timm:resnet[13]*")
    assert len(asked) == 3
    assert [row.model for row in rows_of(out)] == ["timm:resnet18"] * 2 + ["timm:resnet34"] * 2


def test_what_dies_with_another_runtime_is_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.exit('killed' if len(sys.argv) > 3 else 'no such kernel')"
    monkeypatch.setattr(zoo, "EXAMINE", ["-c", program])
    rows = zoo.examined(RESNET, ["executorch", "onnxruntime-stock"])
    assert [(row.runtime, row.outcome, row.reason) for row in rows] == [
        ("executorch", "failed", "no such kernel"),
        ("onnxruntime-stock", "failed", "no such kernel"),
    ]


def test_tables_have_medians_worsts_and_reasons() -> None:
    vit = KNOWN["timm:vit_tiny_patch16_224"]
    rows = [
        proven(RESNET, "executorch", 0.4),
        proven(KNOWN["timm:resnet34"], "executorch", 0.6),
        proven(vit, "executorch", 2.5),
        without_figures(RESNET, "onnxruntime-stock", "refused", "the model uses\n a | b"),
    ]
    (_, (executorch, onnx)) = summary(rows)
    assert executorch == ["survey, executorch", "3 of 74", "3", "0", "0", "0.50", "2.50", "0.25"]
    assert onnx == ["survey, onnxruntime-stock", "1 of 74", "0", "1", "0", "", "", ""]
    header, (resnet, *_) = networks(rows)
    found = dict(zip(header, resnet, strict=True))
    assert (found["ORT error"], found["ET error"], found["ET plan MB"]) == ("refused", "2e-06", "7.2")
    assert reasons(rows)[1] == [["timm:resnet18", "onnxruntime-stock", "refused: the model uses a / b"]]
    assert markdown((["a", "b"], [["1", "2"]])) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


@pytest.mark.slow
def test_the_smallest_part_of_the_zoo_is_proven() -> None:
    rows = zoo.examined(KNOWN["timm:lcnet_050"], ["executorch", "onnxruntime-stock"])
    assert [(row.outcome, row.reason) for row in rows] == [("proven", "")] * 2
    for row in rows:
        assert row.error is not None
        assert row.peak_mb is not None
        assert row.eager_peak_mb is not None
        assert row.error < 1e-5
        assert row.peak_mb <= row.eager_peak_mb / 2
