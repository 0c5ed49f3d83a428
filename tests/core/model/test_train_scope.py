"""What learns: presets, patterns over the names of parameters, and low-rank adapters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.foreign import give
from ondevice.model.train_step import TrainStep


def learning_names(model: nn.Module, train: str) -> tuple[str, ...]:
    spec = StepSpec(give(model), 4, (3, 8, 8), train=train)
    return TrainStep(spec, build_extractor(spec)).trainable


BLOCKS = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.GroupNorm(1, 3)) for _ in range(3)))


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("head", []),
        ("last-two", ["embedding.weight", "embedding.bias"]),
        ("2.1", ["model.2.1.weight", "model.2.1.bias"]),
        ("2.*.bias, embedding.bias", ["model.2.0.bias", "model.2.1.bias", "embedding.bias"]),
        ("model.0.1.weight,last-two", ["model.0.1.weight", "embedding.weight", "embedding.bias"]),
    ],
)
def test_what_learns_is_presets_and_patterns(train: str, expected: list[str]) -> None:
    assert list(learning_names(BLOCKS, train)) == expected


def test_norms_and_biases_leaves_the_weights_of_layers_where_they_are() -> None:
    learning = learning_names(BLOCKS, "norms-and-biases")
    assert "model.0.1.weight" in learning
    assert "model.0.0.bias" in learning
    assert "embedding.weight" in learning
    assert "model.0.0.weight" not in learning


@pytest.mark.parametrize(
    ("architecture", "train", "first"),
    [
        ("mobilenet_v3_small", "last-blocks 3", "blocks.8.expand.conv.weight"),
        ("timm:mobilenetv3_small_050", "last-blocks 1", "model.blocks.5.0.conv.weight"),
        ("torchvision:resnet18", "last-blocks 2", "model.layer4.0.conv1.weight"),
        ("timm:convnext_atto", "last-blocks 1", "model.stages.3.blocks.1.gamma"),
    ],
)
def test_the_last_blocks_and_everything_behind_them(architecture: str, train: str, first: str) -> None:
    spec = StepSpec(architecture, 4, (3, 32, 32), train=train)
    learning = TrainStep(spec, build_extractor(spec)).trainable
    assert learning[0] == first
    assert learning[-1] == "embedding.bias"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("embeding", "names such as .*embedding"),
        ("all,,head", "between its commas"),
        ("lora:0", "rank R of 1 or more"),
        ("last-blocks", "a number of blocks"),
        ("last-blocks 9", "the model has 2 blocks, from .*blocks"),
    ],
)
def test_a_scope_that_cannot_be_is_refused(train: str, words: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.blocks(x)
            return out

    with pytest.raises(ValueError, match=words):
        learning_names(Net(), train)


def test_adapters_start_as_nothing_and_alone_travel() -> None:
    plain, adapted = (
        StepSpec("mobilenet_v3_small", 8, (3, 32, 32), train=train) for train in ("all", "lora:4")
    )
    extractors = [build_extractor(spec).double() for spec in (plain, adapted)]
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(extractors[0](images), extractors[1](images))
    learning = TrainStep(adapted, extractors[1]).trainable
    assert all(name.startswith("embedding.") or ".lora_" in name for name in learning)
    sizes = [sum(spec.sizes({})[0] for spec in TrainStep(adapted, extractors[1]).signature.dense)]
    assert 0 < sizes[0] < 100_000
