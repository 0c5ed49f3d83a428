"""A step with noise on every runtime: its numbers are those of a plain network in float64 with the same masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.federations.conversation_case import ConversationCase, furthest
from helpers.networks.noisy_network import NoisyNetwork, plain_embeddings, spec_of

import fedss
from ondevice.backends.opening import open_backend
from ondevice.client.noise import BatchNoise
from ondevice.contract.golden_step import SLACK, check_golden
from ondevice.contract.step_signature import LOSS, Arrays, gradient_of
from ondevice.model.extractors import build_extractor, load_state
from ondevice.model.objectives.sampled_softmax import class_logits, sampled_softmax_losses
from ondevice.model.train_step import Embedding

pytestmark = pytest.mark.slow

RUNTIMES = ["onnxruntime", "executorch", "onnxruntime-training", "executorch-stock"]
BATCH, ROWS = 6, 9
"""Two steps of the micro-batch of 4, the second one padded."""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> fedss.Artifact:
    out = tmp_path_factory.mktemp("noise") / "step"
    return fedss.export(spec_of(NoisyNetwork()), out=out, runtimes=RUNTIMES, max_width=64)


def batch(artifact: fedss.Artifact) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    weights = random.uniform(0.5, 1, BATCH).astype(np.float32)
    return {
        "columns": random.standard_normal((ROWS, 4), np.float32),
        "adjust": -random.uniform(0, 3, ROWS).astype(np.float32),
        "images": random.integers(0, 256, (BATCH, 3, 12, 12), np.uint8),
        "labels": random.integers(0, ROWS, BATCH),
        **BatchNoise(artifact.signature, 11, 3, 2).next(BATCH),
        "example_weight": weights / weights.sum(),
    }


def plain_outputs(artifact: fedss.Artifact, arrays: Arrays) -> dict[str, torch.Tensor]:
    """Loss and gradients of the whole batch in float64, without any code of the step but its loss."""
    extractor = build_extractor(artifact.spec)
    load_state(extractor, artifact.initial(), "the weights")
    extractor = extractor.double()
    weights = dict(extractor.named_parameters())
    pixels = extractor.get_submodule("pixels")(torch.from_numpy(arrays["images"]))
    data = {
        name: torch.from_numpy(array).double() for name, array in arrays.items() if array.dtype == np.float32
    }
    columns = data["columns"].requires_grad_()
    logits = class_logits(plain_embeddings(weights, pixels, data), columns, "cosine")
    losses = sampled_softmax_losses(logits, data["adjust"], torch.from_numpy(arrays["labels"]))
    loss = (data["example_weight"] * losses).sum()
    trained = {**{name: weights[name] for name in artifact.signature.dense_shapes}, "columns": columns}
    gradients = torch.autograd.grad(loss, list(trained.values()))
    return {LOSS: loss.detach(), **dict(zip(map(gradient_of, trained), gradients, strict=True))}


def test_the_manifest_says_which_layers(artifact: fedss.Artifact) -> None:
    assert artifact.manifest.spec.randomness == "input"
    names = [spec.name for spec in fedss.open_artifact(artifact.directory).signature.noise]
    assert names == [
        "noise/model.channels",
        "noise/model.numbers",
        "noise/model.path",
        "noise/model.attention",
        "noise/model",
    ]
    assert any("randomness by noise" in remark for remark in artifact.manifest.provenance["remarks"])


@pytest.mark.parametrize("runtime", [*RUNTIMES, "eager"])
def test_micro_batches_add_up_to_a_plain_network_with_the_same_masks(
    artifact: fedss.Artifact, runtime: str
) -> None:
    backend = open_backend(artifact, runtime)
    whole = batch(artifact)
    initial = artifact.initial()
    dense = {name: initial[name] for name in artifact.signature.dense_shapes}
    totals: dict[str, np.ndarray] = {}
    for piece in (slice(0, 4), slice(4, 6)):
        arrays = {
            name: array if name in ("columns", "adjust") else array[piece] for name, array in whole.items()
        }
        for name, output in backend.step({**dense, **arrays}).items():
            totals[name] = totals.get(name, 0) + output.astype(np.float64)
    expected = plain_outputs(artifact, whole)
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, right in expected.items():
        distance = float(np.linalg.norm(totals[name] - right.numpy()))
        assert distance <= 2e-5 * float(right.norm()) + 1e-6 * largest, name


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_golden_step_has_noise(artifact: fedss.Artifact, runtime: str) -> None:
    golden = artifact.golden()
    backend = open_backend(artifact, runtime)
    slack = SLACK.get(runtime, 1.0)
    assert check_golden(backend, artifact.initial(), golden, slack).passed
    golden.inputs["noise/model.channels"][:] = 0.999
    assert not check_golden(backend, artifact.initial(), golden, slack).passed


@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch", "onnxruntime-training", "eager"])
def test_embeddings_have_no_noise(artifact: fedss.Artifact, runtime: str) -> None:
    backend = open_backend(artifact, runtime)
    initial, images = artifact.initial(), batch(artifact)["images"]
    dense = {name: initial[name] for name in artifact.signature.dense_shapes}
    off = build_extractor(spec_of(NoisyNetwork(), "off"))
    load_state(off, initial, "the weights")
    with torch.no_grad():
        expected = Embedding(off)(torch.from_numpy(images)).numpy()
    found = backend.embed({**dense, "images": images})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch"])
@pytest.mark.parametrize("wrong", [1.0, -0.25, float("nan")])
def test_numbers_that_are_no_chances_are_refused(
    artifact: fedss.Artifact, runtime: str, wrong: float
) -> None:
    arrays = dict(artifact.golden().inputs)
    arrays["noise/model"] = arrays["noise/model"].copy()
    arrays["noise/model"][0, 3] = wrong
    initial = artifact.initial()
    dense = {name: initial[name] for name in artifact.signature.dense_shapes}
    with pytest.raises(ValueError, match=f"noise/model holds {wrong}; expected numbers from 0 to below 1"):
        open_backend(artifact, runtime).step({**dense, **arrays})


def test_a_client_repeats_its_round_and_learns_the_same_on_every_runtime(
    artifact: fedss.Artifact, tmp_path: Path
) -> None:
    case = ConversationCase(tmp_path, artifact, image_shape=artifact.spec.image_shape)
    # Eager takes whole batches of 6, the others micro-batches of 4.
    expected = case.python_update("eager")
    assert furthest(case.python_update("eager"), expected) == 0
    for runtime in RUNTIMES:
        assert furthest(case.python_update(runtime), expected) < 1e-4, runtime
