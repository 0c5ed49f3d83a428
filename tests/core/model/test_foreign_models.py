"""Networks from elsewhere: how they are named, what is done to them, what learns, and what is refused in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from export.audit import check_examples_are_independent
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.contract.artifact import ArtifactError
from ondevice.contract.artifacts.manifest import Fields, _spec  # type: ignore[attr-defined]
from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.batch_norm import GroupedNorm
from ondevice.model.extractors import build_extractor, check_architecture, state_of
from ondevice.model.extractors.defaults import completed
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.extractors.foreign import UnusableModel, give
from ondevice.model.named_code import UnusableCode
from ondevice.model.pretrained_weights import load_weights
from ondevice.model.train_step import TrainStep

FILE = """
from torch import nn

def build(width=4, drop=0.0):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(True), nn.Dropout(drop), nn.Conv2d(width, 6, 1)
    )

def sized(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * spec.image_shape[1] ** 2, 5))

def number():
    return 7
"""


@pytest.fixture
def file_spec(tmp_path: Path) -> StepSpec:
    (tmp_path / "own.py").write_text(FILE)
    return StepSpec(f"{tmp_path}/own.py:build", 4, (3, 8, 8))


class Noisy(nn.Module):
    """Randomness in three spellings: a module's, a function's, attention's own."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.attention = nn.Dropout(0.5), nn.MultiheadAttention(4, 2, 0.5, batch_first=True)
        self.layer, self.unused = nn.Conv2d(3, 4, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = self.dropout(self.layer(x)).flatten(2).transpose(1, 2)
        mixed: Tensor = self.attention(places, places, places)[0]
        return F.dropout(mixed, 0.5, self.training)


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class AlwaysNoisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class TwoInputs(Extractor):
    """An extractor of its own inputs: tokens with a mask, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = (
            ArraySpec("tokens", "feature", ("b", 5), "int64"),
            ArraySpec("numbers", "feature", ("b", 3)),
        )
        self.table, self.embedding = nn.Embedding(9, 4), nn.Linear(7, 4)

    def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        mask = (tokens != 0).unsqueeze(2)
        embeddings: Tensor = self.embedding(torch.cat([(self.table(tokens) * mask).sum(1), numbers], 1))
        return embeddings


def given(model: nn.Module, **settings: str) -> StepSpec:
    return StepSpec(give(model), 4, (3, 8, 8), **settings)  # type: ignore[arg-type]


def test_a_file_is_a_model_with_arguments_and_ends_in_an_embedding(file_spec: StepSpec) -> None:
    wide = replace(file_spec, architecture_arguments={"width": 5})
    shapes = {name: value.shape for name, value in initial_parameters(wide, 0).items()}
    assert shapes["model.0.weight"] == (5, 3, 3, 3)
    assert shapes["embedding.weight"] == (4, 6)
    backend = EagerBackend(wide, initial_parameters(wide, 0))
    assert [spec.describe() for spec in backend.signature.features] == ["uint8 [b, 3, 8, 8]"]
    by_spec = replace(file_spec, architecture=file_spec.architecture.replace("build", "sized"))
    assert initial_parameters(by_spec, 0)["model.1.weight"].shape == (5, 3 * 8 * 8)


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_state(file_spec: StepSpec) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = (initial_parameters(file_spec, 5) for _ in range(2))
    assert torch.equal(torch.rand(2), expected)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mobilenet_v3_smal", "did you mean mobilenet_v3_small"),
        ("timm:", "expected timm:NAME"),
        ("nowhere/own.py:build", "there is no file nowhere/own.py"),
        ("object:helpers.Gone", "handed over as an object, in another process"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_imported(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_architecture(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name: name.replace("build", "bild"), "has no function 'bild'; did you mean build"),
        (lambda name: name.replace("build", "number"), "gives a int; expected a torch.nn.Module"),
        (lambda _: "no.such.package:build", "there is no module 'no'"),
        (lambda _: "timm:mobilenetv3_smal_100", "did you mean mobilenetv3_small_100"),
        (lambda _: "torchvision:resnet19", "did you mean resnet18"),
        (lambda _: "timm:vit_tiny_patch16_224", "--model-arg img_size=8"),
    ],
)
def test_what_cannot_be_built_says_why(file_spec: StepSpec, change: Callable[[str], str], words: str) -> None:
    with pytest.raises(UnusableCode, match=words):
        build_extractor(replace(file_spec, architecture=change(file_spec.architecture)))


def test_an_argument_that_a_builder_does_not_have_is_named(file_spec: StepSpec) -> None:
    with pytest.raises(UnusableModel, match="unexpected keyword argument 'depth'"):
        build_extractor(replace(file_spec, architecture_arguments={"depth": 2}))


@pytest.mark.parametrize("name", ["timm:mobilenetv3_small_050", "torchvision:squeezenet1_1"])
def test_a_network_of_a_package_steps_in_eager_torch(name: str) -> None:
    spec = StepSpec(name, 8, (3, 32, 32))
    weights = initial_parameters(spec, 0)
    backend = EagerBackend(spec, weights)
    rng = np.random.default_rng(0)
    arrays = {
        **{dense.name: weights[dense.name] for dense in backend.signature.dense},
        "columns": rng.standard_normal((3, 8), np.float32),
        "adjust": np.zeros(3, np.float32),
        "images": rng.integers(0, 256, (2, 3, 32, 32), np.uint8),
        "labels": np.array([0, 2]),
        "example_weight": np.full(2, 0.5, np.float32),
    }
    outputs = backend.step(arrays)
    assert np.isfinite(outputs["loss"])
    assert np.abs(outputs["gradient/embedding.weight"]).max() > 0


def test_statistics_are_kept_under_frozen_and_gone_under_group(file_spec: StepSpec) -> None:
    frozen, group = (build_extractor(replace(file_spec, batch_norm=policy)) for policy in ("frozen", "group"))
    assert {"model.1.running_mean", "model.1.running_var"} <= set(state_of(frozen))
    assert not any("running" in name for name in state_of(group))
    assert isinstance(group.get_submodule("model.1"), GroupedNorm)
    assert group.get_submodule("model.1").num_groups == 4
    assert "1 BatchNorm layer: statistics frozen" in frozen.remarks[0]
    assert "1 BatchNorm layer: GroupNorm" in group.remarks[0]
    for extractor in (frozen, group):
        check_examples_are_independent(TrainStep(file_spec, extractor), 0)


class Transposed(nn.Module):
    """A frozen BatchNorm whose output is read as a sequence, as timm's LeViT does: the gradient comes back transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5))
        self.weights = nn.Parameter(torch.randn(36, 5))

    def forward(self, images: Tensor) -> Tensor:
        weighed: Tensor = self.layers(images).flatten(2).transpose(1, 2) * self.weights
        return weighed.square()


def test_one_example_alone_has_half_the_gradient_of_two_of_it() -> None:
    extractor = build_extractor(StepSpec(give(Transposed()), 4, (3, 8, 8), batch_norm="frozen"))
    image = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
    alone, twice = (
        torch.autograd.grad(extractor(images).square().sum(), list(extractor.parameters()))
        for images in (image, torch.cat([image, image]))
    )
    for one, two in zip(alone, twice, strict=True):
        torch.testing.assert_close(2 * one, two, rtol=1e-4, atol=1e-6)


def test_the_activation_inside_a_norm_of_timm_survives_its_conversion() -> None:
    extractor = build_extractor(StepSpec("timm:mobilenetv3_small_050", 4, (3, 32, 32)))
    norms = [module for module in extractor.modules() if isinstance(module, GroupedNorm)]
    assert any(isinstance(norm.act, nn.Hardswish) for norm in norms)


def test_the_policy_follows_from_where_the_weights_come_from(file_spec: StepSpec) -> None:
    assert completed(file_spec, False, None).batch_norm == "group"
    assert completed(file_spec, True, None).batch_norm == "frozen"
    assert completed(file_spec, True, "group").batch_norm == "group"
    trained = completed(
        StepSpec("torchvision:resnet18", architecture_arguments={"weights": "X"}), False, None
    )
    assert trained.batch_norm == "frozen"
    assert trained.pixel_mean == (0.485, 0.456, 0.406)
    norm = nn.BatchNorm2d(3)
    assert completed(given(norm), False, None).batch_norm == "group"
    norm(torch.randn(4, 3, 8, 8) + 1)
    assert completed(given(norm), False, None).batch_norm == "frozen"


def test_randomness_is_found_wherever_it_is_written_and_switched_off() -> None:
    extractor = build_extractor(given(Noisy()))
    assert "randomness off in 3 modules: 1 Dropout, 1 MultiheadAttention, 1 Noisy" in extractor.remarks
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(extractor(images), extractor(images))
    # Nothing else left training mode.
    assert extractor.get_submodule("model.layer").training


def test_parameters_without_a_gradient_are_reported_and_do_not_travel() -> None:
    extractor = build_extractor(given(Noisy()))
    assert extractor.idle == ("model.unused.weight", "model.unused.bias")
    assert any("2 parameters get no gradient" in remark for remark in extractor.remarks)
    assert not set(extractor.idle) & set(TrainStep(given(Noisy()), extractor).trainable)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (AlwaysNoisy(), "AlwaysNoisy at model draws random numbers"),
        (nn.Unflatten(1, (3, 1)), r"gives \[2, 3, 1, 8, 8\]; expected features"),
        (nn.Linear(5, 5), r"cannot take \[2, 3, 8, 8\]"),
    ],
)
def test_a_model_that_cannot_be_an_extractor_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(UnusableCode, match=words):
        build_extractor(given(model))


def test_a_model_that_mixes_examples_is_refused_with_the_culprit() -> None:
    spec = given(nn.Sequential(nn.Conv2d(3, 4, 3), Centred(), nn.ReLU()))
    with pytest.raises(UnusableModel, match=r"begins in Centred at model\.1"):
        check_examples_are_independent(TrainStep(spec, build_extractor(spec)), 0)


def test_an_extractor_of_its_own_inputs_is_taken_as_it_is() -> None:
    spec = given(TwoInputs())
    signature = TrainStep(spec, build_extractor(spec)).signature
    assert [feature.name for feature in signature.features] == ["tokens", "numbers"]
    with pytest.raises(UnusableModel, match="embedding_dim is 5"):
        build_extractor(replace(spec, embedding_dim=5))


def test_a_networks_own_checkpoint_loads_without_its_classifier(file_spec: StepSpec, tmp_path: Path) -> None:
    spec = replace(file_spec, batch_norm="frozen", train="lora:1")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 6, 1))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    norm(torch.randn(3, 4, 2, 2))
    torch.save({**model.state_dict(), "classifier.weight": torch.zeros(3, 6)}, tmp_path / "theirs.pth")
    fresh = initial_parameters(spec, 0)
    loaded = load_weights(tmp_path / "theirs.pth", fresh)
    theirs = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert np.array_equal(loaded["model.4.weight"], theirs["4.weight"])
    assert np.array_equal(loaded["model.1.running_mean"], theirs["1.running_mean"])
    assert np.array_equal(loaded["embedding.weight"], fresh["embedding.weight"])
    torch.save({**model.state_dict(), "extra.weight": torch.zeros(1)}, tmp_path / "theirs.pth")
    with pytest.raises(ArtifactError, match=r"extra\.weight"):
        load_weights(tmp_path / "theirs.pth", fresh)


def test_a_spec_survives_the_manifest(file_spec: StepSpec) -> None:
    spec = replace(file_spec, architecture_arguments={"width": 5, "kinds": ["a", None]}, batch_norm="frozen")
    document = json.loads(json.dumps(spec.__dict__))
    assert _spec(Fields(document, "spec")) == spec
