"""A federation on an exported step: the artifact that fits an experiment, made in its run folder on first use."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from fedss.console import UsageError, log
from ondevice.backends.opening import RUNTIMES, Runtime
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import Manifest, open_artifact
from ondevice.contract.vocabulary import FloatArray, StepSpec
from server_sim.data.population import Population
from server_sim.experiment import Experiment
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
    known = check_runtime(runtime)
    if known is None:
        return None
    directory = run_path / "artifact"
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "initial.safetensors"
        safetensors_file.write_file(weights, initial, {})
        recipe = ExportRecipe(
            spec=spec,
            runtimes=(known,),
            micro_batch=min(experiment.client.batch_size, 32),
            max_width=widest_slice(experiment, population),
            weights=weights,
        )
        if directory.exists():
            differing = recipe_differences(open_artifact(directory).manifest, recipe)
            if not differing:
                return ExportedStep(directory, runtime)
            log.print(f"{directory} differs from this run in {', '.join(differing)}: exporting anew")
        run_path.mkdir(parents=True, exist_ok=True)
        export_artifact(recipe, directory, overwrite=True, report=lambda what: log.print(what, style="dim"))
    return ExportedStep(directory, runtime)


def check_runtime(name: str) -> Runtime | None:
    """The runtime of that name, None for eager torch; `UsageError` if there is none."""
    known = next((runtime for runtime in RUNTIMES if runtime == name), None)
    if known is None and name != EAGER:
        raise UsageError(f"--runtime is {name!r}; expected one of {', '.join([EAGER, *RUNTIMES])}")
    return known


def recipe_differences(manifest: Manifest, recipe: ExportRecipe) -> list[str]:
    """In what an artifact differs from what the recipe asks for; of the runtimes it may have more."""
    made_from = manifest.provenance
    assert recipe.weights is not None
    comparisons = {
        "step": manifest.spec == recipe.spec,
        "runtime": set(recipe.runtimes) <= set(manifest.runtimes),
        "micro-batch": manifest.micro_batch == recipe.micro_batch,
        "width": manifest.max_width == recipe.max_width,
        "seed": made_from.get("seed") == recipe.seed,
        "weights": made_from.get("weights_sha256") == sha256(recipe.weights.read_bytes()).hexdigest(),
    }
    return [name for name, same in comparisons.items() if not same]


def widest_slice(experiment: Experiment, population: Population) -> int:
    """The largest |S_k| that any client can ask for."""
    method = experiment.client.method
    if method in ("full_softmax", "centralized"):
        return population.num_classes
    held = max(len(np.unique(population.client_examples(k).labels)) for k in population.client_ids)
    drawn = 0 if method == "positives_only" else experiment.client.num_negatives
    return max(2, min(held + drawn, population.num_classes))
