"""Dropout and its like decided by noise: the masks are those of plain torch, per example, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.networks.noisy_network import DropPath, NoisyNetwork, plain_embeddings, spec_of
from torch import Tensor, nn
from torch.nn import functional as F

from export.audit import check_examples_are_independent
from export.proof.golden import draw_noise, float64_copy
from export.trace import trace_embed, trace_step
from ondevice.client.noise import BatchNoise
from ondevice.contract.step_signature import EXAMPLES
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.foreign import UnusableModel
from ondevice.model.noise import WithNoise, kept
from ondevice.model.train_step import Embedding, TrainStep

SIZES = {
    "noise/model.channels": 8,
    "noise/model.numbers": 8 * 25,
    "noise/model.path": 1,
    "noise/model.attention": 2 * 25 * 25,
    "noise/model": 8,
}


def exact_step() -> TrainStep:
    spec = spec_of(NoisyNetwork())
    return float64_copy(TrainStep(spec, build_extractor(spec)))


def images(count: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, 3, 12, 12), np.uint8))


def noise_of(step: TrainStep, count: int) -> dict[str, Tensor]:
    drawn = BatchNoise(step.signature, 5, 2, 0).next(count)
    return {name: torch.from_numpy(array).double() for name, array in drawn.items()}


def test_every_random_layer_is_an_input_by_its_path() -> None:
    step = exact_step()
    assert {spec.name: spec.shape for spec in step.signature.noise} == {
        name: (EXAMPLES, size) for name, size in SIZES.items()
    }
    remark = (
        "randomness by noise of the client in 5 modules: 1 DropPath, 1 Dropout, 1 Dropout2d, 1 MultiheadAttention, "
        "1 NoisyNetwork; 1,467 numbers (5,868 bytes) per example (--randomness input)"
    )
    assert remark in step.extractor.remarks


def test_given_numbers_give_what_a_plain_network_gives_with_the_same_masks() -> None:
    step = exact_step()
    noise, seen = noise_of(step, 6), images(6)
    found = WithNoise(step.extractor)(seen, *noise.values())
    weights = dict(step.extractor.named_parameters())
    expected = plain_embeddings(weights, step.extractor.get_submodule("pixels")(seen), noise)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    names = [name for name in weights if name not in step.extractor.idle]
    gradients = [
        torch.autograd.grad(outputs.square().sum(), [weights[name] for name in names])
        for outputs in (found, expected)
    ]
    for name, got, right in zip(names, *gradients, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-10, msg=name)


def test_examples_have_noise_of_their_own_so_that_pieces_add_up() -> None:
    step = exact_step()
    check_examples_are_independent(step, 0)
    noise, seen = noise_of(step, 5), images(5)
    whole = WithNoise(step.extractor)(seen, *noise.values())
    pieces = [
        WithNoise(step.extractor)(seen[piece], *(numbers[piece] for numbers in noise.values()))
        for piece in (slice(0, 2), slice(2, 5))
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-12, atol=1e-12)


def test_a_clients_noise_does_not_depend_on_how_a_batch_is_split() -> None:
    signature = exact_step().signature
    whole = BatchNoise(signature, 5, 2, 7).next(9)
    split = BatchNoise(signature, 5, 2, 7)
    pieces = [split.next(count) for count in (4, 4, 1)]
    for name, numbers in whole.items():
        assert np.array_equal(numbers, np.concatenate([piece[name] for piece in pieces]))
    for other in ((6, 2, 7), (5, 3, 7), (5, 2, 8)):
        assert not np.array_equal(whole["noise/model"], BatchNoise(signature, *other).next(9)["noise/model"])


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9, 0.999])
def test_masks_keep_the_share_that_they_should(probability: float) -> None:
    signature = exact_step().signature
    drawn = [BatchNoise(signature, seed, 0, 0).next(40)["noise/model.attention"] for seed in range(8)]
    numbers = torch.from_numpy(np.stack(drawn))
    mask = kept(numbers, probability).double()
    deviation = (probability * (1 - probability) / mask.numel()) ** 0.5
    assert abs(float(mask.mean()) - probability) < 5 * deviation
    # Neither neighbours nor examples have to do with each other.
    for shifted in (mask.roll(1, -1), mask.roll(1, 1), mask.roll(1, 0)):
        covariance = float(((mask - probability) * (shifted - probability)).mean())
        assert abs(covariance) < 5 * probability * (1 - probability) / mask.numel() ** 0.5


@pytest.mark.parametrize("probability", [0.1, 1 / 3, 0.7, 0.9, 1.0])
def test_both_precisions_keep_the_same(probability: float) -> None:
    at = round(probability * 2**24)
    numbers = torch.arange(max(0, at - 3), min(at + 3, 2**24)).double() / 2**24
    assert torch.equal(kept(numbers, probability), kept(numbers.float(), probability))
    assert torch.equal(kept(numbers, probability), numbers < probability)


def test_evaluation_has_no_noise_and_off_is_what_it_was() -> None:
    network = NoisyNetwork()
    by_input, off = (build_extractor(spec_of(network, randomness), seed=3) for randomness in ("input", "off"))
    seen = images(3)
    assert torch.equal(Embedding(by_input)(seen), Embedding(off)(seen))
    step = TrainStep(spec_of(network), by_input)
    step(*(torch.from_numpy(array) for array in made_up_data(step).values()))
    assert torch.equal(Embedding(by_input)(seen), Embedding(off)(seen))
    graphs = [trace_embed(TrainStep(spec_of(network), each), 2).graph for each in (by_input, off)]
    assert str(graphs[0]) == str(graphs[1])
    assert not TrainStep(spec_of(network, "off"), off).signature.noise


def test_a_network_without_randomness_has_the_same_step_either_way() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 1))
    steps = [
        TrainStep(spec, build_extractor(spec))
        for spec in (spec_of(network, "off"), spec_of(network, "input"))
    ]
    assert steps[0].signature == steps[1].signature
    assert steps[0].extractor.remarks == steps[1].extractor.remarks
    graphs = [trace_step(step, 2).graph for step in steps]
    assert str(graphs[0]) == str(graphs[1])


def made_up_data(step: TrainStep) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "columns": random.standard_normal((3, 4), np.float32),
        "adjust": np.zeros(3, np.float32),
        "images": random.integers(0, 256, (2, 3, 12, 12), np.uint8),
        "labels": np.array([0, 2]),
        **{spec.name: draw_noise(spec, 2, random) for spec in step.signature.noise},
        "example_weight": np.full(2, 0.5, np.float32),
    }


class Drawing(nn.Module):
    """A function of a training network in a module."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x.mean((2, 3)))
        return self.draw(x) if self.training else x


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda x: x * torch.rand_like(x), lambda x, u: x * u),
        (lambda x: x * torch.rand(x.shape), lambda x, u: x * u),
        (lambda x: x + torch.empty_like(x).uniform_(-1, 3), lambda x, u: x + 4 * u - 1),
        (lambda x: x * torch.bernoulli(x, 0.25), lambda x, u: x * (u < 0.25)),
        (lambda x: F.dropout(x, 0.75), lambda x, u: x * (u < 0.25) * 4),
        (lambda x: F.dropout(x.clone(), 0.75, inplace=True), lambda x, u: x * (u < 0.25) * 4),
        (lambda x: F.dropout1d(x[:, :, None], 0.5)[:, :, 0], lambda x, u: x * (u < 0.5) * 2),
        (lambda x: F.dropout(x.t(), 0.5).t(), lambda x, u: x * (u < 0.5) * 2),
    ],
)
def test_uniform_draws_of_any_kind(
    draw: Callable[[Tensor], Tensor], expected: Callable[[Tensor, Tensor], Tensor]
) -> None:
    spec = replace(spec_of(Drawing(draw)), embedding_dim=4)
    extractor = build_extractor(spec).double()
    u = torch.from_numpy(
        BatchNoise(TrainStep(spec, extractor).signature, 1, 1, 1).next(2)["noise/model"]
    ).double()
    network = extractor.get_submodule("model")
    assert isinstance(network, Drawing)
    pixels = extractor.get_submodule("pixels")(images(2))
    right = extractor.get_submodule("embedding")(expected(network.layer(pixels.mean((2, 3))), u))
    torch.testing.assert_close(WithNoise(extractor)(images(2), u), right, rtol=1e-12, atol=1e-12)


def test_everything_dropped_and_nothing_dropped_need_no_noise() -> None:
    spec = spec_of(nn.Sequential(nn.Dropout(0.0), nn.Conv2d(3, 4, 1), nn.Dropout(1.0)))
    step = TrainStep(spec, build_extractor(spec))
    assert not step.signature.noise


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda x: x + torch.randn_like(x), "Drawing at model draws random numbers that are not uniform"),
        (lambda x: x * torch.rand(4), r"draws \[4\] random numbers for 2 examples and \[4\] for 3"),
        (lambda x: F.dropout(x @ x.t()) @ x, r"draws \[2, 2\] random numbers for 2 examples and \[3, 3\]"),
        (lambda x: F.dropout(x) if len(x) == 2 else x, "draws 1 times for 2 examples and 0 times for 3"),
    ],
)
def test_a_draw_that_noise_cannot_decide_is_refused_with_what_to_do(
    draw: Callable[[Tensor], Tensor], words: str
) -> None:
    with pytest.raises(UnusableModel, match=rf"{words}.*--randomness off"):
        build_extractor(spec_of(Drawing(draw)))


def test_examples_that_lie_the_other_way_round_are_found() -> None:
    """Heads before examples: noise would be given to the wrong one, and the audit sees it."""

    def mixed(x: Tensor) -> Tensor:
        return F.dropout(torch.cat([x, x]), 0.5).reshape(2, *x.shape).sum(0)

    spec = spec_of(Drawing(mixed))
    with pytest.raises(UnusableModel, match="does not treat every example by itself"):
        check_examples_are_independent(TrainStep(spec, build_extractor(spec)), 0)


def test_a_shared_layer_has_an_input_for_every_call() -> None:
    layer = DropPath(0.3)
    spec = spec_of(nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.ReLU(), layer))
    names = [array.name for array in TrainStep(spec, build_extractor(spec)).signature.noise]
    assert names == ["noise/model.1", "noise/model.1:2"]


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "expected"),
    [
        ("timm:convnext_atto", {"drop_path_rate": 0.3}, "drop_path", [1] * 11),
        (
            "torchvision:efficientnet_b0",
            {"stochastic_depth_prob": 0.3, "dropout": 0.4},
            "stochastic_depth",
            [1] * 9 + [1280],
        ),
    ],
)
def test_networks_of_the_packages_take_noise(
    name: str, arguments: dict[str, float], kind: str, expected: list[int]
) -> None:
    spec = StepSpec(name, 4, (3, 32, 32), architecture_arguments=arguments, randomness="input")
    noise = TrainStep(spec, build_extractor(spec)).signature.noise
    assert [array.shape[1] for array in noise] == expected
    assert sum(array.name.endswith(f".{kind}") for array in noise) == expected.count(1)
