"""A federation on an exported step: the artifact that fits an experiment, made in its run folder on first use."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from fedss.console import UsageError, log
from ondevice import safetensors_file
from ondevice.artifact import open_artifact
from ondevice.backends.opening import RUNTIMES
from ondevice.vocabulary import FloatArray, StepSpec
from server_sim.experiment import Experiment
from server_sim.population import Population
from server_sim.preparation import ExportedStep

EAGER = "eager"


def exported_step(
    runtime: str,
    experiment: Experiment,
    population: Population,
    spec: StepSpec,
    initial: dict[str, FloatArray],
    run_path: Path,
) -> ExportedStep | None:
    """None for eager torch, which needs no artifact."""
    if runtime == EAGER:
        return None
    known = [name for name in RUNTIMES if name == runtime]
    if not known:
        raise UsageError(f"--runtime is {runtime!r}; expected one of {', '.join([EAGER, *RUNTIMES])}")
    directory = run_path / "artifact"
    if directory.exists() and runtime in open_artifact(directory).manifest.runtimes:
        return ExportedStep(directory, runtime)
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "initial.safetensors"
        safetensors_file.write_file(weights, initial, {})
        recipe = ExportRecipe(
            spec=spec,
            runtimes=(known[0],),
            micro_batch=min(experiment.client.batch_size, 32),
            max_width=widest_slice(experiment, population),
            weights=weights,
        )
        run_path.mkdir(parents=True, exist_ok=True)
        export_artifact(recipe, directory, overwrite=True, report=lambda what: log.print(what, style="dim"))
    return ExportedStep(directory, runtime)


def widest_slice(experiment: Experiment, population: Population) -> int:
    """The largest |S_k| that any client can ask for."""
    method = experiment.client.method
    if method in ("full_softmax", "centralized"):
        return population.num_classes
    held = max(len(np.unique(population.client_examples(k).labels)) for k in population.client_ids)
    drawn = 0 if method == "positives_only" else experiment.client.num_negatives
    return max(2, min(held + drawn, population.num_classes))
