"""The client for stock ONNX Runtime with an artifact: it trains, checks and measures as the Python client does."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from helpers.data.tiny_labels import FEDAVG, FEDMLH, UNHASHED, hashed, tiny_labels
from helpers.federations.conversation_case import (
    PLAN,
    ConversationCase,
    copy_with_wrong_golden_step,
    export_small,
    furthest,
    run,
)

from android_harness.bundles.bundle import PYTHON_CLIENT
from ondevice.contract.artifact import Artifact
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import LocalTraining, RoundPlan, StepSpec
from ondevice.contract.wire import plan_to_bytes

pytestmark = pytest.mark.slow  # exports a step
CLIENT = [sys.executable, "-m", PYTHON_CLIENT]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export_small(tmp_path_factory.mktemp("onnxruntime") / "artifact", "onnxruntime")


@pytest.mark.parametrize(
    ("transforms", "tolerance"),
    [
        ((), 1e-5),
        ((Choice("clip", {"norm": 1.0}), Choice("precision", {"format": "fp16"})), 1e-3),
        ((Choice("precision", {"format": "bf16"}),), 1e-2),
    ],
    ids=["as it is", "clipped and narrow", "narrow"],
)
def test_the_update_is_that_of_the_python_client(
    transforms: tuple[Choice, ...], tolerance: float, artifact: Artifact, tmp_path: Path
) -> None:
    case = ConversationCase(tmp_path / "client", artifact, dataclasses.replace(PLAN, transforms=transforms))
    asked = run([*CLIENT, *case.options(str(case.folder), str(artifact.directory), "none", "question")])
    assert (asked.returncode, json.loads(asked.stdout)["event"]) == (0, "asks"), asked.stderr
    assert (case.folder / "question").read_bytes() == case.request
    done = run([*CLIENT, *case.options(str(case.folder), str(artifact.directory))])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["event"] == "trained"
    assert json.loads(done.stdout)["peak_footprint_bytes"] > 1 << 20
    found = case.read_update((case.folder / "update").read_bytes())
    expected = case.python_update("onnxruntime")
    assert found.num_examples == expected.num_examples
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
    assert furthest(found, expected) < tolerance


@pytest.mark.parametrize(
    ("spec", "plan"), [(FEDMLH, hashed()), (FEDAVG, UNHASHED)], ids=["hashed labels", "an output per class"]
)
def test_examples_of_several_classes_train_and_are_measured(
    spec: StepSpec, plan: RoundPlan, tmp_path: Path
) -> None:
    artifact = export_small(tmp_path / "artifact", "onnxruntime", spec=spec)
    case = ConversationCase(tmp_path / "client", artifact, plan, given=tiny_labels(10, seed=3))
    done = run([*CLIENT, *case.options(str(case.folder), str(artifact.directory))])
    assert (done.returncode, done.stderr) == (0, "")
    found = case.read_update((case.folder / "update").read_bytes())
    expected = case.python_update("onnxruntime")
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
    assert furthest(found, expected) < 1e-5
    # There is no table, and so no width.
    options = ["--artifact", str(artifact.directory), "--batch", "6", "--steps", "2"]
    done = run([*CLIENT, "bench", *options, "--width", "0"])
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == [
        "ready",
        *["step"] * 3,
        "done",
    ]
    if spec is FEDMLH:
        others = ConversationCase(tmp_path / "others", artifact, hashed(), given=tiny_labels(10, seed=3))
        for wrong, code, words in (
            (hashed(fingerprint=1), 3, "client and server are of different versions"),
            (hashed(num_buckets=500), 1, "the step has 24"),
        ):
            (others.folder / "plan").write_bytes(plan_to_bytes(others.envelope, wrong))
            found_code, found_words = refused(others, artifact)
            assert (found_code, words in found_words) == (code, True), found_words


def refused(case: ConversationCase, artifact: Artifact) -> tuple[int, str]:
    """The exit code and what was said of it; no update was written."""
    done = run([*CLIENT, *case.options(str(case.folder), str(artifact.directory))])
    assert not (case.folder / "update").exists()
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


def test_answers_and_examples_that_do_not_fit_are_refused(artifact: Artifact, tmp_path: Path) -> None:
    case = ConversationCase(tmp_path / "client", artifact)
    answer = case.folder / "answers/0"
    answer.write_bytes(case.slice_message[:-1])
    code, words = refused(case, artifact)
    assert (code, "offsets" in words) == (3, True)
    answer.write_bytes(case.slice_message.replace(b'"round":"3"', b'"round":"4"'))
    code, words = refused(case, artifact)
    assert (code, "round '4'; expected 3" in words) == (3, True)
    larger = ConversationCase(tmp_path / "larger", artifact, image_shape=(1, 20, 20))
    code, words = refused(larger, artifact)
    assert (code, ", 1, 20, 20]; the step takes uint8" in words) == (1, True)
    wide = dataclasses.replace(PLAN, sampler=Choice("uniform_negatives", {"num_negatives": 100}))
    wider = ConversationCase(tmp_path / "wider", artifact, wide)
    code, words = refused(wider, artifact)
    assert (code, "rows of columns; the step takes 1 to 64" in words) == (1, True)


def test_training_that_diverges_is_said_and_not_sent(artifact: Artifact, tmp_path: Path) -> None:
    wild = LocalTraining(epochs=3, batch_size=2, learning_rate=1e38)
    case = ConversationCase(tmp_path / "client", artifact, dataclasses.replace(PLAN, local_training=wild))
    done = run([*CLIENT, *case.options(str(case.folder), str(artifact.directory))])
    assert done.returncode == 1
    assert "did local training diverge?" in done.stderr
    assert not (case.folder / "update").exists()


def test_the_golden_step_is_reproduced_or_the_check_fails(artifact: Artifact, tmp_path: Path) -> None:
    done = run([*CLIENT, "check", "--artifact", str(artifact.directory)])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["passed"]
    assert answer["outputs"] == len(artifact.signature.outputs)
    wrong = copy_with_wrong_golden_step(artifact, tmp_path / "wrong")
    done = run([*CLIENT, "check", "--artifact", str(wrong.directory)])
    assert done.returncode == 5
    assert json.loads(done.stdout)["worst_tensor"] == artifact.signature.trained[0]


def test_bench_tells_time_memory_and_the_same_loss_in_any_micro_batches(artifact: Artifact) -> None:
    options = ["--artifact", str(artifact.directory), "--width", "7", "--batch", "6", "--steps", "2"]
    losses = []
    for micro_batch in ("4", "3", "1"):
        done = run([*CLIENT, "bench", *options, "--micro-batch", micro_batch])
        assert done.returncode == 0, done.stderr
        ready, *steps, last = (json.loads(line) for line in done.stdout.splitlines())
        assert (ready["event"], ready["runtime"], last["event"]) == ("ready", "onnxruntime", "done")
        assert [step["warmup"] for step in steps] == [True, False, False]
        assert all(step["cpu_ms"] > 0 and step["wall_ms"] > 0 for step in steps)
        assert 1 << 20 < last["peak_footprint_bytes"] < 1 << 31
        losses += [step["loss"] for step in steps]
    assert losses == pytest.approx([losses[0]] * 9, rel=1e-6)
    too_wide = run([*CLIENT, "bench", "--artifact", str(artifact.directory), "--width", "65"])
    assert too_wide.returncode == 2
    assert "--width is 65; the artifact takes at most 64" in too_wide.stderr
