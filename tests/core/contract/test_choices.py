"""A choice is a registered name with exactly its settings: what is unknown or of another type is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from helpers.federations.tiny_federation import TinyFederation, tiny_plan

from ondevice.client.samplers import SAMPLERS
from ondevice.client.samplers.uniform_negatives import UniformNegatives
from ondevice.client.transforms import TRANSFORMS
from ondevice.client.transforms.clip import Clip
from ondevice.client.weightings import WEIGHTINGS
from ondevice.contract.choice import Choice, UnknownChoice, choice_from_document, choice_of, chosen
from ondevice.contract.vocabulary import RoundPlan
from server_sim.one_round import RoundAbandoned, run_round

Registry = Mapping[str, Callable[..., Any]]


def test_a_choice_gives_the_member_with_its_settings_and_back() -> None:
    choice = Choice("uniform_negatives", {"num_negatives": 80, "exclude_positives": True})
    member = chosen(SAMPLERS, choice, "sampler")
    assert member == UniformNegatives(80, True)
    assert choice_of(SAMPLERS, member) == choice
    assert choice_from_document(choice.to_document()) == choice
    assert choice.to_document() == {
        "name": "uniform_negatives",
        "num_negatives": 80,
        "exclude_positives": True,
    }


def test_a_whole_number_will_do_for_a_number() -> None:
    assert chosen(TRANSFORMS, Choice("clip", {"norm": 1}), "transform") == Clip(1)


@pytest.mark.parametrize(
    ("registry", "what", "choice", "message"),
    [
        (
            SAMPLERS,
            "sampler",
            Choice("zipf"),
            "there is no sampler 'zipf' here, only uniform_negatives, positives,",
        ),
        (
            WEIGHTINGS,
            "weighting",
            Choice("age"),
            "no weighting 'age' here, only uniform, virtual_clients, importance; .* a newer bundle",
        ),
        (TRANSFORMS, "transform", Choice("blur"), "there is no transform 'blur' here, only precision, clip"),
        (
            SAMPLERS,
            "sampler",
            Choice("uniform_negatives", {"num_negatives": 3, "power": 0.75}),
            "sampler 'uniform_negatives' has no setting 'power'; it has num_negatives, exclude_positives",
        ),
        (SAMPLERS, "sampler", Choice("positives", {"all": True}), "has no setting 'all'; it has none"),
        (
            SAMPLERS,
            "sampler",
            Choice("uniform_negatives"),
            "'uniform_negatives': .*missing .*'num_negatives'",
        ),
        (
            SAMPLERS,
            "sampler",
            Choice("uniform_negatives", {"num_negatives": -3}),
            "sampler 'uniform_negatives': num_negatives is -3; expected 0 or more",
        ),
        *(
            (
                SAMPLERS,
                "sampler",
                Choice("uniform_negatives", {"num_negatives": value}),
                f"num_negatives is {value!r}; expected int",
            )
            for value in (3.0, "3", True)
        ),
        *(
            (
                SAMPLERS,
                "sampler",
                Choice("uniform_negatives", {"num_negatives": 3, "exclude_positives": value}),
                f"exclude_positives is {value!r}; expected bool",
            )
            for value in (1, "true")
        ),
        (TRANSFORMS, "transform", Choice("clip", {"norm": "1"}), "norm is '1'; expected float"),
        (TRANSFORMS, "transform", Choice("clip", {"norm": True}), "norm is True; expected float"),
        (TRANSFORMS, "transform", Choice("clip", {"norm": 0}), "norm is 0; expected a positive number"),
        (TRANSFORMS, "transform", Choice("clip", {"norm": float("inf")}), "norm is inf"),
        (TRANSFORMS, "transform", Choice("precision", {"format": 16}), "format is 16; expected str"),
        (
            TRANSFORMS,
            "transform",
            Choice("precision", {"format": "fp8"}),
            "format is 'fp8'; expected one of fp32",
        ),
    ],
)
def test_what_is_unknown_or_of_another_type_is_named(
    registry: Registry, what: str, choice: Choice, message: str
) -> None:
    with pytest.raises(UnknownChoice, match=message):
        chosen(registry, choice, what)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("positives", "'positives' is no choice; expected a name"),
        ({}, "is no choice"),
        ({"name": 3}, "is no choice"),
        ({"name": "clip", "norm": [1]}, r"clip: norm is \[1\]; expected a number or a word"),
        ({"name": "clip", "norm": None}, "clip: norm is None"),
    ],
)
def test_a_document_that_is_no_choice_is_refused(document: Any, message: str) -> None:
    with pytest.raises(UnknownChoice, match=message):
        choice_from_document(document)


@pytest.mark.parametrize("part", ["sampler", "weighting", "transform"])
def test_a_client_older_than_the_plan_says_what_it_lacks(tiny: TinyFederation, part: str) -> None:
    known = tiny_plan()
    choices = {
        "sampler": known.sampler,
        "weighting": known.weighting,
        "transform": Choice("clip", {"norm": 1}),
    }
    choices[part] = Choice("of_next_year")
    plan = RoundPlan(0, known.table_sizes, choices["sampler"], choices["weighting"], (choices["transform"],))
    with pytest.raises(RoundAbandoned, match=f"there is no {part} 'of_next_year' here, .* a newer bundle"):
        run_round(tiny.state, plan, [0], tiny.link(), tiny.aggregator())
