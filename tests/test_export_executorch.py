"""The ExecuTorch lowering, kernels and backends: the exported step is the step."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from export import lower_executorch_stock
from export.golden import build_step, draw_images, expected_step, float64_copy
from export.lower_executorch import lower_embed, lower_step, planned_memory, program_calls
from export.lower_executorch_rules import rewrite
from export.trace import trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice import safetensors_file
from ondevice.artifact import GOLDEN, INITIAL, Artifact, Manifest, Parameter, write_artifact
from ondevice.backends import Batch
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.executorch_module import ExecutorchBackend, ExecutorchStockBackend
from ondevice.extractors import ARCHITECTURES
from ondevice.golden_step import check_golden, golden_to_tensors
from ondevice.native import build
from ondevice.native.program import Program, ProgramError, set_threads
from ondevice.train_step import TrainStep
from ondevice.vocabulary import FloatArray, StepSpec

pytestmark = pytest.mark.slow  # exports, and trains on real runtimes

MICRO_BATCH, MAX_WIDTH = 3, 1500
SMALL = StepSpec("three_convolutions", embedding_dim=8, image_shape=(3, 17, 19))


def make_artifact(directory: Path, spec: StepSpec, runtime: str = "executorch") -> Artifact:
    """An artifact with the programs of one runtime."""
    weights = initial_parameters(spec, seed=3)
    step = build_step(spec, weights)
    exact = float64_copy(step)
    golden = expected_step(exact, draw_images(exact, MICRO_BATCH, seed=0), width=7, seed=0)
    programs = (
        {"step.pte": lower_step(step, MICRO_BATCH, MAX_WIDTH), "embed.pte": lower_embed(step, MICRO_BATCH)}
        if runtime == "executorch"
        else {"stock_step.pte": lower_executorch_stock.lower_step(step, MICRO_BATCH, MAX_WIDTH)}
    )
    files = {
        INITIAL: safetensors_file.to_bytes(weights, {}),
        GOLDEN: safetensors_file.to_bytes(golden_to_tensors(golden), {}),
    }
    manifest = Manifest(
        spec=spec,
        micro_batch=MICRO_BATCH,
        max_width=MAX_WIDTH,
        runtimes=(runtime,),
        parameters=tuple(
            Parameter(name, value.shape, name in step.trainable) for name, value in weights.items()
        ),
        files={},
        memory=(),
        parity={},
        operators={},
        provenance={},
    )
    directory.mkdir()
    return write_artifact(directory, manifest, files | programs)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("small") / "artifact", SMALL)


def random_step(
    spec: StepSpec, examples: int, width: int, seed: int = 0
) -> tuple[FloatArray, FloatArray, Batch]:
    random = np.random.default_rng(seed)
    batch = Batch(
        random.standard_normal((examples, *spec.image_shape), np.float32),
        random.integers(0, width, examples),
        np.full(examples, 1 / examples, np.float32),
    )
    columns = 0.1 * random.standard_normal((width, spec.column_dim), np.float32)
    return columns, random.uniform(0, 3, width).astype(np.float32), batch


def assert_is_the_step(artifact: Artifact) -> None:
    """At every kind of width, full and partial batches, against float64; the embeddings against eager."""
    weights = artifact.initial()
    backend = ExecutorchBackend(artifact)
    exact = float64_copy(build_step(artifact.spec, weights))
    images = draw_images(exact, MICRO_BATCH, seed=1)
    for width in (1, 7, 170, 1024, MAX_WIDTH):
        for examples in (1, MICRO_BATCH):
            comparison = check_golden(
                backend, weights, expected_step(exact, images[:examples], width, seed=width)
            )
            assert comparison.passed, f"width {width}, {examples} examples: {comparison.explain()}"
    eager = EagerBackend(artifact.spec, weights)
    more = np.concatenate([images, images[:1]])  # one micro-batch and a part of the next
    np.testing.assert_allclose(backend.embed(weights, more), eager.embed(weights, more), rtol=1e-4, atol=1e-5)


def test_the_exported_step_is_the_step(small: Artifact) -> None:
    assert_is_the_step(small)


CASES = [
    ("three_convolutions", "last-two", "cosine"),
    ("three_convolutions", "head", "cosine"),
    ("three_convolutions", "all", "dot"),
    ("two_convolutions", "all", "cosine"),
    ("mobilenet_v3_small", "all", "cosine"),
]
SLOW_CASES = [
    ("mobilenet_v3_large", "all", "cosine"),
    ("mobilenet_v3_large", "last-two", "cosine"),
    ("mobilenet_v3_large", "head", "cosine"),
    ("mobilenet_v3_small", "head", "dot"),
]


@pytest.mark.parametrize(
    ("architecture", "scope", "logits"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
def test_every_architecture_scope_and_kind_of_logit(
    architecture: str, scope: Any, logits: Any, tmp_path: Path
) -> None:
    side = {"mobilenet_v3_small": 32, "mobilenet_v3_large": 65}.get(
        architecture, 12
    )  # planes of 1 x 1 up to odd ones
    spec = StepSpec(architecture, 16, (3, side, side), logits, scope)
    assert_is_the_step(make_artifact(tmp_path / "artifact", spec))


def test_every_architecture_is_exported_by_some_test() -> None:
    assert {architecture for architecture, *_ in [*CASES, *SLOW_CASES]} == set(ARCHITECTURES)


def test_after_five_steps_the_parameters_are_those_of_eager(small: Artifact) -> None:
    columns, adjust, batch = random_step(SMALL, MICRO_BATCH, 20)
    trained = []
    for backend in (EagerBackend(SMALL, small.initial()), ExecutorchBackend(small)):
        weights, own_columns = small.initial(), columns.copy()
        for _ in range(5):
            result = backend.step(weights, own_columns, adjust, batch)
            for name, gradient in result.extractor_gradients.items():
                weights[name] -= 0.05 * gradient
            own_columns -= 0.05 * result.columns_gradient
        trained.append([*weights.values(), own_columns])
    start = [*small.initial().values(), columns]
    for eager, exported, before in zip(*trained, start, strict=True):
        assert np.abs(eager - before).max() > 0  # it did learn
        np.testing.assert_allclose(exported, eager, rtol=1e-4, atol=1e-5 * np.abs(eager).max())


def test_a_step_leaves_the_results_of_the_one_before_alone(small: Artifact) -> None:
    backend, weights = ExecutorchBackend(small), small.initial()
    first = backend.step(weights, *random_step(SMALL, 2, 9, seed=1))
    kept = {name: gradient.copy() for name, gradient in first.extractor_gradients.items()}
    backend.step(weights, *random_step(SMALL, 2, 9, seed=2))
    for name, gradient in first.extractor_gradients.items():
        np.testing.assert_array_equal(gradient, kept[name])


def test_two_threads_compute_the_same_bits(small: Artifact) -> None:
    weights, inputs = small.initial(), random_step(SMALL, MICRO_BATCH, 1200)
    one = ExecutorchBackend(small, threads=1).step(weights, *inputs)
    try:
        two = ExecutorchBackend(small, threads=2).step(weights, *inputs)
    finally:
        set_threads(1)
    np.testing.assert_array_equal(one.columns_gradient, two.columns_gradient)
    for name, gradient in one.extractor_gradients.items():
        np.testing.assert_array_equal(gradient, two.extractor_gradients[name])


def test_wrong_input_is_refused_before_the_runtime_sees_it(small: Artifact) -> None:
    backend, weights = ExecutorchBackend(small), small.initial()
    columns, adjust, batch = random_step(SMALL, 2, 5)
    with pytest.raises(ValueError, match="labels reach"):
        backend.step(weights, columns, adjust, dataclasses.replace(batch, labels=np.array([0, 5])))
    with pytest.raises(ValueError, match="images are"):
        backend.step(weights, columns, adjust, dataclasses.replace(batch, images=batch.images[:, :, 1:]))
    with pytest.raises(ValueError, match="max-width"):
        backend.step(weights, *random_step(SMALL, 2, MAX_WIDTH + 1))
    with pytest.raises(ValueError, match=r"conv1\.weight has shape"):
        backend.step(weights | {"conv1.weight": weights["conv2.weight"]}, columns, adjust, batch)


def test_a_program_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "step.pte").write_bytes(b"not a program" * 100)
    with pytest.raises(ProgramError, match=r"step\.pte: cannot load"):
        Program(tmp_path / "step.pte")


def test_what_does_not_learn_keeps_no_activations() -> None:
    arenas = {}
    for scope in ("all", "head"):
        spec = dataclasses.replace(SMALL, train=scope)
        program = lower_step(build_step(spec, initial_parameters(spec, 0)), MICRO_BATCH, MAX_WIDTH)
        arenas[scope] = planned_memory(program)
        backward = [call.operator for call in program_calls(program) if "gradient" in call.operator]
        assert bool(backward) == (scope == "all")
    assert arenas["head"] < arenas["all"]


def test_memory_between_the_passes_is_the_outputs_of_the_convolutions() -> None:
    """GroupNorm, activation and gate are recomputed: nothing of theirs is alive when the backward pass begins."""
    spec = StepSpec("mobilenet_v3_small", 16, (3, 32, 32))
    graph = rewrite(trace_step(TrainStep(spec, ARCHITECTURES[spec.architecture](spec)), 2)).graph
    targets = [str(node.target) for node in graph.nodes]
    backward = next(i for i, target in enumerate(targets) if "gradient" in target)
    position = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if "fedss.materialise" in str(node.target) and node.args[6] is None and position[node] < backward:
            assert max(position[user] for user in node.users) < backward


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


def test_the_stock_baseline_computes_the_step(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", SMALL, "executorch-stock")
    weights = artifact.initial()
    exact = float64_copy(build_step(SMALL, weights))
    backend = ExecutorchStockBackend(artifact)
    for width in (7, MAX_WIDTH):
        step = expected_step(exact, draw_images(exact, 2, seed=1), width, seed=width)
        assert check_golden(backend, weights, step).passed


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
from export.parity import check_parity
from ondevice.artifact import open_artifact
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
        arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
    )
    assert done.returncode
    assert "ParityFailed" in done.stderr
    assert "nothing was published" in done.stderr


def test_torch_is_not_loaded_to_run_a_step(small: Artifact) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from ondevice.artifact import open_artifact\n"
        "from ondevice.backends.executorch_module import ExecutorchBackend\n"
        "from ondevice.golden_step import check_golden\n"
        "artifact = open_artifact(Path(sys.argv[1]))\n"
        "assert check_golden(ExecutorchBackend(artifact), artifact.initial(), artifact.golden()).passed\n"
        "assert 'torch' not in sys.modules and 'libtorch' not in Path('/proc/self/maps').read_text()\n"
    )
    arguments = [sys.executable, "-c", program, str(small.directory)]
    subprocess.run(arguments, check=True, cwd=Path(__file__).parents[1])
