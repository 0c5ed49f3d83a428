"""The native client on texts with a tied table: question and update of the Python client, and no word out of range."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.arm_programs import CACHE
from helpers.conversation_case import NUM_CLASSES, PLAN, ConversationCase, export_small, furthest, run
from helpers.tiny_texts import TIED, tiny_texts

from android_harness.bundles.bundle import build_bundle
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import Artifact
from ondevice.contract.choice import Choice
from ondevice.contract.tokens import TOKENS

pytestmark = pytest.mark.slow  # compiles the native client

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
