"""The client for stock ONNX Runtime as a program: the conversation of the Python client, replayed, or one clear refusal."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.federations.conversation_case import (
    NUM_CLASSES,
    PLAN,
    SEED,
    run,
)
from helpers.federations.tiny_federation import first_question

from android_harness.bundles.bundle import PYTHON_CLIENT
from android_harness.bundles.onnxruntime_client.__main__ import main
from android_harness.bundles.onnxruntime_client.bench import BenchJob, made_up_examples, made_up_rows
from android_harness.bundles.onnxruntime_client.replay import Replay, Unanswered
from ondevice.backends import Backend
from ondevice.client.client import Client
from ondevice.client.device_files import read_examples, read_plan, write_examples, write_plan, write_seed
from ondevice.contract import safetensors_file
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import ArraySpec, StepSignature
from ondevice.contract.vocabulary import COLUMNS, IMAGES, ExampleSet

CLIENT = [sys.executable, "-m", PYTHON_CLIENT]
CLIENT_ID = 5


def examples() -> ExampleSet:
    source = np.random.default_rng(2)
    images = source.integers(0, 256, (6, 1, 8, 8), np.uint8)
    return ExampleSet({IMAGES: images}, source.integers(0, NUM_CLASSES, 6))


def no_backend() -> Backend:
    raise AssertionError("a client that only asks opens no backend")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A device without an artifact: enough to ask."""
    write_examples(tmp_path / "data", examples())
    write_seed(tmp_path / "seed", SEED)
    write_plan(tmp_path / "plan", PLAN, CLIENT_ID)
    return tmp_path


Ask = Callable[[], subprocess.CompletedProcess[str]]


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs `converse` in this process: a question needs no runtime, and many bad files are soon refused."""
    files = {"--data": "data", "--seed-file": "seed", "--plan": "plan", "--out": "out"}
    files |= {"--answers": "answers", "--artifact": "nowhere"}
    words = ["converse", *(word for option, name in files.items() for word in (option, str(folder / name)))]

    def run_here() -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", [PYTHON_CLIENT, *words])
        code = main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, printed.out, printed.err)

    return run_here


SAMPLERS = [
    Choice("uniform_negatives", {"num_negatives": 20}),
    Choice("uniform_negatives", {"num_negatives": 7, "exclude_positives": True}),
    Choice("positives"),
    Choice("all_rows"),
]


@pytest.mark.parametrize(
    "sampler", SAMPLERS, ids=lambda sampler: "-".join(map(str, sampler.to_document().values()))
)
def test_the_question_is_byte_for_byte_that_of_the_python_client_and_needs_no_artifact(
    sampler: Choice, folder: Path, ask: Ask
) -> None:
    plan = dataclasses.replace(PLAN, sampler=sampler)
    write_plan(folder / "plan", plan, CLIENT_ID)
    done = ask()
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"event": "asks"}
    asking = Client(CLIENT_ID, examples(), SEED, no_backend)
    assert (folder / "out").read_bytes() == first_question(asking, plan)


def test_plan_and_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    plan = dataclasses.replace(
        PLAN, transforms=(Choice("clip", {"norm": 0.5}), Choice("precision", {"format": "bf16"}))
    )
    write_plan(tmp_path / "plan", plan, CLIENT_ID)
    assert read_plan(tmp_path / "plan") == (CLIENT_ID, plan)
    source = np.random.default_rng(3)
    written = ExampleSet(
        {
            "bytes": source.integers(0, 256, (3, 5), np.uint8),
            "numbers": source.standard_normal((3, 2), np.float32),
            "tokens": source.integers(0, 1 << 40, (3, 4)),
        },
        np.array([7, 0, 7]),
    )
    write_examples(tmp_path / "data", written)
    found = read_examples(tmp_path / "data")
    assert found.labels.tolist() == [7, 0, 7]
    assert found.features.keys() == written.features.keys()
    for name, feature in written.features.items():
        assert found.features[name].dtype == feature.dtype
        assert found.features[name].flags.aligned
        assert np.array_equal(found.features[name], feature)


def tensors(**arrays: np.ndarray) -> Callable[[Path], object]:
    named = {name.replace("__", "/"): array for name, array in arrays.items()}
    return lambda path: safetensors_file.write_file(path, named, {})


def with_plan(**changes: object) -> Callable[[Path], object]:
    """The plan with another text for a setting."""

    def spoil(path: Path) -> None:
        _, metadata = safetensors_file.from_bytes(path.read_bytes())
        settings = {**json.loads(metadata["settings"]), **changes}
        path.write_bytes(safetensors_file.to_bytes({}, {**metadata, "settings": json.dumps(settings)}))

    return spoil


def with_metadata(name: str, value: str) -> Callable[[Path], object]:
    def spoil(path: Path) -> None:
        _, metadata = safetensors_file.from_bytes(path.read_bytes())
        path.write_bytes(safetensors_file.to_bytes({}, {**metadata, name: value}))

    return spoil


LABELS = np.zeros(2, np.int64)
BAD_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no plan": ("plan", Path.unlink, "No such file"),
    "an empty plan": ("plan", lambda path: path.write_bytes(b""), "not a message"),
    "a plan of version 1": ("plan", with_metadata("version", "1"), "update the older side"),
    "a message that is no plan": ("plan", with_metadata("kind", "update"), "expected a 'plan'"),
    "a plan with a new setting": ("plan", with_plan(noise=1), "the fields are"),
    "a plan for nobody": ("plan", with_metadata("client", "-1"), "client is '-1'"),
    "a sampler of tomorrow": (
        "plan",
        with_plan(sampler={"name": "crystal_ball"}),
        "no sampler 'crystal_ball'",
    ),
    "a weighting of tomorrow": ("plan", with_plan(weighting={"name": "by_taste"}), "no weighting 'by_taste'"),
    "a seed in words": ("seed", lambda path: path.write_text("twelve\n"), "private seed"),
    "a seed that is no text": ("seed", lambda path: path.write_bytes(b"\xff\xfe"), "private seed"),
    "a seed without end": ("seed", lambda path: path.write_bytes(b"1" * 5000), "private seed"),
    "data without labels": ("data", tensors(feature__images=np.zeros((2, 3), np.uint8)), "expected labels"),
    "data of version 1": (
        "data",
        tensors(labels=LABELS, images=np.zeros((2, 3), np.uint8)),
        "unknown tensor images",
    ),
    "too few images": (
        "data",
        tensors(labels=LABELS, feature__images=np.zeros((1, 3), np.uint8)),
        "an entry per label",
    ),
    "a single number": (
        "data",
        tensors(labels=LABELS, feature__images=np.zeros((), np.uint8)),
        "an entry per label",
    ),
    "half numbers": (
        "data",
        tensors(labels=LABELS, feature__images=np.zeros((2, 3), np.float16)),
        "uint8, int64 or",
    ),
    "data cut short": ("data", lambda path: path.write_bytes(path.read_bytes()[:-1]), "offsets"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_refused_by_name_and_nothing_is_written(what: str, folder: Path, ask: Ask) -> None:
    name, spoil, words = BAD_FILES[what]
    spoil(folder / name)
    before = sorted(folder.iterdir())
    done = ask()
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert (done.stdout, sorted(folder.iterdir())) == ("", before)


def test_labels_beyond_the_table_fail_in_one_line(folder: Path, ask: Ask) -> None:
    write_plan(folder / "plan", dataclasses.replace(PLAN, table_sizes={COLUMNS: 2}), CLIENT_ID)
    done = ask()
    assert done.returncode == 1
    assert "expected 0 to 1" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [[], ["fly"], ["request"], ["converse"], ["check", "--artifact", ".", "--threads", "0"]]
)
def test_wrong_usage_is_told_from_a_bad_file(words: list[str]) -> None:
    done = run([*CLIENT, *words])
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_a_conversation_is_replayed_up_to_the_first_question_without_an_answer(tmp_path: Path) -> None:
    for number, answer in enumerate((b"first", b"second")):
        (tmp_path / str(number)).write_bytes(answer)
    for _ in range(2):  # as often as one likes
        replay = Replay(tmp_path)
        assert [replay.ask(b"a"), replay.ask(b"b")] == [b"first", b"second"]
        with pytest.raises(Unanswered) as open_question:
            replay.ask(b"c")
        assert open_question.value.question == b"c"


SIGNATURE = StepSignature(
    (
        ArraySpec("w", "dense", (2, 2)),
        ArraySpec("columns", "table", ("rows:columns", 3)),
        ArraySpec("words", "table", ("rows:words", 2)),
        ArraySpec("adjust", "side", ("rows:columns",), padding=-1e9),
        ArraySpec("images", "feature", ("b", 2, 5), "uint8"),
        ArraySpec("numbers", "feature", ("b", 3)),
        ArraySpec("tokens", "feature", ("b", 4), "int64", positions_in="words"),
        ArraySpec("languages", "feature", ("b",), "int64"),
        ArraySpec("labels", "label", ("b",), "int64", positions_in="columns"),
        ArraySpec("noise/model", "noise", ("b", 3)),
        ArraySpec("example_weight", "example_weight", ("b",)),
    )
)


def hashed(index: int) -> int:
    return index * 2654435761 % 2**32


def unit(index: int) -> float:
    return (hashed(index) >> 8) / 2**24


def test_made_up_inputs_follow_the_signature_as_in_the_native_client() -> None:
    job = BenchJob(width=7, batch=5, micro_batch=3, steps=1, warmup=0, threads=1)
    rows = made_up_rows(SIGNATURE, job)
    assert {name: array.shape for name, array in rows.items()} == {
        "columns": (7, 3),
        "words": (7, 2),
        "adjust": (7,),
    }
    assert rows["columns"].ravel().tolist() == [unit(index) - 0.5 for index in range(21)]
    assert not rows["adjust"].any()
    for first, count in ((0, 3), (3, 2)):
        arrays = made_up_examples(SIGNATURE, job, first)
        numbers = {
            name: range(first * each, (first + count) * each)
            for name, each in (("images", 10), ("numbers", 3), ("tokens", 4))
        }
        assert arrays["images"].shape == (count, 2, 5)
        assert arrays["images"].ravel().tolist() == [hashed(index) >> 24 for index in numbers["images"]]
        assert arrays["numbers"].ravel().tolist() == [2 * unit(index) - 1 for index in numbers["numbers"]]
        assert arrays["tokens"].ravel().tolist() == [index % 7 for index in numbers["tokens"]]
        assert arrays["noise/model"].ravel().tolist() == [unit(index) for index in numbers["numbers"]]
        assert arrays["languages"].tolist() == [0] * count
        assert arrays["labels"].tolist() == [(first + i) % 7 for i in range(count)]
        assert arrays["example_weight"].tolist() == [np.float32(1 / 5)] * count
        assert {name: str(array.dtype) for name, array in arrays.items()} == {
            spec.name: spec.dtype for spec in SIGNATURE.of_role("feature", "label", "noise", "example_weight")
        }
