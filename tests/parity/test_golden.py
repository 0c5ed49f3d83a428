"""The golden step: the truth in float64, over examples that no rounding can push across a kink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from export.proof.golden_images import (
    BLACK,
    KINDS,
    WHITE,
    black,
    grey,
    level_edge,
    nearly_flat,
    noise,
    upright_edge,
    white,
)
from export.proof.kinks import AcrossKinks, clearance, roundings_of
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.contract import safetensors_file
from ondevice.contract.artifacts.golden_bounds import check_golden_step
from ondevice.contract.golden_step import check_golden, golden_from_tensors, golden_to_tensors
from ondevice.contract.vocabulary import EXCLUDED, IMAGES, StepSpec
from ondevice.model.extractors.foreign import give

SPEC = StepSpec("mobilenet_v3_small", embedding_dim=8, image_shape=(3, 32, 32))


@pytest.mark.parametrize("position", [KINDS.index(kind) for kind in (nearly_flat, upright_edge, grey, noise)])
def test_chosen_examples_stay_clear_of_kinks_where_others_do_not(position: int) -> None:
    step = float64_copy(build_step(SPEC, initial_parameters(SPEC, 0)))
    images = draw_features(step, position + 1, seed=0)[IMAGES]
    chosen = clearance(step.extractor, [images[-1:]])[0]
    random = np.random.default_rng(1)
    others = np.stack([KINDS[position](random, SPEC.image_shape) for _ in range(12)])
    assert chosen > clearance(step.extractor, [others]).min()
    assert chosen > 1  # rounding alone does not carry any of its activations across


def test_a_batch_shows_every_kind_of_image_and_then_noise() -> None:
    step = float64_copy(build_step(SPEC, initial_parameters(SPEC, 0)))
    images = draw_features(step, len(KINDS) + 1, seed=0)[IMAGES]
    assert images.dtype == np.uint8
    spread = [len(np.unique(image)) for image in images]
    assert [KINDS[position] for position, values in enumerate(spread[:-1]) if values == 1] == [
        white,
        grey,
        black,
    ]
    assert [KINDS[position] for position, values in enumerate(spread[:-1]) if values == 2] == [
        nearly_flat,
        upright_edge,
        level_edge,
    ]
    assert (images[KINDS.index(nearly_flat)] == BLACK).sum() == 3  # one pixel, in three colours
    assert min(spread[0], spread[-2], spread[-1]) > 250  # of 256 levels
    upper = images[0][:, :16]
    assert (upper == WHITE).sum() == (upper == BLACK).sum() == 3 * 32 * 32 / 4
    assert not np.array_equal(images[-1], images[-2])


class Activated(torch.nn.Module):
    """One activation of inputs scaled by a number that float32 does not have."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.1, dtype=torch.float64))
        self._activation = getattr(torch.nn.functional, activation)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self._activation(images * self.scale)
        return activated


@pytest.mark.parametrize(
    ("activation", "kink"),
    [
        ("relu", 0.0),
        ("hardswish", -3.0),
        ("hardsigmoid", 3.0),
        ("relu6", 6.0),
        ("leaky_relu", 0.0),
        ("hardtanh", 1.0),
    ],
)
def test_what_is_within_rounding_of_a_kink_goes_to_its_other_side(activation: str, kink: float) -> None:
    network = Activated(activation)
    images = np.array([[(kink + 1e-7) / 1.1, 0.7, -0.8], [0.9, (kink + 0.3) / 1.1, 1.3]], np.float32)
    roundings = roundings_of(network, [images])
    assert len(roundings) == 1
    assert 0 < roundings[0].min() <= roundings[0].max() < 1e-6
    near, far = clearance(network, [images])
    assert near < 100
    assert far > 1e5
    x = torch.from_numpy(images).double()
    with AcrossKinks([torch.tensor(1e-6)]):
        moved = network(x)
    mirrored = x * network.scale
    mirrored[0, 0] = 2 * kink - mirrored[0, 0]
    torch.testing.assert_close(moved, network._activation(mirrored), rtol=0, atol=0)


@pytest.mark.parametrize(
    "activation",
    [torch.nn.ReLU, torch.nn.ReLU6, torch.nn.Hardswish, lambda inplace: torch.nn.Hardtanh(-2, 2, inplace)],
)
def test_an_activation_that_writes_over_its_input_is_as_near_to_its_kinks(
    activation: Callable[..., torch.nn.Module],
) -> None:
    images = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    linear = torch.nn.Linear(8, 16).double()
    plain, in_place = (
        clearance(torch.nn.Sequential(linear, activation(inplace=write)), [images]) for write in (False, True)
    )
    assert plain.min() > 0
    np.testing.assert_array_equal(plain, in_place)


def test_a_plane_that_is_off_by_more_than_its_tensor_is_measured_by_itself() -> None:
    images = np.random.default_rng(0).uniform(0.5, 1, (2, 3, 8, 8)).astype(np.float32)
    images[1, 2] *= 1000
    (rounding,) = roundings_of(Activated("relu"), [images])
    assert rounding.shape == (2, 3, 1, 1)
    assert rounding[1, 2] == rounding.max()
    others = torch.cat([rounding[0].flatten(), rounding[1, :2].flatten()])
    assert torch.equal(others, others[:1].expand(5))
    assert rounding[1, 2] > 2 * others[0]


class StartsAtNothing(torch.nn.Module):
    """A block whose last scale is 0 at first, as in timm's ResNets: its sum lies on the kink wherever its input is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 1)
        self.scale = torch.nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(images))
        return torch.relu(x + self.scale * self.block(x))


def test_a_weight_of_zero_is_no_rounding_away_from_others() -> None:
    spec = StepSpec(give(StartsAtNothing()), 4, (3, 8, 8))
    step = float64_copy(build_step(spec, initial_parameters(spec, 0)))
    golden = expected_step(step, draw_features(step, 2, seed=0), 4, seed=0)
    scale = "model.scale"
    assert golden.eager_distance[scale] < 1e-4 * np.linalg.norm(golden.gradients[scale])


@pytest.mark.parametrize("train", ["all", "last-two", "head"])
@pytest.mark.parametrize("logits", ["cosine", "dot"])
@pytest.mark.parametrize("width", [1, 2, 9])
def test_eager_reproduces_the_expected_step(train: str, logits: str, width: int) -> None:
    spec = StepSpec("three_convolutions", 8, (1, 16, 16), logits=logits, train=train)  # type: ignore[arg-type] # parametrized
    weights = initial_parameters(spec, 1)
    step = float64_copy(build_step(spec, weights))
    golden = expected_step(step, draw_features(step, len(KINDS) + 1, seed=2), width, seed=3)
    assert list(golden.gradients) == [*step.trainable, "columns"]
    comparison = check_golden(EagerBackend(spec, weights), weights, golden)
    assert comparison.passed, comparison.explain()


def test_padding_is_part_of_the_step_and_no_label_points_at_it() -> None:
    step = float64_copy(build_step(SPEC, initial_parameters(SPEC, 0)))
    golden = expected_step(step, {IMAGES: np.zeros((5, 3, 32, 32), np.uint8)}, rows=4, seed=0)
    assert list(golden.inputs) == [spec.name for spec in step.signature.data]
    assert golden.inputs["adjust"][-1] == EXCLUDED
    assert golden.inputs["labels"].max() < 3
    assert not golden.gradients["columns"][-1].any()
    weight = golden.inputs["example_weight"]
    assert weight.sum() == pytest.approx(1)
    assert len(set(weight)) == 5


def test_a_golden_step_survives_being_saved_and_is_bounded_when_read() -> None:
    spec = StepSpec("three_convolutions", 8, (1, 16, 16))
    step = float64_copy(build_step(spec, initial_parameters(spec, 1)))
    golden = expected_step(step, draw_features(step, 3, seed=2), rows=5, seed=3)
    tensors, _ = safetensors_file.from_bytes(safetensors_file.to_bytes(golden_to_tensors(golden), {}))
    read = golden_from_tensors(tensors, step.signature)
    for found, expected in ((read.inputs, golden.inputs), (read.gradients, golden.gradients)):
        assert list(found) == list(expected)
        for name, array in expected.items():
            assert np.array_equal(found[name], array)
    assert read.loss == np.float32(golden.loss)
    assert read.eager_distance == pytest.approx(golden.eager_distance, rel=1e-6)
    check_golden_step(read, step.signature, {"b": 4, "rows:columns": 8})
    generous = replace(read, eager_distance={**read.eager_distance, "columns": 1.0})
    with pytest.raises(ValueError, match="eager_distance of columns is 1; expected 0 to"):
        check_golden_step(generous, step.signature, {})
    with pytest.raises(ValueError, match="3 examples; the step takes 1 to 2"):
        check_golden_step(read, step.signature, {"b": 2})
