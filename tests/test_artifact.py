"""The artifact directory proves itself: what it holds is checked before it is used, and says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_artifact import SPEC, make_tiny_artifact

from ondevice import safetensors_file
from ondevice.artifact import (
    GOLDEN,
    INITIAL,
    MANIFEST,
    Artifact,
    ArtifactError,
    open_artifact,
    write_artifact,
)
from ondevice.backends import StepResult
from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import open_backend
from ondevice.golden_step import check_golden, compare
from ondevice.step_process import StepJob, StepProcess, StepProcessError


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return make_tiny_artifact(tmp_path / "artifact")


def test_an_artifact_reads_back_as_it_was_written(artifact: Artifact) -> None:
    opened = open_artifact(artifact.directory)
    assert opened == artifact
    assert opened.path("nested/notes.txt").read_bytes() == b"any file at all"
    for name, value in initial_parameters(SPEC, 3).items():
        np.testing.assert_array_equal(opened.initial()[name], value)


def test_the_manifest_states_the_order_of_inputs_and_outputs(artifact: Artifact) -> None:
    document = json.loads((artifact.directory / MANIFEST).read_text())
    names = list(initial_parameters(SPEC, 0))
    assert document["inputs"] == [*names, "columns", "adjust", "images", "labels", "example_weight"]
    assert document["outputs"] == ["loss", *(f"gradient/{name}" for name in names), "gradient/columns"]


def test_eager_passes_its_golden_step_and_a_wrong_gradient_does_not(artifact: Artifact) -> None:
    golden = artifact.golden()
    backend = open_backend(artifact, "eager")
    weights = artifact.initial()
    assert check_golden(backend, weights, golden).passed
    result = backend.step(weights, golden.columns, golden.adjust, golden.batch)
    gradients = dict(result.extractor_gradients)
    gradients["conv2.weight"] = gradients["conv2.weight"] * np.float32(1.0001)
    comparison = compare(replace(result, extractor_gradients=gradients), golden)
    assert set(comparison.beyond) == {"conv2.weight"}
    assert "conv2.weight" in comparison.explain()


@pytest.mark.parametrize("ignored", ["adjust", "example_weight"])
def test_a_runtime_that_ignores_an_input_fails_its_golden_step(ignored: str, artifact: Artifact) -> None:
    golden = artifact.golden()
    careless = (
        replace(golden, adjust=np.zeros_like(golden.adjust))
        if ignored == "adjust"
        else replace(golden, batch=replace(golden.batch, example_weight=np.full(3, 1 / 3, np.float32)))
    )
    backend = open_backend(artifact, "eager")
    assert not check_golden(backend, artifact.initial(), careless).passed


def test_a_gradient_that_is_not_a_number_fails(artifact: Artifact) -> None:
    golden = artifact.golden()
    result = StepResult(
        float("nan"),
        {name: golden.gradients[name] for name in artifact.trainable},
        golden.gradients["columns"],
    )
    assert set(compare(result, golden).beyond) == {"loss"}


def flip_a_byte(directory: Path) -> None:
    data = bytearray((directory / INITIAL).read_bytes())
    data[-1] ^= 1
    (directory / INITIAL).write_bytes(data)


def cut_short(directory: Path) -> None:
    (directory / GOLDEN).write_bytes((directory / GOLDEN).read_bytes()[:-1])


def edit(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        document = json.loads((directory / MANIFEST).read_text())
        change(document)
        (directory / MANIFEST).write_text(json.dumps(document))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_byte, r"initial\.safetensors was changed"),
        (cut_short, r"golden\.safetensors has \d+ bytes; manifest\.json says \d+"),
        (lambda directory: (directory / GOLDEN).unlink(), r"golden\.safetensors is missing"),
        (lambda directory: (directory / MANIFEST).unlink(), r"is not an artifact: no manifest\.json"),
        (lambda directory: (directory / MANIFEST).write_text("{"), "is not JSON"),
        (lambda directory: (directory / MANIFEST).write_text("[]"), "does not describe a fedss-artifact"),
        (
            edit(lambda document: document.update(version=2)),
            "has format version 2; this program reads version 1",
        ),
        (edit(lambda document: document.pop("spec")), r"is damaged \(KeyError: 'spec'\)"),
        (edit(lambda document: document.update(micro_batch=0)), "micro_batch is 0"),
        (
            edit(lambda document: document.update(files={"../outside": {"size": 1, "sha256": ""}})),
            "leads out of the artifact",
        ),
        (edit(lambda document: document.update(parameters=3)), "is damaged"),
    ],
)
def test_a_damaged_artifact_is_refused_with_the_reason(
    damage: Callable[[Path], object], message: str, artifact: Artifact
) -> None:
    damage(artifact.directory)
    with pytest.raises(ArtifactError, match=message):
        open_artifact(artifact.directory)


def test_weights_that_do_not_fit_the_parameter_table_are_refused(artifact: Artifact) -> None:
    others = initial_parameters(replace(SPEC, embedding_dim=9), 3)
    wrong = write_artifact(
        artifact.directory, artifact.manifest, {INITIAL: safetensors_file.to_bytes(others, {})}
    )
    with pytest.raises(
        ArtifactError, match=r"embedding\.weight is float32\[9, 512\]; expected float32\[8, 512\]"
    ):
        wrong.initial()


def test_a_runtime_that_was_not_exported_is_named(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match=r"runtime is 'executorch'; .* exported for eager"):
        open_backend(artifact, "executorch")
    with pytest.raises(ArtifactError, match=r"has no step\.pte"):
        artifact.path("step.pte")


def test_reading_an_artifact_and_opening_a_step_process_need_no_torch() -> None:
    program = "import sys, ondevice.artifact, ondevice.step_process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1]).returncode == 0


@pytest.mark.slow
def test_a_step_process_takes_whole_batches_and_reports_what_a_step_costs(artifact: Artifact) -> None:
    job = StepJob(str(artifact.directory), "eager", batch=6, width=5)
    with StepProcess(job) as process:
        first = process.step()
        assert first.cpu_ms > 0
        assert first.wall_ms > 0
        assert process.swap_ms() > 0
        assert process.step().loss == first.loss  # the same weights, read back from disk
        assert process.peak_bytes() > 50 << 20  # torch alone is more than that
        assert process.load_ms > 0


@pytest.mark.slow
def test_both_memory_formats_of_eager_give_the_same_loss(artifact: Artifact) -> None:
    losses = []
    for runtime in ("eager", "eager-channels-last"):
        with StepProcess(StepJob(str(artifact.directory), runtime, batch=6, width=5)) as process:
            losses.append(process.step().loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_step_process_that_fails_says_why(artifact: Artifact) -> None:
    with pytest.raises(StepProcessError, match=r"ended with 1: .*runtime is 'onnxruntime'"):
        StepProcess(StepJob(str(artifact.directory), "onnxruntime", batch=2, width=5))


def test_a_step_process_that_is_killed_says_so(artifact: Artifact) -> None:
    with StepProcess(StepJob(str(artifact.directory), "eager", batch=2, width=5)) as process:
        process._process.kill()
        with pytest.raises(StepProcessError, match=r"eager at batch 2 and width 5 was killed by signal 9"):
            process.step()
