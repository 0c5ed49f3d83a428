"""The ExecuTorch lowering, kernels and backends: the exported step is the step."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.runtime_artifact import MAX_WIDTH, MICRO_BATCH, make_artifact, random_step_inputs
from torch import Tensor, nn

from export.executorch import stock as lower_executorch_stock
from export.executorch.lowering import lower_step, planned_memory, program_calls
from export.executorch.rules.planes import rewrite
from export.proof.golden import build_step, draw_images, expected_step, float64_copy
from export.trace import trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.backends.eager import initial_parameters
from ondevice.backends.executorch_module import ExecutorchBackend, ExecutorchStockBackend
from ondevice.contract.artifact import Artifact
from ondevice.contract.golden_step import check_golden
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import ARCHITECTURES
from ondevice.model.train_step import TrainStep
from ondevice.native import build
from ondevice.native.runtime.program import Program, ProgramError, set_threads

SMALL = StepSpec("three_convolutions", embedding_dim=8, image_shape=(3, 17, 19))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("small"), SMALL, "executorch")


@pytest.mark.slow
def test_a_step_leaves_the_results_of_the_one_before_alone(small: Artifact) -> None:
    backend, weights = ExecutorchBackend(small), small.initial()
    first = backend.step(weights, *random_step_inputs(SMALL, 9, 2, seed=1))
    kept = {name: gradient.copy() for name, gradient in first.extractor_gradients.items()}
    backend.step(weights, *random_step_inputs(SMALL, 9, 2, seed=2))
    for name, gradient in first.extractor_gradients.items():
        np.testing.assert_array_equal(gradient, kept[name])


@pytest.mark.slow
def test_two_threads_compute_the_same_bits(small: Artifact) -> None:
    weights, inputs = small.initial(), random_step_inputs(SMALL, 1200, MICRO_BATCH)
    one = ExecutorchBackend(small, threads=1).step(weights, *inputs)
    try:
        two = ExecutorchBackend(small, threads=2).step(weights, *inputs)
    finally:
        set_threads(1)
    np.testing.assert_array_equal(one.columns_gradient, two.columns_gradient)
    for name, gradient in one.extractor_gradients.items():
        np.testing.assert_array_equal(gradient, two.extractor_gradients[name])


@pytest.mark.slow
def test_wrong_input_is_refused_before_the_runtime_sees_it(small: Artifact) -> None:
    backend, weights = ExecutorchBackend(small), small.initial()
    columns, adjust, batch = random_step_inputs(SMALL, 5, 2)
    with pytest.raises(ValueError, match="labels reach"):
        backend.step(weights, columns, adjust, dataclasses.replace(batch, labels=np.array([0, 5])))
    with pytest.raises(ValueError, match="images are"):
        backend.step(weights, columns, adjust, dataclasses.replace(batch, images=batch.images[:, :, 1:]))
    with pytest.raises(ValueError, match="max-width"):
        backend.step(weights, *random_step_inputs(SMALL, MAX_WIDTH + 1, 2))
    with pytest.raises(ValueError, match=r"conv1\.weight has shape"):
        backend.step(weights | {"conv1.weight": weights["conv2.weight"]}, columns, adjust, batch)


def test_a_program_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "step.pte").write_bytes(b"not a program" * 100)
    with pytest.raises(ProgramError, match=r"step\.pte: cannot load"):
        Program(tmp_path / "step.pte")


@pytest.mark.slow
def test_what_does_not_learn_keeps_no_activations() -> None:
    arenas = {}
    for scope in ("all", "head"):
        spec = dataclasses.replace(SMALL, train=scope)
        program = lower_step(build_step(spec, initial_parameters(spec, 0)), MICRO_BATCH, MAX_WIDTH)
        arenas[scope] = planned_memory(program)
        backward = [call.operator for call in program_calls(program) if "gradient" in call.operator]
        assert bool(backward) == (scope == "all")
    assert arenas["head"] < arenas["all"]


@pytest.mark.slow
def test_memory_between_the_passes_is_the_outputs_of_the_convolutions() -> None:
    """GroupNorm, activation and gate are recomputed: nothing of theirs is alive when the backward pass begins."""
    spec = StepSpec("mobilenet_v3_small", 16, (3, 32, 32))
    graph = rewrite(trace_step(TrainStep(spec, ARCHITECTURES[spec.architecture](spec)), 2)).graph
    targets = [str(node.target) for node in graph.nodes]
    backward = next(i for i, target in enumerate(targets) if "gradient" in target)
    position = {node: i for i, node in enumerate(graph.nodes)}
    recomputed = [
        node
        for node in graph.nodes
        if "fedss.materialise" in str(node.target) and node.args[6] is None and position[node] < backward
    ]
    assert recomputed  # else an operator has another name, and nothing is looked at
    for node in recomputed:
        assert max(position[user] for user in node.users) < backward
    kept = {
        str(node.target)
        for node in graph.nodes
        if node.op == "call_function"
        and position[node] < backward
        and any(position[user] > backward for user in node.users)
    }
    assert {f"fedss.{kind}.default" for kind in ("convolution", "depthwise", "pointwise")} <= kept


class _Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, groups=2)
        self.embedding = nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.conv(images).mean((2, 3)))
        return embeddings


def test_an_operator_without_a_formulation_is_named_with_what_to_do() -> None:
    step = TrainStep(StepSpec("unsupported", 8, (4, 8, 8)), _Unsupported())
    with pytest.raises(UnsupportedOperator, match=r"aten.convolution.*2 groups.*add a rule"):
        rewrite(trace_step(step, 2))


@pytest.mark.slow
def test_the_stock_baseline_computes_the_step(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", SMALL, "executorch-stock")
    weights = artifact.initial()
    exact = float64_copy(build_step(SMALL, weights))
    backend = ExecutorchStockBackend(artifact)
    for width in (7, MAX_WIDTH):
        step = expected_step(exact, draw_images(exact, 2, seed=1), width, seed=width)
        assert check_golden(backend, weights, step).passed


@pytest.mark.slow
def test_the_stock_baseline_refuses_max_pooling() -> None:
    spec = StepSpec("two_convolutions", 8, (3, 8, 8))
    with pytest.raises(UnsupportedOperator, match="max-pooling gradient is wrong"):
        lower_executorch_stock.lower_step(build_step(spec, initial_parameters(spec, 0)), 2, 5)


def test_a_missing_compiler_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.KernelBuildError, match="apt-get install g"):
        build.build_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_built_library_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = build.build_library()
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler: only the cache can give it
    assert build.build_library() == library


BROKEN_RUN = """
import sys
from pathlib import Path
from ondevice.native import build
build.SOURCE_FOLDER = Path(sys.argv[2])
build.default_cache_folder = lambda: Path(sys.argv[2]) / "cache"
from export.proof.parity import check_parity
from ondevice.contract.artifact import open_artifact
artifact = open_artifact(Path(sys.argv[1]))
check_parity(artifact, "executorch", [artifact.golden()])
"""


@pytest.fixture
def broken_sources(tmp_path: Path) -> Iterator[Path]:
    """The kernels with one sign turned in the gradient of GroupNorm."""
    folder = tmp_path / "native"
    shutil.copytree(build.SOURCE_FOLDER, folder)
    source = folder / "group_norm.cpp"
    right = "const float constant = -r *"
    assert right in source.read_text()
    source.write_text(source.read_text().replace(right, "const float constant = r *"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_broken_kernel_is_noticed(small: Artifact, broken_sources: Path) -> None:
    arguments = [sys.executable, "-c", BROKEN_RUN, str(small.directory), str(broken_sources)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode
    assert "ParityFailed" in done.stderr
    assert "nothing was published" in done.stderr


STEP_WITHOUT_TORCH = """
import json, sys
from pathlib import Path
from ondevice.contract.artifact import open_artifact
from ondevice.backends.executorch_module import ExecutorchBackend
from ondevice.contract.golden_step import check_golden
artifact = open_artifact(Path(sys.argv[1]))
passed = check_golden(ExecutorchBackend(artifact), artifact.initial(), artifact.golden()).passed
libraries = Path("/proc/self/maps").read_text()
print(json.dumps({"passed": passed, "module": "torch" in sys.modules, "library": "libtorch" in libraries}))
"""


@pytest.mark.slow
def test_torch_is_not_loaded_to_run_a_step(small: Artifact) -> None:
    arguments = [sys.executable, "-c", STEP_WITHOUT_TORCH, str(small.directory)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"passed": True, "module": False, "library": False}
