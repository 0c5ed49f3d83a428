"""What examples of many classes are trained towards: a byte per output of the step, 1 where a class stands for it.

An example's classes are a list of equal length for all, with NO_CLASS behind the last.  The union is what FedMLH calls the
label of a bucket (Algorithm 2, line 6): classes that share a bucket set it once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import CLASSES, NO_CLASS, ExampleSet, IntArray, Outputs, RowSample


def check_targets(spec: ArraySpec, examples: ExampleSet, sample: RowSample) -> None:
    """The lists of classes are there, and the plan says what a class stands for."""
    if sample.outputs is None:
        raise ValueError(
            f"the step takes {spec.name}, and the plan's sampler gives classes no outputs; choose the scheme fedmlh or "
            "fedavg_labels"
        )
    classes = examples.features.get(CLASSES)
    if classes is None or classes.dtype != np.int64 or classes.ndim != 2:
        raise ValueError(
            f"the step takes {spec.name}, which are made of the feature {CLASSES!r}: expected int64 [N, most classes]"
        )


def targets_of(spec: ArraySpec, classes: IntArray, outputs: Outputs) -> npt.NDArray[np.uint8]:
    """[b, L] lists of classes -> [b, outputs of the step]."""
    if classes.size and classes.min() < NO_CLASS:
        raise ValueError(
            f"{CLASSES} hold {classes.min()}; expected classes from 0, and {NO_CLASS} behind them"
        )
    width = int(spec.shape[1])
    targets = np.zeros((len(classes), width), np.uint8)
    example, place = np.nonzero(classes != NO_CLASS)
    found = outputs(classes[example, place])
    if found.size and found.max() >= width:
        raise ValueError(
            f"{CLASSES} stand for outputs up to {found.max()}; the step has {width}: export it for the plan's hash tables"
        )
    targets[np.repeat(example, found.shape[1]), found.reshape(-1)] = 1
    return targets
