"""The native client's weightings against Python's: the same seed draws the same examples, with the same bits as weights."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
from helpers.federations.conversation_case import PLAN, ConversationCase, export_small, furthest, run
from helpers.native.arm_programs import CACHE
from helpers.native.programs import run_probe

from android_harness.bundles.bundle import build_bundle
from ondevice.client.weightings import WEIGHTINGS, WeightingView
from ondevice.client.weightings.importance import CLASS_SHARE
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import COLUMNS, RoundPlan

pytestmark = pytest.mark.slow  # compiles the native client


def drawn_weighting(source: random.Random) -> Choice:
    name = source.choice(list(WEIGHTINGS))
    if name == "uniform":
        return Choice(name)
    return Choice(name, {"num_examples": source.choice([1, 3, 12, 40] + [0] * (name == "importance"))})


def test_the_same_examples_are_drawn_with_the_same_weights_in_both_languages() -> None:
    source = random.Random(6)
    cases, expected = [], []
    for _ in range(1000):
        num_rows = source.choice([1, 2, 7, 60])
        labels = np.array([source.randrange(num_rows) for _ in range(source.randint(1, 30))], np.int64)
        shares = np.array([source.random() + 1e-3 for _ in range(num_rows)], np.float32)
        choice = drawn_weighting(source)
        plan = RoundPlan(source.randrange(1 << 40), {COLUMNS: num_rows}, Choice("all_rows"), choice)
        seed = source.choice([0, source.randrange(1 << 64), (1 << 64) - 1])
        weighting = chosen(WEIGHTINGS, choice, "weighting")
        positions = weighting.examples(plan, labels, seed)
        view = WeightingView(plan, labels, {COLUMNS: np.arange(num_rows)}, {CLASS_SHARE: shares}, seed)
        expected.append(
            [positions.tolist(), weighting.weights(view, positions).view(np.uint32).tolist()],
        )
        words = " ".join(map(str, [seed, plan.round_index, num_rows, *labels]))
        numbers = " ".join(f"{share:.9g}" for share in shares)
        cases.append(f"{words} | {json.dumps(choice.to_document())} | {numbers}")
    lines = run_probe("weigh", stdin="\n".join(cases).encode()).splitlines()
    assert [[list(map(int, part.split())) for part in line.split("|")] for line in lines] == expected


def test_a_whole_conversation_trains_as_the_python_client_does(tmp_path: Path) -> None:
    artifact = export_small(tmp_path / "artifact", "executorch")
    bundle = build_bundle(CACHE, "x86_64", "executorch")
    # Of the ten examples that the case has; 0 is all of them.
    for name, count in (
        ("virtual_clients", 7),
        ("virtual_clients", 23),
        ("importance", 0),
        ("importance", 23),
    ):
        sides = {CLASS_SHARE: COLUMNS} if name == "importance" else {}
        plan = dataclasses.replace(PLAN, weighting=Choice(name, {"num_examples": count}), sides=sides)
        case = ConversationCase(tmp_path / f"{name}-{count}", artifact, plan)
        # The slice answers what Python asks: had the client drawn other examples, it would miss their rows.
        options = case.options(str(case.folder), str(artifact.directory))
        done = run([*bundle.command(str(bundle.folder)), *options])
        assert (done.returncode, done.stderr) == (0, "")
        found = case.read_update((case.folder / "update").read_bytes())
        expected = case.python_update("executorch")
        assert found.num_examples == expected.num_examples == (count or 10)
        assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
        assert furthest(found, expected) < 1e-5
