"""Plans as the native client reads them: what Python writes is understood, what it would refuse is refused, by name."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest
from helpers.messages.golden_messages import ENVELOPE, GOLDEN, PLAN, mutated
from helpers.native.programs import judged, run_probe

from ondevice.client.samplers import SAMPLERS
from ondevice.client.transforms import TRANSFORMS
from ondevice.client.weightings import WEIGHTINGS
from ondevice.contract.choice import Choice, UnknownChoice, chosen
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import WireError, plan_from_bytes, plan_to_bytes

pytestmark = pytest.mark.slow  # compiles the native client


def test_the_native_client_understands_the_frozen_plan() -> None:
    document = json.loads(run_probe("plan", GOLDEN / "plan.safetensors"))
    training = PLAN.local_training
    numbers = np.array([training.learning_rate, training.weight_decay, training.momentum], np.float32)
    assert document == {
        "round_index": ENVELOPE.round_index,
        "client_id": ENVELOPE.client_id,
        "table_sizes": PLAN.table_sizes,
        "sampler": PLAN.sampler.to_document(),
        "weighting": PLAN.weighting.to_document(),
        "transforms": [choice.to_document() for choice in PLAN.transforms],
        "local_training": [training.epochs, training.batch_size, *numbers.tolist()],
        "sides": [list(pair) for pair in PLAN.sides.items()],
    }


def test_the_native_client_accepts_and_refuses_the_same_plans_as_python() -> None:
    source = random.Random(11)
    genuine = (GOLDEN / "plan.safetensors").read_bytes()
    edited = [plan_of(settings) for settings in hand_made_settings()]
    candidates = [genuine, *edited, (GOLDEN / "request.safetensors").read_bytes()]
    candidates += [mutated(genuine, source) for _ in range(4000)]
    verdicts = judged(["judge-plan"], candidates)
    disagreements = [
        (message, verdict)
        for message, verdict in zip(candidates, verdicts, strict=True)
        if (verdict == "ok") != plan_accepted_by_python(message)
    ]
    assert disagreements == []
    assert 10 < verdicts.count("ok") < len(candidates) / 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"sampler": Choice("by_dream")},
            "there is no sampler 'by_dream' in this client, only uniform_negatives",
        ),
        ({"weighting": Choice("by_mood")}, "there is no weighting 'by_mood'"),
        ({"transforms": (Choice("noise", {"sigma": 1.0}),)}, "there is no transform 'noise'"),
        (
            {"sampler": Choice("positives", {"more": 1})},
            "unknown field more; this client is older than the plan",
        ),
        ({"sampler": Choice("uniform_negatives")}, "num_negatives is missing"),
        ({"transforms": (Choice("precision", {"format": "fp8"}),)}, "format is 'fp8'"),
    ],
)
def test_an_old_client_says_by_name_what_it_lacks(
    change: dict[str, Choice | tuple[Choice, ...]], words: str
) -> None:
    plan = RoundPlan(**{**vars(PLAN), **change})
    (verdict,) = judged(["judge-plan"], [plan_to_bytes(ENVELOPE, plan)])
    assert words in verdict


def plan_accepted_by_python(message: bytes) -> bool:
    """And by the native client too: Python's whole numbers have no end, which no plan needs."""
    try:
        _, plan = plan_from_bytes(message)
        chosen(SAMPLERS, plan.sampler, "sampler")
        chosen(WEIGHTINGS, plan.weighting, "weighting")
        for transform in plan.transforms:
            chosen(TRANSFORMS, transform, "transform")
    except (WireError, UnknownChoice):
        return False
    numbers = [*plan.table_sizes.values(), *vars(plan.local_training).values()]
    numbers += [plan.sampler.settings.get("num_negatives", 0)]
    return not any(isinstance(number, int) and number >= 1 << 63 for number in numbers)


def plan_of(settings: object) -> bytes:
    """The frozen plan with other settings, which Python would not write."""
    frozen = (GOLDEN / "plan.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", frozen[:8])
    header = json.loads(frozen[8 : 8 + size])
    header["__metadata__"]["settings"] = json.dumps(settings)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def hand_made_settings() -> list[object]:
    """Each differs from the frozen plan in one place; the first few are good."""
    frozen = (GOLDEN / "plan.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", frozen[:8])
    good = json.loads(json.loads(frozen[8 : 8 + size])["__metadata__"]["settings"])
    training = good["local_training"]

    def negatives(**settings: object) -> dict[str, object]:
        return {**good, "sampler": {"name": "uniform_negatives", **settings}}

    def trained(**settings: object) -> dict[str, object]:
        return {**good, "local_training": {**training, **settings}}

    no_transforms: list[object] = [None, 1, ["clip"], [{"norm": 1}], [[]]]
    no_sizes: list[object] = [[], {"a": 0}, {"a": -1}, {"a": 1.0}, {"a": True}, None]
    no_sides: list[object] = [[], None, {"prior": "none"}, {"prior": 1}, {"prior": None}]
    return [
        *({**good, "sampler": {"name": name}} for name in ("positives", "all_rows")),
        negatives(num_negatives=0),
        negatives(num_negatives=3, exclude_positives=False),
        {**good, "transforms": []},
        {**good, "transforms": [{"name": "precision"}]},
        {**good, "transforms": [{"name": "clip", "norm": 1}]},
        {**good, "table_sizes": {}, "sides": {}},
        {**good, "sides": {}},
        {**good, "sides": {"prior": "tokens.é", "other": "columns"}},
        trained(learning_rate=0, momentum=0),
        trained(learning_rate=1),
        negatives(),
        *(negatives(num_negatives=value) for value in (-1, 1.0, "1", True, None, [1], 1 << 63)),
        *(negatives(num_negatives=1, exclude_positives=value) for value in (0, "true", None)),
        negatives(num_negatives=1, more=1),
        *({**good, "transforms": [{"name": "clip", "norm": norm}]} for norm in (0, -1, "1", True)),
        *({**good, "transforms": transforms} for transforms in no_transforms),
        *({**good, "table_sizes": sizes} for sizes in no_sizes),
        {**good, "table_sizes": {}},
        *({**good, "sides": sides} for sides in no_sides),
        *({**good, "sampler": sampler} for sampler in (None, "positives", {}, {"name": 1}, {"name": ""})),
        *(trained(epochs=value) for value in (0, -1, 1.0, True, "1", None)),
        *(trained(momentum=value) for value in (1, 1.5, -0.1, True, "0", None)),
        trained(noise=1),
        {**good, "local_training": []},
        {**good, "noise": 1},
        *({key: good[key] for key in good if key != missing} for missing in good),
        [],
        None,
        7,
    ]
