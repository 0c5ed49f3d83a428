"""What the documented tables of training scopes must say, from the committed rows."""

from __future__ import annotations

import json

from helpers.documented.accuracy import accuracy
from helpers.documented.tables import ROOT, Cells

RESULTS = ROOT / "results"
SCOPES = ["all", "norms-and-biases", "last-blocks 3", "lora:8"]
"""In the order of the commands in results/README.md."""


def scopes_on_mobilenet() -> tuple[Cells, list[Cells]]:
    measured = [json.loads(line) for line in (RESULTS / "bench-scopes.jsonl").read_text().splitlines()]
    artifacts = list(dict.fromkeys(row["artifact_sha256"] for row in measured))
    runtimes = ["eager", "executorch", "onnxruntime-stock", "executorch-client"]
    rows = []
    for scope, artifact in zip(SCOPES, artifacts, strict=True):
        own = {row["runtime"]: row for row in measured if row["artifact_sha256"] == artifact}
        cells = [f"{own[name]['cpu_ms_p50']:.0f} ms, {own[name]['peak_mb']:.0f} MB" for name in runtimes]
        rows.append(
            [scope, *(f"{own['eager'][way] / 1000:,.0f}" for way in ("bytes_down", "bytes_up")), *cells]
        )
    return ["`--train` at 224 px", "kB down", "kB up", *runtimes], rows


def scopes_on_glyphs() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            row["label"],
            accuracy(row),
            *(f"{row[way] / 1000:,.0f}" for way in ("bytes_down_per_client", "bytes_up_per_client")),
        ]
        for row in json.loads((RESULTS / "glyphs-scopes.json").read_text())["rows"]
    ]
    return ["what learns, glyphs", "top-1 (%)", "kB down", "kB up"], rows
