"""A step for texts of several lengths: the same network traced for fewer places, once padding is known to change nothing."""

from __future__ import annotations

import copy

import numpy as np
from torch import Tensor

from export.proof.golden import FEATURE_ROWS, draw_features, draw_inputs, float64_copy, outputs_of
from ondevice.contract.artifacts.lengths import Lengths
from ondevice.contract.step_signature import LOSS, Arrays
from ondevice.model.extractors.foreign import UnusableModel
from ondevice.model.train_step import TrainStep

TOLERANCE = 1e-9
"""Relative, of numbers in double precision that were added up in another order."""
TRIED = 2
"""Examples that the network is tried on."""


def lengths_of(step: TrainStep, sizes: tuple[int, ...]) -> Lengths | None:
    """What the recipe's lengths mean for this network; UnusableModel where it cannot have them."""
    if not sizes:
        return None
    name, asked = step.spec.architecture, ", ".join(map(str, sizes))
    sequences = {spec.name: spec for spec in step.signature.features if spec.name in step.extractor.sequences}
    if not sequences:
        raise UnusableModel(
            f"lengths are {asked}, and {name} takes no texts; leave them away, or name the features that hold a text in "
            "`sequences` of your Extractor"
        )
    for spec in sequences.values():
        if spec.shape[1] != sizes[-1]:
            raise UnusableModel(
                f"lengths are {asked}; {name} takes {spec.name} of {spec.shape[1]} places: expected {spec.shape[1]} last, "
                "and shorter ones before it"
            )
    if step.signature.noise:
        raise UnusableModel(
            f"lengths are {asked}, and {name} takes noise, whose size goes with the length; export one length, or "
            "choose --randomness off"
        )
    return Lengths(tuple(sequences), sizes)


def of_length(step: TrainStep, lengths: Lengths, size: int) -> TrainStep:
    """The same step, weights shared, that takes texts of at most so many places."""
    shorter = copy.copy(step)
    shorter.signature = lengths.shortened(step.signature, size)
    return shorter


def check_padding_changes_nothing(step: TrainStep, lengths: Lengths, seed: int) -> None:
    """UnusableModel unless loss and gradients are the same with and without the places behind texts, at every length."""
    exact = float64_copy(step)
    features = draw_features(exact, TRIED, seed)
    for size in lengths.shorter:
        padded = lengths.padded(step.signature, features, size)
        inputs = draw_inputs(exact, padded, FEATURE_ROWS, np.random.default_rng(seed))
        whole = outputs_of(exact, inputs)
        cut = _cut_outputs(exact, lengths, inputs, size)
        largest = max(float(output.abs().max()) for output in whole.values())
        for name, output in whole.items():
            if not float((output - cut[name]).abs().max()) <= TOLERANCE * largest:
                what = name if name == LOSS else f"gradient of {name}"
                raise UnusableModel(
                    f"{step.spec.architecture} does not ignore the padding behind {', '.join(lengths.features)}: the "
                    f"{what} is another one with {size} places than with {lengths.longest}, though nothing stands in the "
                    "others; mask them in the network, or leave --lengths away"
                )


def _cut_outputs(exact: TrainStep, lengths: Lengths, inputs: Arrays, size: int) -> dict[str, Tensor]:
    try:
        return outputs_of(of_length(exact, lengths, size), lengths.cut(inputs, size))
    except (RuntimeError, ValueError, IndexError) as error:
        (reason, *_) = str(error).splitlines() or [type(error).__name__]
        raise UnusableModel(
            f"{exact.spec.architecture} does not take {', '.join(lengths.features)} of {size} places ({reason}); write it "
            f"for texts of any number up to {lengths.longest}, or leave --lengths away"
        ) from None
