"""The native client on texts with a tied table: question and update of the Python client, and no word out of range."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_texts import LENGTH, TIED, tiny_texts
from helpers.federations.conversation_case import (
    NUM_CLASSES,
    PLAN,
    ConversationCase,
    export_small,
    furthest,
    replace_file,
    run,
)
from helpers.native.arm_programs import CACHE

from android_harness.bundles.bundle import build_bundle
from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, Artifact, open_artifact
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.tokens import TOKENS

pytestmark = pytest.mark.slow  # compiles the native client

SHORT = 3
TEXT_PLAN = dataclasses.replace(PLAN, sampler=Choice("word_negatives", {"num_negatives": 20}))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export_small(tmp_path_factory.mktemp("texts") / "artifact", "executorch", spec=TIED)


@pytest.fixture(scope="module")
def client() -> list[str]:
    bundle = build_bundle(CACHE, "x86_64", "executorch")
    return bundle.command(str(bundle.folder))


def test_question_and_update_are_those_of_python(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    texts = tiny_texts(10, seed=3, vocabulary=NUM_CLASSES)
    case = ConversationCase(tmp_path / "client", artifact, TEXT_PLAN, given=texts)
    (case.folder / "none").mkdir()
    done = run([*client, *case.options(str(case.folder), "nowhere", answers="none", out="request")])
    assert (done.returncode, done.stderr) == (0, "")
    assert (case.folder / "request").read_bytes() == case.request
    done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["event"] == "trained"
    found = case.read_update((case.folder / "update").read_bytes())
    expected = case.python_update("executorch")
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
    assert furthest(found, expected) < 1e-5


def test_a_word_out_of_range_is_refused_by_name(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    texts = tiny_texts(10, seed=3, vocabulary=NUM_CLASSES)
    case = ConversationCase(tmp_path / "client", artifact, TEXT_PLAN, given=texts)
    tokens = texts.features[TOKENS].copy()
    tokens[4, 2] = NUM_CLASSES
    tensors = {"labels": texts.labels, "feature/tokens": tokens}
    safetensors_file.write_file(case.folder / "data", tensors, {})
    done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
    assert done.returncode == 3
    assert "tokens reach from 0 to 300; expected 0 to 299" in done.stderr
    assert not (case.folder / "update").exists()


@pytest.fixture(scope="module")
def of_lengths(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    recipe = ExportRecipe(TIED, ("executorch",), micro_batch=4, max_width=64, lengths=(SHORT, LENGTH))
    return export_artifact(recipe, tmp_path_factory.mktemp("lengths") / "artifact")


def test_with_several_lengths_the_update_is_that_of_one(
    client: list[str], artifact: Artifact, of_lengths: Artifact, tmp_path: Path
) -> None:
    texts = tiny_texts(10, seed=3, vocabulary=NUM_CLASSES)
    case = ConversationCase(tmp_path / "client", of_lengths, TEXT_PLAN, given=texts)
    updates = []
    for step in (of_lengths, artifact):
        done = run([*client, *case.options(str(case.folder), str(step.directory))])
        assert (done.returncode, done.stderr) == (0, "")
        updates.append(case.read_update((case.folder / "update").read_bytes()))
    assert furthest(updates[0], updates[1]) < 1e-5
    assert furthest(updates[0], case.python_update("executorch")) < 1e-5


def test_a_program_is_opened_when_a_text_needs_it(
    client: list[str], of_lengths: Artifact, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(of_lengths.directory, tmp_path / "broken"))
    (broken / "step.pte").unlink()
    texts = tiny_texts(10, seed=3, vocabulary=NUM_CLASSES)
    texts.features[TOKENS][:, SHORT:] = 0
    short = ConversationCase(tmp_path / "short", of_lengths, TEXT_PLAN, given=texts)
    done = run([*client, *short.options(str(short.folder), str(broken))])
    assert (done.returncode, done.stderr) == (0, "")
    texts.features[TOKENS][0] = texts.labels[0]
    long = ConversationCase(tmp_path / "long", of_lengths, TEXT_PLAN, given=texts)
    done = run([*client, *long.options(str(long.folder), str(broken))])
    assert done.returncode == 3
    assert "step.pte" in done.stderr


def test_every_length_proves_itself(client: list[str], of_lengths: Artifact, tmp_path: Path) -> None:
    done = run([*client, "check", "--artifact", str(of_lengths.directory)])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["outputs"] == 2 * len(of_lengths.signature.outputs)
    copy = open_artifact(Path(shutil.copytree(of_lengths.directory, tmp_path / "wrong")))
    name = f"length-{SHORT}/{GOLDEN}"
    tensors, _ = safetensors_file.read_file(copy.path(name))
    gradient = f"output/{gradient_of(copy.signature.trained[0])}"
    tensors[gradient] = np.asarray(tensors[gradient]) * np.float32(1.001)
    replace_file(copy, name, safetensors_file.to_bytes(tensors, {}))
    done = run([*client, "check", "--artifact", str(copy.directory)])
    assert done.returncode == 5
    assert "1 of " in done.stderr


def test_lengths_that_the_signature_does_not_have_are_refused(
    client: list[str], of_lengths: Artifact, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(of_lengths.directory, tmp_path / "wrong"))
    path = copy / "manifest.json"
    document = json.loads(path.read_text())
    for sizes, words in (([3, 5], "is not what the signature's features have"), ([6, 3], "each larger")):
        document["lengths"]["sizes"] = sizes
        path.write_text(json.dumps(document))
        done = run([*client, "check", "--artifact", str(copy)])
        assert done.returncode == 3
        assert words in done.stderr
