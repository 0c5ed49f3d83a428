"""One network in a process of its own: exported and proven or refused, then stepped beside eager.

    python -m benchmarks.networks.examine MODEL RUNTIME...

prints a line of JSON per runtime.  Several runtimes share the expected step and eager's turns, which costs half of what each
costs alone, and stand or fall together: `benchmarks.zoo` then asks for each alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.networks.surveyed import KNOWN, Network
from ondevice.contract.artifact import MEGABYTE

MICRO_BATCH, WIDTH = 4, 170
WARM_UP, STEPS = 1, 5
PROGRAM = {"executorch": "executorch", "onnxruntime-stock": "onnxruntime"}
"""What is measured -> what is exported for it."""


@dataclass(frozen=True)
class ZooRow:
    """`outcome` is proven, refused (by name) or failed; the figures are those of a proven one."""

    model: str
    kind: str
    pixels: int
    runtime: str
    outcome: str
    reason: str = ""
    parameters: int = 0
    error: float | None = None
    """The largest relative error of a gradient."""
    ratio_to_eager: float | None = None
    peak_mb: float | None = None
    """Of a process that does nothing but step, at micro-batch 4, as eager's."""
    eager_peak_mb: float | None = None
    planned_mb: float | None = None
    """The arena that the program plans for itself, of that peak."""
    portable: float | None = None
    """The share of the step in ExecuTorch's own kernels."""


def without_figures(network: Network, runtime: str, outcome: str, reason: str = "") -> ZooRow:
    return ZooRow(network.model, network.kind, network.pixels, runtime, outcome, reason)


def examine(network: Network, runtimes: Sequence[str], folder: Path) -> list[ZooRow]:
    import fedss
    from android_harness.bundles.stock_onnxruntime import stock_onnxruntime_folders
    from android_harness.measuring.measurement import BenchSize, measure_side_by_side
    from ondevice.tools.cache_folder import default_cache_folder

    try:
        artifact = fedss.export(
            network.spec(),
            out=folder / "artifact",
            runtimes=[PROGRAM[runtime] for runtime in runtimes],
            micro_batch=MICRO_BATCH,
            max_width=WIDTH,
        )
    except fedss.UsageError as refusal:
        if len(runtimes) > 1:
            raise
        return [without_figures(network, runtimes[0], "refused", str(refusal))]
    stock = stock_onnxruntime_folders(default_cache_folder()) if "onnxruntime-stock" in runtimes else []
    size = BenchSize(MICRO_BATCH, MICRO_BATCH, WIDTH, 1, WARM_UP, STEPS)
    eager, *measured = measure_side_by_side(
        artifact, ["eager", *runtimes], size, lambda: None, stock, network.model
    )
    manifest = artifact.manifest
    planned = {figure.runtime: figure.planned_bytes for figure in manifest.memory}
    pace = manifest.provenance["pace"]
    return [
        replace(
            without_figures(network, here.runtime, "proven"),
            parameters=sum(parameter.size for parameter in manifest.parameters),
            error=manifest.parity[PROGRAM[here.runtime]].worst_relative_error,
            ratio_to_eager=here.ratio_to_eager,
            peak_mb=here.peak_mb,
            eager_peak_mb=eager.peak_mb,
            planned_mb=_megabytes(planned.get(PROGRAM[here.runtime])),
            portable=_portable(pace[here.runtime]) if here.runtime == "executorch" else None,
        )
        for here in measured
    ]


def _megabytes(size: int | None) -> float | None:
    return None if size is None else round(size / MEGABYTE, 2)


def _portable(pace: Mapping[str, Any]) -> float:
    return round(float(sum(pace["portable"].values())), 3)


def main() -> None:
    model, *runtimes = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for row in examine(KNOWN[model], runtimes, Path(folder)):
            print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
