"""The native client's draws against Python's: the same seed gives the same rows, adjustments and orders."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from helpers.native.programs import run_probe

from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import COLUMNS, RoundPlan

pytestmark = pytest.mark.slow  # compiles the native client


ASKING_NOTHING = [name for name in SAMPLERS if name not in ("nearest_rows", "label_hashes", "class_outputs")]
"""Before their sample, but for those that draw no rows: what both clients can draw by themselves."""


def drawn_sampler(source: random.Random, num_rows: int) -> Choice:
    name = source.choice([name for name in ASKING_NOTHING if num_rows < 100 or name != "all_rows"])
    if not name.endswith("_negatives"):
        return Choice(name)
    settings: dict[str, int | bool] = {"num_negatives": source.choice([0, 1, 5, 170])}
    if name == "uniform_negatives" and source.random() < 0.7:
        settings["exclude_positives"] = source.random() < 0.5
    return Choice(name, settings)


def test_the_same_seed_draws_the_same_rows_and_orders_in_both_languages() -> None:
    source = random.Random(5)
    cases, expected = [], []
    for _ in range(3000):
        num_rows = source.choice([4, 5, 7, 60, 2028])
        count = source.randint(1, 12)
        labels = np.array([source.randrange(num_rows) for _ in range(count)], np.int64)
        tokens = np.array([source.randrange(num_rows) for _ in range(3 * count)], np.int64)
        choice = drawn_sampler(source, num_rows)
        plan = RoundPlan(
            round_index=source.choice([0, 1, source.randrange(1 << 40)]),
            table_sizes={COLUMNS: num_rows},
            sampler=choice,
            weighting=Choice("uniform"),
        )
        seed = source.choice([0, source.randrange(1 << 64), (1 << 64) - 1])
        view = SamplingView(plan, labels, seed, numbers={"tokens": tokens}.__getitem__)
        sample = chosen(SAMPLERS, choice, "sampler").draw(view)
        order = PortableRandom(seed, plan.round_index, Purpose.FIRST_EPOCH).permutation(count)
        bits = sample.sides["adjust"].view(np.uint32)
        expected.append([sample.ids[COLUMNS].tolist(), bits.tolist(), order.tolist()])
        words = " ".join(map(str, [seed, plan.round_index, num_rows, *labels, ";", *tokens]))
        cases.append(f"{words} | {json.dumps(choice.to_document())}")
    lines = run_probe("sample", stdin="\n".join(cases).encode()).splitlines()
    assert [[list(map(int, part.split())) for part in line.split("|")] for line in lines] == expected
