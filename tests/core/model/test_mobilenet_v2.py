"""MobileNetV2 as the FedVC paper has it: its size, what learns of it, and weights from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.foreign import build_foreign
from ondevice.model.extractors.mobilenet_v2 import MobileNetV2
from ondevice.model.pretrained_weights import load_weights

SPEC = StepSpec("mobilenet_v2", 64, (3, 64, 64))


def test_it_has_the_parameters_of_the_original_without_its_classifier_and_a_bottleneck() -> None:
    """3,504,872 with ImageNet's classifier of 1,281,000 (Sandler et al. 2018); ours has 1280 x 64 + 64 instead."""
    count = sum(value.size for value in initial_parameters(SPEC, 0).values())
    assert count == 3_504_872 - (1280 * 1000 + 1000) + (1280 * 64 + 64) == 2_305_856


def test_an_embedding_as_wide_as_the_features_is_the_features() -> None:
    """The paper's bottleneck is for Landmarks; iNaturalist has the 1280 features and the classifier behind them."""
    spec = StepSpec("mobilenet_v2", 1280, (3, 64, 64))
    count = sum(value.size for value in initial_parameters(spec, 0).values())
    assert count == 3_504_872 - (1280 * 1000 + 1000)
    network = build_extractor(spec)
    assert isinstance(network, MobileNetV2)
    images = torch.rand(2, 3, 64, 64)
    expected = network.last(network.blocks(network.stem(images))).mean((2, 3))
    torch.testing.assert_close(network.embed(images), expected)


def test_the_last_two_layers_or_all_of_them_learn() -> None:
    last_two = StepSpec("mobilenet_v2", 64, (3, 64, 64), train="last-two")
    weights = initial_parameters(SPEC, 0)
    assert EagerBackend(last_two, weights).signature.trained == (
        "embedding.weight",
        "embedding.bias",
        "columns",
    )
    assert set(EagerBackend(SPEC, weights).signature.trained) == {*weights, "columns"}


@pytest.mark.parametrize("theirs", ["torchvision:mobilenet_v2", "timm:mobilenetv2_100"])
def test_weights_from_elsewhere_give_the_same_features(theirs: str, tmp_path: Path) -> None:
    """With the norms reduced to scale and bias on both sides, both networks compute the same function."""
    torch.manual_seed(0)
    network = build_foreign(StepSpec(theirs))
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 1.0, 2.0)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
            assert norm.running_var is not None
            norm.running_var.fill_(1 - norm.eps)
    torch.save(network.state_dict(), tmp_path / "theirs.pth")
    loaded = load_weights(tmp_path / "theirs.pth", initial_parameters(SPEC, 0))
    ours = build_extractor(SPEC)
    assert isinstance(ours, MobileNetV2)
    ours.load_state_dict({name: torch.from_numpy(value) for name, value in loaded.items()})
    for module in list(ours.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, ScaleAndBias(child))
    # Through 52 norms that scale up, float32 would tell of its rounding alone.
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    ours, network = ours.double(), network.double().eval()
    with torch.no_grad():
        expected = network(images).flatten(1)
        found = ours.last(ours.blocks(ours.stem(images))).mean((2, 3))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


class ScaleAndBias(nn.Module):
    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight[:, None, None] + self.bias[:, None, None]
