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
from helpers.artifacts.runtime_artifact import (
    MAX_WIDTH,
    MICRO_BATCH,
    bounds_of,
    dense_of,
    make_artifact,
    random_step_inputs,
)
from torch import Tensor, nn

from export.executorch import stock as lower_executorch_stock
from export.executorch.lowering import lower_step, planned_memory
from export.executorch.pixels import fuse_pixels
from export.executorch.rules.planes import rewrite
from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from export.trace import trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.backends.eager import initial_parameters
from ondevice.backends.executorch_module import ExecutorchBackend, Room
from ondevice.backends.executorch_stock_module import ExecutorchStockBackend
from ondevice.contract.artifact import Artifact
from ondevice.contract.golden_step import SLACK, check_golden
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.train_step import TrainStep
from ondevice.native import build
from ondevice.native.runtime.program import Program, ProgramError, set_threads

SMALL = StepSpec("three_convolutions", embedding_dim=8, image_shape=(3, 17, 19))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("small"), SMALL, "executorch")


@pytest.mark.slow
def test_a_step_leaves_the_results_of_the_one_before_alone(small: Artifact) -> None:
    backend, weights = ExecutorchBackend(small), dense_of(small)
    first = backend.step({**weights, **random_step_inputs(small.signature, 9, 2, seed=1)})
    kept = {name: output.copy() for name, output in first.items()}
    backend.step({**weights, **random_step_inputs(small.signature, 9, 2, seed=2)})
    assert list(first) == list(small.signature.outputs)
    for name, output in first.items():
        np.testing.assert_array_equal(output, kept[name])


def test_memory_of_outputs_is_written_again_once_nobody_has_a_part_of_it() -> None:
    room = Room((4, 3))
    first = room.lend()
    part = first[1:, :2].T
    address = first.ctypes.data
    del first
    second = room.lend()
    assert second.ctypes.data != address
    second[:] = 7
    part[:] = 8
    assert (second == 7).all()
    address = second.ctypes.data
    del second
    assert room.lend().ctypes.data == address


@pytest.mark.slow
def test_two_threads_compute_the_same_bits(small: Artifact) -> None:
    inputs = {**dense_of(small), **random_step_inputs(small.signature, 1200, MICRO_BATCH)}
    one = ExecutorchBackend(small, threads=1).step(inputs)
    try:
        two = ExecutorchBackend(small, threads=2).step(inputs)
    finally:
        set_threads(1)
    for name, output in one.items():
        np.testing.assert_array_equal(output, two[name])


@pytest.mark.slow
def test_wrong_input_is_refused_before_the_runtime_sees_it(small: Artifact) -> None:
    backend = ExecutorchBackend(small)
    inputs = {**dense_of(small), **random_step_inputs(small.signature, 5, 2)}
    with pytest.raises(ValueError, match="labels reach from 0 to 5; expected positions among the 5 rows"):
        backend.step({**inputs, "labels": np.array([0, 5])})
    with pytest.raises(
        ValueError, match=r"images is uint8 \[2, 3, 16, 19\]; the step takes uint8 \[b, 3, 17, 19\]"
    ):
        backend.step({**inputs, "images": inputs["images"][:, :, 1:]})
    with pytest.raises(ValueError, match=r"images is float32 .*; the step takes uint8"):
        backend.step({**inputs, "images": inputs["images"].astype(np.float32)})
    with pytest.raises(ValueError, match="1501 rows of columns; the step takes 1 to 1500: export with room"):
        backend.step({**inputs, **random_step_inputs(small.signature, MAX_WIDTH + 1, 2)})
    with pytest.raises(ValueError, match=r"conv1\.weight is float32"):
        backend.step({**inputs, "conv1.weight": inputs["conv2.weight"]})
    with pytest.raises(ValueError, match=r"colour: the step has no such input"):
        backend.step({**inputs, "colour": inputs["labels"]})


def test_a_program_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "step.pte").write_bytes(b"not a program" * 100)
    with pytest.raises(ProgramError, match=r"step\.pte: cannot load"):
        Program(tmp_path / "step.pte")


@pytest.mark.slow
def test_what_does_not_learn_keeps_no_activations() -> None:
    arenas = {}
    for scope in ("all", "head"):
        spec = dataclasses.replace(SMALL, train=scope)
        step = build_step(spec, initial_parameters(spec, 0))
        program = lower_step(step, bounds_of(step.signature))
        arenas[scope] = planned_memory(program.data)
        backward = {call.layer for call in program.calls.calls if call.backward} - {"objective"}
        assert bool(backward) == (scope == "all")
    assert arenas["head"] < arenas["all"]


@pytest.mark.slow
def test_memory_between_the_passes_is_the_outputs_of_the_convolutions() -> None:
    """GroupNorm, activation and gate are recomputed: nothing of theirs is alive when the backward pass begins."""
    spec = StepSpec("mobilenet_v3_small", 16, (3, 32, 32))
    graph = rewrite(fuse_pixels(trace_step(TrainStep(spec, build_extractor(spec)), 2))).graph
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


class _WithoutKernel(ImageExtractor):
    """The logarithm of the gamma function: no runtime has it."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self.conv = nn.Conv2d(4, 8, 3)
        self.gamma = _LogGamma()
        self.embedding = nn.Linear(8, 8)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.gamma(self.conv(images)).mean((2, 3)))
        return embeddings


class _LogGamma(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs().lgamma()


@pytest.mark.slow
def test_an_operator_without_a_kernel_is_named_with_its_layer_and_what_to_do() -> None:
    spec = StepSpec("without_kernel", 8, (4, 8, 8))
    step = TrainStep(spec, _WithoutKernel(spec))
    with pytest.raises(
        UnsupportedOperator, match=r"no kernel for aten::.*gamma.*\(in gamma\).*other operators"
    ):
        lower_step(step, bounds_of(step.signature))


@pytest.mark.slow
def test_the_stock_baseline_computes_the_step(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", SMALL, "executorch-stock")
    weights = artifact.initial()
    exact = float64_copy(build_step(SMALL, weights))
    backend = ExecutorchStockBackend(artifact)
    for width in (7, MAX_WIDTH):
        step = expected_step(exact, draw_features(exact, 2, seed=1), width, seed=width)
        assert check_golden(backend, weights, step, SLACK["executorch-stock"]).passed


@pytest.mark.slow
def test_the_stock_baseline_refuses_max_pooling() -> None:
    spec = StepSpec("two_convolutions", 8, (3, 8, 8))
    step = build_step(spec, initial_parameters(spec, 0))
    with pytest.raises(UnsupportedOperator, match="max-pooling gradient is wrong"):
        lower_executorch_stock.lower_step(step, bounds_of(step.signature, 2, 5))


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
    monkeypatch.setattr(
        build, "KERNEL_SOURCES", build.KERNEL_SOURCES[:-1]
    )  # the file is there, but not compiled
    with pytest.raises(build.KernelBuildError, match="not installed"):
        build.build_library()


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
    source = folder / "kernels/norms/group_norm_gradient.cpp"
    right = "static_cast<float>(-r * u_sum"
    assert right in source.read_text()
    source.write_text(source.read_text().replace(right, "static_cast<float>(r * u_sum"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_broken_kernel_is_noticed(small: Artifact, broken_sources: Path) -> None:
    arguments = [sys.executable, "-c", BROKEN_RUN, str(small.directory), str(broken_sources)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode
    assert "ParityFailed" in done.stderr
    assert "nothing was published" in done.stderr


STEP_WITHOUT_TORCH = """
import json, sys
from pathlib import Path
from ondevice.contract.artifact import open_artifact
from ondevice.backends.executorch_module import ExecutorchBackend, Room
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
        arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"passed": True, "module": False, "library": False}
