"""Raw pixels on ExecuTorch: one operator of ours in every shipped network, which refuses what it was not made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.lowering import _to_program
from export.executorch.pixels import fuse_pixels
from export.executorch.rules.planes import rewrite
from export.trace import trace_embed, trace_step
from ondevice.contract.vocabulary import IMAGES, StepSpec
from ondevice.model.extractors import ARCHITECTURES, build_extractor
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.train_step import TrainStep
from ondevice.native.runtime.program import Array, Program, ProgramError

fedss, aten = torch.ops.fedss, torch.ops.aten
MICRO_BATCH = 2


def calls_of(graph: fx.GraphModule, target: object) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function" and node.target is target]


def casts_of_images(graph: fx.GraphModule) -> list[fx.Node]:
    casts = calls_of(graph, aten._to_copy.default)
    return [node for node in casts if node.all_input_nodes[0].meta["val"].dtype is torch.uint8]


OF_IMAGES = [name for name in ARCHITECTURES if build_extractor(StepSpec(name, 8)).inputs[0].name == IMAGES]


@pytest.mark.parametrize("architecture", OF_IMAGES)
def test_every_shipped_network_reads_its_pixels_in_one_operator(architecture: str) -> None:
    spec = StepSpec(architecture, 8, (3, 32, 32))
    step = TrainStep(spec, build_extractor(spec))
    for traced in (trace_step(step, MICRO_BATCH), trace_embed(step, MICRO_BATCH)):
        assert len(casts_of_images(traced)) == 1
        fused = fuse_pixels(traced)
        (pixels,) = calls_of(fused, fedss.pixels.default)
        images = pixels.all_input_nodes[0]
        assert images.target == "images"
        assert list(images.users) == [pixels]
        assert not casts_of_images(fused)
        rewritten = rewrite(fused)
        assert len(calls_of(rewritten, fedss.pixels.default)) == 1


class _Otherwise(ImageExtractor):
    """Normalises by one number, which is not our operator's form."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self.embedding = nn.Linear(12, 8)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images.to(torch.float32) * 0.01 - 1)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(images.flatten(1))
        return embeddings


def test_pixels_that_are_normalised_in_another_way_stay_as_they_were_traced() -> None:
    spec = StepSpec("otherwise", 8, (3, 2, 2))
    fused = fuse_pixels(trace_step(TrainStep(spec, _Otherwise(spec)), MICRO_BATCH))
    assert not calls_of(fused, fedss.pixels.default)
    assert len(casts_of_images(fused)) == 1


class _Pixels(nn.Module):
    def forward(self, images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        normalised: Tensor = fedss.pixels(images, scale, shift)
        return normalised


@pytest.fixture(scope="module")
def exported() -> bytes:
    """The operator alone, with its constants as inputs, so that they can be wrong."""
    example = (torch.zeros(2, 3, 5, 7, dtype=torch.uint8), torch.zeros(3, 1, 1), torch.zeros(3, 1, 1))
    return _to_program(fx.symbolic_trace(_Pixels()), example, (None, None, None))


def claiming(exported: bytes, at: int, array: Array) -> bytes:
    """The program with another type and shape written into it for an input: no exporter would make it."""
    from executorch.exir._serialize import _program
    from executorch.exir.scalar_type import ScalarType

    file = _program.deserialize_pte_binary(exported)
    plan = file.program.execution_plan[0]
    tensor = plan.values[plan.inputs[at]].val
    tensor.sizes, tensor.dim_order = list(array.shape), list(range(array.ndim))
    tensor.scalar_type = {"uint8": ScalarType.BYTE, "int64": ScalarType.LONG, "float32": ScalarType.FLOAT}[
        array.dtype.name
    ]
    return bytes(_program.serialize_pte_binary(file))


def inputs() -> list[Array]:
    random = np.random.default_rng(0)
    constants = (random.uniform(0.01, 2, (3, 1, 1)).astype(np.float32) for _ in range(2))
    return [random.integers(0, 256, (2, 3, 5, 7), np.uint8), *constants]


def test_the_operator_computes_what_numpy_does(exported: bytes, tmp_path: Path) -> None:
    (tmp_path / "pixels.pte").write_bytes(exported)
    images, scale, shift = inputs()
    out = np.full(images.shape, np.nan, np.float32)
    Program(tmp_path / "pixels.pte").run([images, scale, shift], [out])
    expected = images * scale.astype(np.float64) - shift
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (0, np.zeros((2, 3, 5, 7), np.float32)),
        (0, np.zeros((2, 3, 5, 7), np.int64)),
        (0, np.zeros((2, 4, 5, 7), np.uint8)),
        (0, np.zeros((3, 2, 5, 7), np.uint8)),
        (0, np.zeros((6, 5, 7), np.uint8)),
        (1, np.zeros((1, 1, 1), np.float32)),
        (1, np.zeros((1, 3, 1), np.float32)),
        (1, np.zeros((3,), np.float32)),
        (2, np.zeros((4, 1, 1), np.float32)),
        (2, np.zeros((3, 1, 1), np.int64)),
    ],
    ids=lambda value: f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else str(value),
)
def test_the_operator_refuses_what_it_was_not_made_for(
    exported: bytes, at: int, wrong: Array, tmp_path: Path
) -> None:
    (tmp_path / "pixels.pte").write_bytes(claiming(exported, at, wrong))
    given = inputs()
    given[at] = wrong
    # Of the operator itself (InvalidArgument), not of the runtime that hands it its arguments.
    with pytest.raises(ProgramError, match=r"cannot run: .*ExecuTorch error 18"):
        Program(tmp_path / "pixels.pte").run(given, [np.empty((2, 3, 5, 7), np.float32)])


@pytest.mark.parametrize(
    ("images", "scale"),
    [
        (torch.zeros(2, 3, 5, 7), torch.zeros(3, 1, 1)),
        (torch.zeros(2, 3, 5, 7, dtype=torch.uint8), torch.zeros(3)),
        (torch.zeros(3, 5, 7, dtype=torch.uint8), torch.zeros(3, 1, 1)),
    ],
)
def test_wrong_shapes_are_refused_when_the_step_is_exported(images: Tensor, scale: Tensor) -> None:
    with pytest.raises((ValueError, RuntimeError), match="pixels"):
        fedss.pixels(images.to("meta"), scale.to("meta"), scale.to("meta"))
