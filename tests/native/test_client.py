"""The native client as a program: the same round as the Python client, and one clear refusal for everything else."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.federations.conversation_case import (
    NUM_CLASSES,
    PLAN,
    ConversationCase,
    copy_with_wrong_golden_step,
    export_small,
    furthest,
    replace_file,
    run,
)
from helpers.native.arm_programs import CACHE

from android_harness.bundles.bundle import build_bundle
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, Artifact, open_artifact
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import COLUMNS, LocalTraining, RoundPlan
from ondevice.contract.wire import Envelope, plan_to_bytes

pytestmark = pytest.mark.slow  # compiles the native client


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export_small(tmp_path_factory.mktemp("native") / "artifact", "executorch", "executorch-stock")


@pytest.fixture(scope="module")
def client() -> list[str]:
    bundle = build_bundle(CACHE, "x86_64", "executorch")
    return bundle.command(str(bundle.folder))


@pytest.mark.parametrize(
    "sampler",
    [
        PLAN.sampler,
        Choice("uniform_negatives", {"num_negatives": 299}),
        Choice("uniform_negatives", {"num_negatives": 7, "exclude_positives": True}),
        Choice("positives"),
        Choice("all_rows"),
    ],
    ids=lambda sampler: "-".join(map(str, sampler.to_document().values())),
)
@pytest.mark.parametrize("round_index", [0, 1 << 40])
def test_the_question_is_byte_for_byte_that_of_python(
    sampler: Choice, round_index: int, client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    plan = RoundPlan(round_index, {COLUMNS: NUM_CLASSES}, sampler, Choice("uniform"))
    case = ConversationCase(tmp_path / "client", artifact, plan)
    (tmp_path / "client/none").mkdir()
    # A client that only asks needs no artifact.
    done = run([*client, *case.options(str(case.folder), "nowhere", answers="none", out="request")])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"event": "asks"}
    assert (case.folder / "request").read_bytes() == case.request


@pytest.mark.parametrize(
    ("training", "transforms"),
    [
        (PLAN.local_training, ()),
        (LocalTraining(batch_size=4, learning_rate=0.1), ()),
        (LocalTraining(epochs=1, batch_size=100, momentum=0.5), (Choice("precision", {"format": "fp16"}),)),
        (PLAN.local_training, (Choice("int8"),)),
        (PLAN.local_training, (Choice("clip", {"norm": 0.01}), Choice("precision", {"format": "bf16"}))),
    ],
)
def test_the_update_is_that_of_the_python_client_on_the_same_runtime(
    training: LocalTraining,
    transforms: tuple[Choice, ...],
    client: list[str],
    artifact: Artifact,
    tmp_path: Path,
) -> None:
    plan = dataclasses.replace(PLAN, local_training=training, transforms=transforms)
    case = ConversationCase(tmp_path / "client", artifact, plan)
    done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
    assert (done.returncode, done.stderr) == (0, "")
    found = case.read_update((case.folder / "update").read_bytes())
    expected = case.python_update("executorch")
    assert found.num_examples == expected.num_examples
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
    assert furthest(found, expected) < {0: 1e-5, 1: 1e-3, 2: 1e-2}[len(transforms)]
    answer = json.loads(done.stdout)
    assert answer["event"] == "trained"
    assert answer["peak_footprint_bytes"] > 1 << 20
    assert min(answer["wall_ms"], answer["cpu_ms"]) > 0


def test_a_replayed_conversation_gives_the_same_bytes(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    case = ConversationCase(tmp_path / "client", artifact)
    updates = []
    for _ in range(2):
        done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
        assert done.returncode == 0, done.stderr
        updates.append((case.folder / "update").read_bytes())
    assert updates[0] == updates[1]


@pytest.mark.parametrize("runtime", ["executorch", "executorch-stock"])
def test_the_golden_step_is_reproduced(runtime: str, client: list[str], artifact: Artifact) -> None:
    done = run([*client, "check", "--artifact", str(artifact.directory), "--runtime", runtime])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["passed"]
    assert answer["outputs"] == len(artifact.signature.outputs)
    assert answer["worst_relative_error"] < 1e-5


def test_a_step_that_misses_the_golden_one_fails_the_check(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    copy = copy_with_wrong_golden_step(artifact, tmp_path / "artifact")
    done = run([*client, "check", "--artifact", str(copy.directory)])
    assert done.returncode == 5
    assert "1 of" in done.stderr
    assert json.loads(done.stdout)["worst_tensor"] == copy.signature.trained[0]


def test_bench_tells_time_memory_and_a_loss_that_threads_do_not_change(
    client: list[str], artifact: Artifact
) -> None:
    options = ["--artifact", str(artifact.directory), "--width", "7", "--batch", "6", "--steps", "2"]
    losses = []
    for threads in ("1", "2"):
        done = run([*client, "bench", *options, "--threads", threads])
        assert done.returncode == 0, done.stderr
        ready, *steps, last = (json.loads(line) for line in done.stdout.splitlines())
        assert (ready["event"], ready["threads"], last["event"]) == ("ready", int(threads), "done")
        assert [step["warmup"] for step in steps] == [True, False, False]
        assert all(step["cpu_ms"] > 0 and step["wall_ms"] > 0 for step in steps)
        assert 1 << 20 < last["peak_footprint_bytes"] < 1 << 30
        losses += [step["loss"] for step in steps]
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-6)


def test_training_that_diverges_is_said_and_not_sent(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    plan = dataclasses.replace(PLAN, local_training=LocalTraining(epochs=3, batch_size=2, learning_rate=1e38))
    case = ConversationCase(tmp_path / "client", artifact, plan)
    done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
    assert done.returncode == 5
    assert "diverged" in done.stderr
    assert not (case.folder / "update").exists()


def edit_json(path: Path, edit: Callable[[dict[str, object]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rename_round(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"round":"3"', b'"round":"4"'))


def no_images(path: Path) -> None:
    tensors, _ = safetensors_file.from_bytes(path.read_bytes())
    safetensors_file.write_file(path, {"labels": tensors["labels"]}, {})


def another_plan(**changes: object) -> Callable[[Path], object]:
    plan = dataclasses.replace(PLAN, **changes)  # type: ignore[arg-type]  # checked by RoundPlan
    return lambda path: path.write_bytes(plan_to_bytes(Envelope(plan.round_index, 17), plan))


def edit_settings(path: Path, edit: Callable[[dict[str, object]], object]) -> None:
    """A plan whose settings Python would not write."""
    _, metadata = safetensors_file.from_bytes(path.read_bytes())
    settings = json.loads(metadata["settings"])
    edit(settings)
    path.write_bytes(safetensors_file.to_bytes({}, {**metadata, "settings": json.dumps(settings)}))


BAD_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no plan": ("client/plan", Path.unlink, "cannot open"),
    "an empty plan": ("client/plan", lambda path: path.write_text(""), "empty"),
    "a plan that is not a message": (
        "client/plan",
        lambda path: path.write_text("{"),
        "expected at least the 8",
    ),
    "a plan with a new setting": (
        "client/plan",
        lambda path: edit_settings(path, lambda plan: plan.update(noise=1)),
        "unknown field noise; this client is older than the plan: push a new bundle",
    ),
    "a plan of another version": (
        "client/plan",
        lambda path: path.write_bytes(path.read_bytes().replace(b'"version":"2"', b'"version":"3"')),
        "format version '3'; this client reads '2'",
    ),
    "a sampler of tomorrow": (
        "client/plan",
        another_plan(sampler=Choice("by_dream")),
        "there is no sampler 'by_dream' in this client",
    ),
    "a weighting of tomorrow": (
        "client/plan",
        another_plan(weighting=Choice("by_mood")),
        "there is no weighting 'by_mood' in this client",
    ),
    "a transform of tomorrow": (
        "client/plan",
        another_plan(transforms=(Choice("noise"),)),
        "there is no transform 'noise' in this client",
    ),
    "a plan with a negative count": (
        "client/plan",
        another_plan(sampler=Choice("uniform_negatives", {"num_negatives": -1})),
        "num_negatives is -1",
    ),
    "a plan of fewer classes than the labels": (
        "client/plan",
        another_plan(table_sizes={COLUMNS: 2}),
        "expected 0 to 1",
    ),
    "a plan without the step's table": (
        "client/plan",
        another_plan(table_sizes={"words": NUM_CLASSES}),
        "the plan has no table 'columns'",
    ),
    "a seed that is no number": ("client/seed", lambda path: path.write_text("12x\n"), "private seed"),
    "data without images": ("client/data", no_images, "no feature/images"),
    "data cut short": ("client/data", lambda path: path.write_bytes(path.read_bytes()[:-1]), "offsets"),
    "a slice cut short": (
        "client/answers/0",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "offsets",
    ),
    "a slice of another round": (
        "client/answers/0",
        rename_round,
        "answers/0: the message is for round '4'; expected '3'",
    ),
    "a slice that claims a huge header": (
        "client/answers/0",
        lambda path: path.write_bytes(struct.pack("<Q", 1 << 62) + path.read_bytes()[8:]),
        "header claims",
    ),
    "no artifact": ("artifact/manifest.json", Path.unlink, "cannot open"),
    "a changed program": ("artifact/step.pte", flip_byte, "was changed"),
    "a program cut short": (
        "artifact/step.pte",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "manifest.json says",
    ),
    "an artifact of another version": (
        "artifact/manifest.json",
        lambda path: edit_json(path, lambda manifest: manifest.update(version=1)),
        "has format version 1; this client reads version 2: export it again",
    ),
    "a damaged manifest": (
        "artifact/manifest.json",
        lambda path: edit_json(path, lambda manifest: manifest.pop("signature")),
        "damaged",
    ),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_refused_by_name_and_nothing_is_written(
    what: str, client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    name, spoil, words = BAD_FILES[what]
    case = ConversationCase(tmp_path / "client", artifact)
    shutil.copytree(artifact.directory, tmp_path / "artifact")
    spoil(tmp_path / name)
    before = sorted(case.folder.rglob("*"))
    done = run([*client, *case.options(str(case.folder), str(tmp_path / "artifact"))])
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(case.folder.rglob("*")) == before


def test_a_golden_step_that_would_excuse_anything_is_refused(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    copy = copy_with_wrong_golden_step(artifact, tmp_path / "artifact")
    tensors, _ = safetensors_file.read_file(copy.path(GOLDEN))
    for excuse in (1e30, np.nan):
        tensors["eager_distance"] = np.full_like(np.asarray(tensors["eager_distance"]), excuse)
        replace_file(copy, GOLDEN, safetensors_file.to_bytes(tensors, {}))
        done = run([*client, "check", "--artifact", str(copy.directory)])
        assert done.returncode == 3, done.stdout
        assert "eager_distance" in done.stderr


def test_a_program_that_is_not_one_is_refused(client: list[str], artifact: Artifact, tmp_path: Path) -> None:
    copy = open_artifact(Path(shutil.copytree(artifact.directory, tmp_path / "artifact")))
    replace_file(copy, "step.pte", b"not a program, though the manifest says so" * 10)
    done = run([*client, "check", "--artifact", str(copy.directory)])
    assert done.returncode == 3
    assert "export it again" in done.stderr


def test_images_of_another_size_and_too_many_classes_are_refused(
    client: list[str], artifact: Artifact, tmp_path: Path
) -> None:
    larger = ConversationCase(tmp_path / "larger", artifact, image_shape=(1, 20, 20))
    many = Choice("uniform_negatives", {"num_negatives": 100})
    wider = ConversationCase(tmp_path / "wider", artifact, dataclasses.replace(PLAN, sampler=many))
    for case, words in ((larger, "feature/images is U8 [10, 1, 20, 20]"), (wider, "export with room for")):
        done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
        assert done.returncode == 3
        assert words in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["check"],
        ["check", "--artifact"],
        ["check", "--artifact", ".", "--colour", "red"],
        ["check", "--artifact", ".", "--artifact", "."],
        ["check", "--artifact", ".", "--threads", "0"],
        ["check", "--artifact", ".", "--threads", "two"],
    ],
)
def test_wrong_usage_is_told_from_a_bad_file(words: list[str], client: list[str]) -> None:
    done = run([*client, *words])
    assert done.returncode == 2
    assert "usage:" in done.stderr
