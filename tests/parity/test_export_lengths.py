"""A program per length of texts: each is the step, and a micro-batch takes the shortest that holds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_texts import LENGTH, TIED, TOKEN, tiny_texts
from helpers.federations.conversation_case import NUM_CLASSES, PLAN, ConversationCase, furthest

import fedss
from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from ondevice.backends import Backend
from ondevice.backends.opening import Runtime, open_backend
from ondevice.backends.per_length import open_every_length
from ondevice.contract.artifact import Artifact
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import Arrays
from ondevice.contract.tokens import TOKENS

SHORT = 3
RUNTIMES: tuple[Runtime, ...] = ("executorch", "onnxruntime", "onnxruntime-training")
PADDING_NETWORKS = str(Path(__file__).parents[1] / "helpers" / "networks" / "padding_networks.py")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    recipe = ExportRecipe(TIED, RUNTIMES, micro_batch=4, max_width=64, lengths=(SHORT, LENGTH))
    return export_artifact(recipe, tmp_path_factory.mktemp("lengths") / "artifact")


class Opened:
    """Opens a runtime and keeps which lengths it was opened for."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self.lengths: list[int] = []

    def __call__(self, artifact: Artifact) -> Backend:
        self.lengths.append(int(artifact.signature[TOKENS].shape[1]))
        return open_backend(artifact, self._runtime)


def of_places(artifact: Artifact, places: list[int]) -> Arrays:
    """The golden step's inputs, with texts that end after so many places."""
    inputs = dict(artifact.golden().inputs)
    tokens = np.maximum(inputs[TOKENS], 1)
    for text, used in zip(tokens, places, strict=True):
        text[used:] = 0
    weights = artifact.initial()
    return {**{name: weights[name] for name in artifact.signature.dense_shapes}, **inputs, TOKENS: tokens}


def assert_close(found: Arrays, expected: Arrays) -> None:
    for name, array in expected.items():
        error = np.linalg.norm(found[name] - array)
        assert error <= 1e-5 * np.linalg.norm(array) + 1e-6, name


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_shortest_program_gives_what_the_longest_gives(artifact: Artifact, runtime: str) -> None:
    opened = Opened(runtime)
    backend = open_every_length(artifact, opened)
    longest = open_backend(artifact.of_length(LENGTH), runtime)
    for places, used in (([3, 1, 2, 3], [3]), ([3, 1, 4, 3], [3, 6]), ([0, 0, 0, 1], [3, 6])):
        arrays = of_places(artifact, places)
        assert_close(backend.step(arrays), longest.step(arrays))
        assert opened.lengths == used
    arrays = of_places(artifact, [3, 6, 2, 5])
    embedded = {spec.name: arrays[spec.name] for spec in artifact.signature.embedded}
    embedded |= {name: arrays[name] for name in artifact.signature.dense_shapes}
    np.testing.assert_allclose(backend.embed(embedded), longest.embed(embedded), rtol=1e-4, atol=1e-5)
    wrong = {**arrays, TOKENS: arrays[TOKENS][:, :5]}
    with pytest.raises(ValueError, match=r"tokens is int64 \[4, 5\]; the step takes int64 \[b, 6\]"):
        backend.step(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_client_learns_the_same_with_and_without(artifact: Artifact, runtime: str, tmp_path: Path) -> None:
    plan = replace(PLAN, sampler=Choice("word_negatives", {"num_negatives": 20}))
    case = ConversationCase(
        tmp_path / "client", artifact, plan, given=tiny_texts(10, seed=3, vocabulary=NUM_CLASSES)
    )
    with_lengths = case.python_update(runtime)
    without = ConversationCase(
        tmp_path / "without", artifact.of_length(LENGTH), plan, given=case.examples
    ).python_update(runtime)
    assert furthest(with_lengths, without) < 1e-5


@pytest.mark.slow
def test_the_artifact_proves_every_length(artifact: Artifact) -> None:
    assert len(artifact.golden_steps()) == 2
    assert artifact.golden_steps()[1].inputs[TOKENS][:, SHORT:].max() == 0
    fedss.inspect(artifact, width=64, check=True)


@pytest.mark.parametrize(
    ("spec", "lengths", "message"),
    [
        (TIED, (6, 3), "lengths are 6, 3; expected numbers from 1, each larger than the one before"),
        (TIED, (3, 5), "lengths are 3, 5; tied_transformer takes tokens of 6 places: expected 6 last"),
        (
            fedss.StepSpec("three_convolutions", 8, (1, 16, 16)),
            (3, 6),
            "lengths are 3, 6, and three_convolutions takes no texts",
        ),
        (
            replace(TOKEN, architecture=f"{PADDING_NETWORKS}:Mean", architecture_arguments={}),
            (3, 6),
            "does not ignore the padding behind tokens: the loss is another one with 3 places than with 6",
        ),
        (
            replace(TOKEN, architecture=f"{PADDING_NETWORKS}:Joined", architecture_arguments={}),
            (3, 6),
            r"does not take tokens of 3 places \(.*\); write it for texts of any number up to 6",
        ),
        (
            replace(
                TOKEN,
                architecture=f"{PADDING_NETWORKS}:Dropped",
                architecture_arguments={},
                randomness="input",
            ),
            (3, 6),
            "takes noise, whose size goes with the length; export one length, or choose --randomness off",
        ),
    ],
    ids=["order", "longest", "images", "sees padding", "fixed", "noise"],
)
def test_lengths_that_cannot_be_are_refused(
    spec: fedss.StepSpec, lengths: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(fedss.UsageError, match=message):
        fedss.export(spec, out=tmp_path / "artifact", lengths=lengths)
    assert not (tmp_path / "artifact").exists()
