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
from helpers.tiny_artifact import SPEC, make_tiny_artifact

from ondevice.backends import StepResult
from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import open_backend
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import (
    GOLDEN,
    INITIAL,
    MANIFEST,
    Artifact,
    ArtifactError,
    open_artifact,
    write_artifact,
)
from ondevice.contract.golden_step import check_golden, compare
from ondevice.contract.vocabulary import FloatArray
from ondevice.tools.step_process import StepJob, StepProcess, StepProcessError


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
        (edit(lambda document: document.pop("spec")), r"is damaged: .*has no spec"),
        (edit(lambda document: document.update(micro_batch=0)), "micro_batch is 0"),
        (
            edit(lambda document: document.update(files={"../outside": {"size": 1, "sha256": ""}})),
            "leads out of the artifact",
        ),
        (edit(lambda document: document.update(parameters=3)), "parameters is 3; expected a list"),
        (lambda directory: (directory / MANIFEST).write_text("[" * 100_000 + "]" * 100_000), "is not JSON"),
        (lambda directory: (directory / MANIFEST).write_text("9" * 5000), "is not JSON"),
        (
            edit(lambda document: document.update(version="9" * 5000)),
            "has format version 99999999999999999999;",
        ),
        (edit(lambda document: document.update(micro_batch=1 << 40)), "a micro-batch would have the shape"),
        (edit(lambda document: document.update(micro_batch=10**400)), "micro_batch is a number of"),
        (
            edit(lambda document: document.update(micro_batch=4.0)),
            "micro_batch is 4.0; expected a whole number",
        ),
        (
            edit(lambda document: document.update(micro_batch=True)),
            "micro_batch is True; expected a whole number",
        ),
        (edit(lambda document: document.update(max_width=1 << 31)), "the columns would have the shape"),
        (edit(lambda document: document.update(operators=[1])), "operators is a list; expected an object"),
        (edit(lambda document: document.update(operators={"a": 3})), "operators.a is 3; expected an object"),
        (edit(lambda document: document.update(operators={"a": {"b": "c"}})), "operators.a.b is text"),
        (edit(lambda document: document.update(operators={"a": {"[/evil]": 1}})), "without brackets"),
        (edit(lambda document: document.update(runtimes=["\x1b[31m"])), "printable characters"),
        (edit(lambda document: document.update(files=3)), "files is 3; expected an object"),
        (edit(lambda document: document.update(files={"a": 3})), "files.a is 3; expected an object"),
        (edit(lambda document: document.update(files={"a" * 5000: {}})), "printable characters"),
        (edit(lambda document: document.update(memory={})), "memory is an object; expected a list"),
        (edit(lambda document: document.update(parity={"a": {"passed": 1}})), "worst_relative_error"),
        (
            edit(lambda document: document["parameters"][0].update(shape=[1 << 40])),  # type: ignore[index]
            "would have the shape",
        ),
        (
            edit(lambda document: document["parameters"][0].update(shape="wide")),  # type: ignore[index]
            "shape is text; expected a list",
        ),
        (
            edit(lambda document: document["spec"].update(image_shape=[1, 8])),  # type: ignore[attr-defined]
            "image_shape",
        ),
        (
            edit(lambda document: document["spec"].update(more=1)),  # type: ignore[attr-defined]
            "spec has the unknown field 'more'",
        ),
    ],
)
def test_a_damaged_artifact_is_refused_with_the_reason(
    damage: Callable[[Path], object], message: str, artifact: Artifact
) -> None:
    damage(artifact.directory)
    with pytest.raises(ArtifactError, match=message):
        open_artifact(artifact.directory)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("eager_distance", lambda values: np.full_like(values, 1e30), "eager_distance of .* is 1e"),
        ("eager_distance", lambda values: np.full_like(values, np.nan), "eager_distance of .* is nan"),
        ("eager_distance", lambda values: values[:-1], "golden step"),
        ("eager_distance", lambda values: values[0], "golden step"),
        ("labels", lambda values: values + 7, "labels are not positions among the 7 columns"),
        ("labels", lambda values: values.astype(np.float32), "golden step"),
        ("columns", lambda values: values[:, :-1], "columns is float32"),
        ("columns", lambda values: np.tile(values, (20, 1)), "columns have the shape"),
        ("images", lambda values: values[:, :, :-1], "images is float32"),
        ("adjust", lambda values: values[:-1], "adjust is float32"),
        ("gradient/conv2.weight", lambda values: values[:-1], "gradient/conv2.weight is float32"),
        ("gradient/conv2.weight", lambda values: values * np.inf, "all finite"),
        ("loss", lambda values: values[:0], "golden step"),
    ],
)
def test_a_golden_step_that_proves_nothing_is_refused(
    name: str, change: Callable[[FloatArray], FloatArray], message: str, artifact: Artifact
) -> None:
    tensors, _ = safetensors_file.read_file(artifact.path(GOLDEN))
    with np.errstate(invalid="ignore"):
        changed = {**tensors, name: np.ascontiguousarray(change(np.array(tensors[name])))}
    spoilt = write_artifact(
        artifact.directory, artifact.manifest, {GOLDEN: safetensors_file.to_bytes(changed, {})}
    )
    with pytest.raises(ArtifactError, match=message):
        spoilt.golden()


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
    program = "import sys, ondevice.contract.artifact, ondevice.tools.step_process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2]).returncode == 0


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
