"""A federation on an exported step: the artifact that fits an experiment, made in its run folder on first use."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from export.pipeline import export_artifact
from export.recipe import LARGEST_MICRO_BATCH, ExportRecipe
from fedss.api.callbacks import Note
from fedss.api.errors import WrongArgument
from ondevice.backends.opening import RUNTIMES, Runtime
from ondevice.client.samplers import SAMPLERS
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import open_artifact
from ondevice.contract.artifacts.manifest import Manifest
from ondevice.contract.choice import chosen
from ondevice.contract.step_signature import EXAMPLES, rows_of
from ondevice.contract.tokens import TOKENS
from ondevice.contract.vocabulary import COLUMNS, ExampleSet, FloatArray, StepSpec
from server_sim.data.population import Population
from server_sim.experiment import Experiment
from server_sim.preparation import ExportedStep

EAGER = "eager"


def exported_step(
    runtime: Runtime,
    experiment: Experiment,
    population: Population,
    first: tuple[StepSpec, dict[str, FloatArray]],
    run_path: Path,
    note: Note,
) -> ExportedStep:
    """`first`: the step's specification and the weights that the run starts from."""
    directory = run_path / "artifact"
    spec, initial = first
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "initial.safetensors"
        safetensors_file.write_file(weights, initial, {})
        recipe = ExportRecipe(
            spec=spec,
            runtimes=(runtime,),
            micro_batch=min(experiment.client.batch_size, LARGEST_MICRO_BATCH),
            max_width=widest_slice(experiment, population),
            lengths=experiment.model.lengths,
            weights=weights,
        )
        if directory.exists():
            differing = recipe_differences(open_artifact(directory).manifest, recipe)
            if not differing:
                return ExportedStep(directory, runtime)
            note(f"{directory} was made for another {', '.join(differing)}: exporting anew")
        run_path.mkdir(parents=True, exist_ok=True)
        export_artifact(recipe, directory, overwrite=True, report=note)
    return ExportedStep(directory, runtime)


def check_runtime(name: str) -> Runtime | None:
    """The runtime of that name, None for eager torch, which needs no artifact; an error if there is none."""
    known = next((runtime for runtime in RUNTIMES if runtime == name), None)
    if known is None and name != EAGER:
        raise WrongArgument("runtime", f"is {name!r}; expected one of {', '.join([EAGER, *RUNTIMES])}")
    return known


def recipe_differences(manifest: Manifest, recipe: ExportRecipe) -> list[str]:
    """In what an artifact differs from what the recipe asks for; of the runtimes it may have more."""
    made_from = manifest.provenance
    assert recipe.weights is not None
    rows = {rows_of(table): recipe.max_width for table in manifest.signature.table_dims}
    comparisons = {
        "step": manifest.spec == recipe.spec,
        "runtime": set(recipe.runtimes) <= set(manifest.runtimes),
        "micro-batch": manifest.bounds[EXAMPLES] == recipe.micro_batch,
        "width": manifest.bounds == {EXAMPLES: manifest.bounds[EXAMPLES], **rows},
        "lengths": (manifest.lengths.sizes if manifest.lengths else ()) == recipe.lengths,
        "seed": made_from.get("seed") == recipe.seed,
        "weights": made_from.get("weights_sha256") == sha256(recipe.weights.read_bytes()).hexdigest(),
    }
    return [name for name, same in comparisons.items() if not same]


def widest_slice(experiment: Experiment, population: Population) -> int:
    """The largest |S_k| that any client can ask for; every class where there are no clients."""
    num_rows = int(population.table_sizes[COLUMNS])
    choice = experiment.scheme.sampler()
    if choice is None:
        return num_rows
    sampler = chosen(SAMPLERS, choice, "sampler")
    held = max(_num_classes(population.client_examples(k)) for k in population.client_ids)
    return max(2, sampler.widest(held, num_rows))


def _num_classes(examples: ExampleSet) -> int:
    """That a client holds; of texts, the words that it reads or predicts."""
    tokens = examples.features.get(TOKENS, np.empty(0, np.int64))
    return len(np.unique(np.concatenate([examples.labels, tokens.reshape(-1)])))
