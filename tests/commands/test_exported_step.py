"""The artifact in a run's folder is used again only if it is what the run would make."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.tiny_artifact import SPEC, make_tiny_artifact

from export.recipe import ExportRecipe
from fedss.api.exported_step import exported_step, recipe_differences
from ondevice.contract.artifact import open_artifact
from ondevice.contract.artifacts.manifest import Manifest
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.data.population import open_population
from server_sim.experiment import load_experiment
from server_sim.preparation import initial_weights, population_path, step_spec


@pytest.fixture
def recipe(tmp_path: Path) -> ExportRecipe:
    weights = tmp_path / "weights"
    weights.write_bytes(b"these")
    return ExportRecipe(SPEC, ("executorch",), micro_batch=4, max_width=64, weights=weights)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    made_from = {"seed": 0, "weights_sha256": sha256(b"these").hexdigest()}
    tiny = make_tiny_artifact(tmp_path / "artifact").manifest
    return replace(tiny, runtimes=("onnxruntime", "executorch"), provenance=made_from)


def test_the_artifact_of_the_same_recipe_fits(manifest: Manifest, recipe: ExportRecipe) -> None:
    assert recipe_differences(manifest, recipe) == []


def test_every_difference_is_named(manifest: Manifest, recipe: ExportRecipe) -> None:
    assert recipe_differences(manifest, replace(recipe, spec=replace(SPEC, logits="dot"))) == ["step"]
    assert recipe_differences(manifest, replace(recipe, runtimes=("onnxruntime-training",))) == ["runtime"]
    assert recipe_differences(manifest, replace(recipe, micro_batch=8)) == ["micro-batch"]
    assert recipe_differences(manifest, replace(recipe, max_width=63)) == ["width"]
    assert recipe_differences(manifest, replace(recipe, lengths=(3, 6))) == ["lengths"]
    assert recipe_differences(manifest, replace(recipe, seed=1)) == ["seed"]
    assert recipe.weights is not None
    recipe.weights.write_bytes(b"others")
    assert recipe_differences(manifest, recipe) == ["weights"]


@pytest.mark.slow
def test_a_run_with_other_weights_or_widths_exports_anew(tmp_path: Path) -> None:
    made = []
    told: list[str] = []
    for num_negatives, seed in ((10, 0), (10, 0), (3, 0), (3, 1)):
        changes = {"scheme.num_negatives": num_negatives, "seed": seed, "model.pretrained": None}
        experiment = load_experiment("glyphs-tiny").overridden(changes)
        population = open_population(population_path(experiment.data, default_cache_folder()))
        spec = step_spec(experiment, population)
        initial = initial_weights(experiment, spec)
        step = exported_step(
            "onnxruntime", experiment, population, (spec, initial), tmp_path / "run", told.append
        )
        artifact = open_artifact(step.directory)
        for name, value in artifact.initial().items():
            np.testing.assert_array_equal(value, initial[name])
        made.append(artifact)
    assert made[0].sha256 == made[1].sha256
    assert made[2].max_width == made[1].max_width - 7
    again = [note for note in told if note.endswith("exporting anew")]
    assert again == [
        f"{tmp_path / 'run' / 'artifact'} was made for another {what}: exporting anew"
        for what in ("width", "weights")
    ]
