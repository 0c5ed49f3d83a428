"""Whether a network treats every example by itself: the gradient of two is the sum of the gradients of each, in float64.

Only then are micro-batches exact, and an example of weight 0 changes nothing.  A network that fails is refused, with the
first module whose output for an example depends on its neighbour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.proof.golden import (
    FEATURE_ROWS,
    draw_feature,
    draw_noise,
    draw_read_tables,
    float64_copy,
    in_rows,
)
from export.proof.kinks import in_precision
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.extractors.foreign import UnusableModel
from ondevice.model.noise import WithNoise
from ondevice.model.train_step import TrainStep

TOLERANCE = 1e-7
"""Relative, of numbers in double precision that were added up in another order."""
RELEVANT = 1e-7
"""Of the largest gradient: a smaller one may be made of nothing but its rounding errors."""

Outputs = dict[str, Tensor]


def check_examples_are_independent(step: TrainStep, seed: int) -> None:
    """UnusableModel if not."""
    exact = float64_copy(step)
    random = np.random.default_rng(seed)
    features = [
        in_rows(spec, np.stack([draw_feature(spec, place, random) for place in range(2)]), FEATURE_ROWS)
        for spec in step.signature.features
    ]
    tables = [in_precision(table, torch.float64) for table in draw_read_tables(step, random)]
    noise = [in_precision(draw_noise(spec, 2, random), torch.float64) for spec in step.signature.noise]
    pairs = [*(in_precision(feature, torch.float64) for feature in features), *tables, *noise]
    singles = [
        [
            *(feature[at : at + 1] for feature in pairs[: len(features)]),
            *tables,
            *(numbers[at : at + 1] for numbers in noise),
        ]
        for at in range(2)
    ]
    direction = torch.from_numpy(
        random.standard_normal((2, *step.extractor.embedding_shape(step.spec.embedding_dim)))
    )
    together = _gradients(exact, pairs, direction)
    apart = [_gradients(exact, one, direction[at : at + 1]) for at, one in enumerate(singles)]
    # What has no influence at all (a bias of attention's keys) has a gradient of rounding errors of the others.
    least = max((RELEVANT * float(gradient.abs().max()) for gradient in together), default=0.0)
    for name, gradient, first, second in zip(exact.trainable, together, *apart, strict=True):
        largest = max(float(gradient.abs().max()), float(first.abs().max()), least, 1e-12)
        if not float((gradient - first - second).abs().max()) <= TOLERANCE * largest:
            raise UnusableModel(
                f"{step.spec.architecture} does not treat every example by itself: the gradient of {name} over two "
                f"examples is not the sum of the two{_culprit(exact, pairs, singles)}; micro-batches would not be exact: "
                "normalise within an example (--batch-norm), switch off what is random (--randomness), or write the model "
                "without it"
            )


def _gradients(step: TrainStep, inputs: list[Tensor], direction: Tensor) -> list[Tensor]:
    """Of what the embeddings are along random directions, which stands for any loss."""
    if not step.trainable:
        return []
    taken = inputs[: len(step.signature.embedded)]
    embeddings = step.extractor.summary(WithNoise(step.extractor)(*inputs), *taken)
    value = (embeddings * direction).sum()
    return list(torch.autograd.grad(value, step.trainable_tensors()))


def _culprit(step: TrainStep, pairs: list[Tensor], singles: list[list[Tensor]]) -> str:
    """In the order in which modules end, so the innermost is named."""
    together, alone = (_outputs(step.extractor, features) for features in (pairs, singles[0]))
    for path, output in alone.items():
        other = together.get(path)
        if other is None or other.shape[1:] != output.shape[1:] or len(other) != 2 * len(output):
            continue
        if not torch.allclose(other[: len(output)], output, rtol=TOLERANCE, atol=TOLERANCE):
            return f" (it begins in {type(step.extractor.get_submodule(path)).__name__} at {path})"
    return ""


def _outputs(extractor: Extractor, inputs: list[Tensor]) -> Outputs:
    outputs: Outputs = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim():
                outputs[path] = output.detach()

        return hook

    hooks = [module.register_forward_hook(keep(path)) for path, module in extractor.named_modules() if path]
    try:
        with torch.no_grad():
            WithNoise(extractor)(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs
