"""A round's plan as JSON: everything in `RoundPlan` but the round, which the envelope of the message says.

Numbers that JSON has not (NaN, infinity) are not written, and a field too many, too few or given twice is not read.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from ondevice.contract.choice import choice_from_document
from ondevice.contract.messages.exact_fields import exactly
from ondevice.contract.safetensors_file import without_duplicates
from ondevice.contract.vocabulary import LocalTraining, RoundPlan

_FIELDS = {"table_sizes", "sampler", "weighting", "transforms", "local_training", "sides"}


def plan_to_settings(plan: RoundPlan) -> str:
    settings = {
        "table_sizes": dict(plan.table_sizes),
        "sampler": plan.sampler.to_document(),
        "weighting": plan.weighting.to_document(),
        "transforms": [transform.to_document() for transform in plan.transforms],
        "local_training": asdict(plan.local_training),
        "sides": dict(plan.sides),
    }
    return json.dumps(settings, allow_nan=False, separators=(",", ":"))


def plan_from_settings(text: str, round_index: int) -> RoundPlan:
    """ValueError, TypeError or RecursionError where the text is no plan."""
    settings = json.loads(text, object_pairs_hook=without_duplicates)
    if not isinstance(settings, dict) or set(settings) != _FIELDS:
        raise ValueError(f"the fields are {sorted(settings)}; expected {sorted(_FIELDS)}")
    sizes = settings["table_sizes"]
    if not isinstance(sizes, dict) or not all(type(size) is int for size in sizes.values()):
        raise ValueError(f"table_sizes are {sizes!r}; expected whole numbers by table")
    if not isinstance(settings["transforms"], list):
        raise ValueError(f"transforms are {settings['transforms']!r}; expected a list of choices")
    sides = settings["sides"]
    if not isinstance(sides, dict) or not all(type(table) is str for table in sides.values()):
        raise ValueError(f"sides are {sides!r}; expected tables by side array")
    return RoundPlan(
        round_index=round_index,
        table_sizes=sizes,
        sampler=choice_from_document(settings["sampler"]),
        weighting=choice_from_document(settings["weighting"]),
        transforms=tuple(choice_from_document(entry) for entry in settings["transforms"]),
        local_training=exactly(LocalTraining, settings["local_training"]),
        sides=sides,
    )
