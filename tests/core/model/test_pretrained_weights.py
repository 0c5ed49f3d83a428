"""A MobileNetV3 with BatchNorm, in torchvision's or timm's naming, becomes ours: every tensor in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.backends.eager import initial_parameters
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import ArtifactError
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.mobilenet_v3 import LARGE, SMALL, BlockRow, MobileNetV3, divisible_by_8
from ondevice.model.pretrained_weights import load_weights

ROWS = {"mobilenet_v3_large": LARGE, "mobilenet_v3_small": SMALL}
TIMM_STAGES = {"mobilenet_v3_large": (1, 2, 3, 4, 2, 3), "mobilenet_v3_small": (1, 2, 3, 2, 3)}


@pytest.fixture(params=["mobilenet_v3_large", "mobilenet_v3_small"])
def spec(request: pytest.FixtureRequest) -> StepSpec:
    """With the pixels of ImageNet, on which such weights are trained."""
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return StepSpec(request.param, image_shape=(3, 32, 32), pixel_mean=mean, pixel_deviation=deviation)


def test_a_torchvision_checkpoint_gives_the_same_features(spec: StepSpec, tmp_path: Path) -> None:
    theirs = TorchvisionMobileNetV3(ROWS[spec.architecture])
    assert_same_features(spec, theirs, tmp_path)


def test_a_timm_checkpoint_gives_the_same_features(spec: StepSpec, tmp_path: Path) -> None:
    theirs = TimmMobileNetV3(ROWS[spec.architecture], TIMM_STAGES[spec.architecture])
    assert_same_features(spec, theirs, tmp_path)


def test_the_embedding_is_taken_when_it_has_our_size_and_fresh_otherwise(tmp_path: Path) -> None:
    theirs = TorchvisionMobileNetV3(LARGE)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    wide = StepSpec(embedding_dim=1280)
    taken = load_weights(tmp_path / "theirs.pth", initial_parameters(wide, 0))
    embedding = theirs.classifier[0]
    assert isinstance(embedding, nn.Linear)
    np.testing.assert_array_equal(taken["embedding.weight"], embedding.weight.detach().numpy())
    fresh = initial_parameters(StepSpec(), 0)
    kept = load_weights(tmp_path / "theirs.pth", fresh)
    np.testing.assert_array_equal(kept["embedding.weight"], fresh["embedding.weight"])


def test_our_own_names_are_read_back_from_safetensors_and_from_a_wrapped_checkpoint(tmp_path: Path) -> None:
    spec = StepSpec("three_convolutions", image_shape=(1, 16, 16))
    saved = initial_parameters(spec, 7)
    (tmp_path / "ours.safetensors").write_bytes(safetensors_file.to_bytes(saved, {}))
    tensors = {f"module.{name}": torch.from_numpy(value) for name, value in saved.items()}
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "ours.pth")
    for name in ("ours.safetensors", "ours.pth"):
        loaded = load_weights(tmp_path / name, initial_parameters(spec, 0))
        for tensor, value in saved.items():
            np.testing.assert_array_equal(loaded[tensor], value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda tensors: tensors.pop("features.3.block.1.0.weight"),
            r"has no features\.3\.block\.1\.0\.weight",
        ),
        (
            lambda tensors: tensors.update({"features.0.1.bias": torch.zeros(17)}),
            r"features\.0\.1\.bias .* \[17\]; expected \[16\]",
        ),
        (
            lambda tensors: tensors.update({"features.99.0.weight": torch.zeros(1)}),
            r"features\.99\.0\.weight .* no place",
        ),
        (
            lambda tensors: tensors["features.0.1.weight"].fill_(torch.nan),
            r"stem\.norm\.weight holds values that are not finite",
        ),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("features.0.")],
            "none of its names is ours",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(damage: object, message: str, tmp_path: Path) -> None:
    tensors = dict(TorchvisionMobileNetV3(SMALL).state_dict())
    assert callable(damage)
    damage(tensors)
    torch.save(tensors, tmp_path / "damaged.pth")
    with pytest.raises(ArtifactError, match=message):
        load_weights(tmp_path / "damaged.pth", initial_parameters(StepSpec("mobilenet_v3_small"), 0))


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors", "absent.pth"])
def test_an_unreadable_file_is_one_clear_error(name: str, tmp_path: Path) -> None:
    if "broken" in name:
        (tmp_path / name).write_bytes(b"not a checkpoint at all")
    with pytest.raises(ArtifactError, match=name):
        load_weights(tmp_path / name, initial_parameters(StepSpec("mobilenet_v3_small"), 0))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": Path("anything that is not a tensor")}, tmp_path / "code.pth")
    with pytest.raises(ArtifactError, match="cannot be read as a torch checkpoint of tensors alone"):
        load_weights(tmp_path / "code.pth", initial_parameters(StepSpec("mobilenet_v3_small"), 0))


def assert_same_features(spec: StepSpec, theirs: nn.Module, directory: Path) -> None:
    """With the norms reduced to scale and bias on both sides, both networks compute the same function."""
    path = directory / "theirs.pth"
    torch.save(theirs.state_dict(), path)
    loaded = load_weights(path, initial_parameters(spec, 0))
    ours = build_extractor(spec)
    assert isinstance(ours, MobileNetV3)
    ours.load_state_dict({name: torch.from_numpy(value) for name, value in loaded.items()})
    for module in list(ours.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, ScaleAndBias(child))
    images = torch.randint(256, (2, *spec.image_shape), dtype=torch.uint8)
    mean, deviation = (
        torch.tensor(values)[:, None, None] for values in (spec.pixel_mean, spec.pixel_deviation)
    )
    with torch.no_grad():
        expected = theirs.eval()((images / 255 - mean) / deviation)
        found = ours.last(ours.blocks(ours.stem(ours.pixels(images)))).mean((2, 3))
    assert expected.abs().max() > 1e-3  # the comparison below would also hold between two dead networks
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


class ScaleAndBias(nn.Module):
    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight[:, None, None] + self.bias[:, None, None]


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Random scale and bias; in evaluation its statistics change nothing."""
    norm = nn.BatchNorm2d(channels, eps=0.001)
    nn.init.uniform_(norm.weight, 1.0, 2.0)
    nn.init.uniform_(norm.bias, -0.5, 0.5)
    assert norm.running_var is not None
    norm.running_var.fill_(1 - norm.eps)
    return norm


def activation(name: str | None) -> nn.Module:
    return {"relu": nn.ReLU(), "hardswish": nn.Hardswish(), None: nn.Identity()}[name]


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int, groups: int, act: str | None
) -> nn.Sequential:
    """torchvision's Conv2dNormActivation: 0 the convolution, 1 the norm."""
    return nn.Sequential(
        convolution(inputs, outputs, kernel, stride, groups), batch_norm(outputs), activation(act)
    )


class TorchvisionSqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = divisible_by_8(channels // 4)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * F.hardsigmoid(self.fc2(F.relu(self.fc1(inputs.mean((2, 3), keepdim=True)))))


class TorchvisionBlock(nn.Module):
    def __init__(self, inputs: int, row: BlockRow) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if row.expanded != inputs:
            layers.append(conv_norm(inputs, row.expanded, 1, 1, 1, row.activation))
        layers.append(
            conv_norm(row.expanded, row.expanded, row.kernel, row.stride, row.expanded, row.activation)
        )
        if row.squeeze_excite:
            layers.append(TorchvisionSqueezeExcite(row.expanded))
        layers.append(conv_norm(row.expanded, row.out, 1, 1, 1, None))
        self.block = nn.Sequential(*layers)
        self.shortcut = row.stride == 1 and inputs == row.out

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.block(inputs)
        return inputs + outputs if self.shortcut else outputs


class TorchvisionMobileNetV3(nn.Module):
    """torchvision.models.mobilenet_v3_large / _small, names and shapes; gives the pooled features."""

    def __init__(self, rows: tuple[BlockRow, ...]) -> None:
        super().__init__()
        channels = [16, *(row.out for row in rows)]
        last, hidden = 6 * channels[-1], 1280 if rows is LARGE else 1024
        blocks = [TorchvisionBlock(inputs, row) for inputs, row in zip(channels, rows, strict=False)]
        self.features = nn.Sequential(
            conv_norm(3, 16, 3, 2, 1, "hardswish"),
            *blocks,
            conv_norm(channels[-1], last, 1, 1, 1, "hardswish"),
        )
        self.classifier = nn.Sequential(
            nn.Linear(last, hidden), nn.Hardswish(), nn.Dropout(), nn.Linear(hidden, 1000)
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        return features.mean((2, 3))


class TimmSqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, divisible_by_8(channels / 4), 1)
        self.conv_expand = nn.Conv2d(divisible_by_8(channels / 4), channels, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        gate = self.conv_expand(F.relu(self.conv_reduce(inputs.mean((2, 3), keepdim=True))))
        return inputs * F.hardsigmoid(gate)


class TimmSeparable(nn.Module):
    """timm's DepthwiseSeparableConv: the first stage, which does not expand."""

    def __init__(self, row: BlockRow) -> None:
        super().__init__()
        self.conv_dw = convolution(row.expanded, row.expanded, row.kernel, row.stride, row.expanded)
        self.bn1 = batch_norm(row.expanded)
        self.se = TimmSqueezeExcite(row.expanded) if row.squeeze_excite else nn.Identity()
        self.conv_pw = convolution(row.expanded, row.out, 1)
        self.bn2 = batch_norm(row.out)
        self.act, self.shortcut = activation(row.activation), row.stride == 1

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.bn2(self.conv_pw(self.se(self.act(self.bn1(self.conv_dw(inputs))))))
        return inputs + outputs if self.shortcut else outputs


class TimmInvertedResidual(nn.Module):
    def __init__(self, inputs: int, row: BlockRow) -> None:
        super().__init__()
        self.conv_pw = convolution(inputs, row.expanded, 1)
        self.bn1 = batch_norm(row.expanded)
        self.conv_dw = convolution(row.expanded, row.expanded, row.kernel, row.stride, row.expanded)
        self.bn2 = batch_norm(row.expanded)
        self.se = TimmSqueezeExcite(row.expanded) if row.squeeze_excite else nn.Identity()
        self.conv_pwl = convolution(row.expanded, row.out, 1)
        self.bn3 = batch_norm(row.out)
        self.act, self.shortcut = activation(row.activation), row.stride == 1 and inputs == row.out

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.act(self.bn1(self.conv_pw(inputs)))
        outputs = self.bn3(self.conv_pwl(self.se(self.act(self.bn2(self.conv_dw(outputs))))))
        return inputs + outputs if self.shortcut else outputs


class TimmConvNorm(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.bn1 = convolution(inputs, outputs, 1), batch_norm(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.hardswish(self.bn1(self.conv(inputs)))


class TimmMobileNetV3(nn.Module):
    """timm's mobilenetv3_large_100 / _small_100, names and shapes; gives the pooled features."""

    def __init__(self, rows: tuple[BlockRow, ...], stages: tuple[int, ...]) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = convolution(3, 16, 3, 2), batch_norm(16)
        remaining: Iterator[BlockRow] = iter(rows)
        channels = 16
        built: list[nn.Module] = []
        for count in stages:
            stage: list[nn.Module] = []
            for row in (next(remaining) for _ in range(count)):
                stage.append(
                    TimmSeparable(row) if row.expanded == channels else TimmInvertedResidual(channels, row)
                )
                channels = row.out
            built.append(nn.Sequential(*stage))
        self.blocks = nn.Sequential(*built, nn.Sequential(TimmConvNorm(channels, 6 * channels)))
        self.conv_head = nn.Conv2d(6 * channels, 1280 if rows is LARGE else 1024, 1)
        self.classifier = nn.Linear(self.conv_head.out_channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(F.hardswish(self.bn1(self.conv_stem(images))))
        return features.mean((2, 3))
