"""The native client on examples of several classes: it hashes labels as Python does, and refuses what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_labels import FEDAVG, FEDMLH, UNHASHED, hashed, tiny_labels
from helpers.federations.conversation_case import ConversationCase, export_small, furthest, run
from helpers.native.arm_programs import CACHE

from android_harness.bundles.bundle import build_bundle
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import CLASSES, NO_CLASS, RoundPlan
from ondevice.contract.wire import plan_to_bytes

pytestmark = pytest.mark.slow  # compiles the native client


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("labels")
    specs = {"fedmlh": FEDMLH, "fedavg": FEDAVG}
    return {name: export_small(folder / name, "executorch", spec=spec) for name, spec in specs.items()}


@pytest.fixture(scope="module")
def client() -> list[str]:
    bundle = build_bundle(CACHE, "x86_64", "executorch")
    return bundle.command(str(bundle.folder))


@pytest.mark.parametrize(("name", "plan"), [("fedmlh", hashed()), ("fedavg", UNHASHED)])
def test_question_and_update_are_those_of_python(
    name: str, plan: RoundPlan, client: list[str], artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    case = ConversationCase(tmp_path / "client", artifacts[name], plan, given=tiny_labels(10, seed=3))
    (case.folder / "none").mkdir()
    done = run([*client, *case.options(str(case.folder), "nowhere", answers="none", out="request")])
    assert (done.returncode, done.stderr) == (0, "")
    assert (case.folder / "request").read_bytes() == case.request
    done = run([*client, *case.options(str(case.folder), str(artifacts[name].directory))])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["event"] == "trained"
    found = case.read_update((case.folder / "update").read_bytes())
    expected = case.python_update("executorch")
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
    assert furthest(found, expected) < 1e-5


@pytest.mark.parametrize(
    ("plan", "changed", "message"),
    [
        (hashed(fingerprint=1), {}, "here, the plan says 1: client and server are of different versions"),
        (hashed(num_buckets=500), {}, "the step has 24: export it for the plan's hash tables"),
        (hashed(), {(4, 0): NO_CLASS - 1}, "classes hold -2; expected classes from 0, and -1 behind them"),
        (hashed(), {(4, 0): 1 << 31}, "classes hold 2147483648; expected 0 to 2147483646"),
    ],
    ids=["other hash functions", "other tables", "no class", "a class beyond all hashes"],
)
def test_what_does_not_fit_is_refused_by_name(
    plan: RoundPlan,
    changed: dict[tuple[int, int], int],
    message: str,
    client: list[str],
    artifacts: dict[str, Artifact],
    tmp_path: Path,
) -> None:
    examples = tiny_labels(10, seed=3)
    case = ConversationCase(tmp_path / "client", artifacts["fedmlh"], hashed(), given=examples)
    (case.folder / "plan").write_bytes(plan_to_bytes(case.envelope, plan))
    classes = examples.features[CLASSES].copy()
    for place, value in changed.items():
        classes[place] = value
    features = {f"feature/{name}": values for name, values in examples.features.items()}
    tensors = {"labels": np.maximum(examples.labels, 0), **features, f"feature/{CLASSES}": classes}
    safetensors_file.write_file(case.folder / "data", tensors, {})
    done = run([*client, *case.options(str(case.folder), str(artifacts["fedmlh"].directory))])
    assert done.returncode == 3, done.stderr
    assert message in done.stderr
    assert not (case.folder / "update").exists()
