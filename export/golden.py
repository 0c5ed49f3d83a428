"""What a step must give: float64 eager is the truth, and float32 eager's own distance from it is the yardstick.

ReLU and hardswish have kinks.  An activation that sits within float32's rounding of one falls on either side of it, in eager
as in any runtime, and moves some gradients by 1e-3: then a check cannot tell a wrong kernel from bad luck.  Examples are
independent of each other (GroupNorm), so we draw more than we need and keep those that stay clear of every kink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ondevice.backends import Batch
from ondevice.extractors import build_extractor
from ondevice.golden_step import GoldenStep
from ondevice.train_step import TrainStep, loss_and_gradients
from ondevice.vocabulary import EXCLUDED, FloatArray, Parameters, StepSpec

CANDIDATES_PER_EXAMPLE = 4
EXAMPLES_AT_ONCE = 4
"""Float64 activations are large; examples are independent, so references are computed in pieces and added."""

_KINKS = {"relu": (0.0,), "hardswish": (-3.0, 3.0), "hardsigmoid": (-3.0, 3.0)}


def draw_images(step: TrainStep, count: int, seed: int) -> FloatArray:
    """[count, C, H, W]: of seeded noise images, those that stay clearest of every kink.  `step` is in float64."""
    random = np.random.default_rng(seed)
    candidates = random.standard_normal((CANDIDATES_PER_EXAMPLE * count, *step.spec.image_shape), np.float32)
    clearances = []
    for start in range(0, len(candidates), EXAMPLES_AT_ONCE):
        with _KinkClearance() as clearance, torch.no_grad():
            step.extractor(torch.from_numpy(candidates[start : start + EXAMPLES_AT_ONCE]).double())
        clearances.append(clearance.per_example)
    clearest = np.argsort(-np.concatenate(clearances), kind="stable")[:count]
    return candidates[np.sort(clearest)]


def expected_step(step: TrainStep, images: FloatArray, width: int, seed: int) -> GoldenStep:
    """A step over `width` random columns with its expected outputs.  `step` is in float64 and left as it was.

    The last of several columns is excluded, as padding is, and the examples weigh differently, so that a runtime which
    ignores `adjust` or `example_weight` cannot pass.
    """
    random = np.random.default_rng([seed, width])
    columns = 0.1 * random.standard_normal((width, step.spec.column_dim), np.float32)
    adjust = random.uniform(0, 3, width).astype(np.float32)
    if width > 2:
        adjust[-1] = EXCLUDED
    last_label = max(1, width - (width > 2))
    weight = random.uniform(0.5, 1, len(images)).astype(np.float32)
    batch = Batch(images, random.integers(0, last_label, len(images)), weight / weight.sum())
    exact_loss, exact = _outputs(step, columns, adjust, batch)
    eager_loss, eager = _outputs(float32_copy(step), columns, adjust, batch)
    distance = {name: float(torch.linalg.vector_norm(eager[name].double() - exact[name])) for name in exact}
    return GoldenStep(
        columns=columns,
        adjust=adjust,
        batch=batch,
        loss=exact_loss,
        gradients={name: gradient.float().numpy() for name, gradient in exact.items()},
        eager_distance={**distance, "loss": abs(eager_loss - exact_loss)},
    )


def build_step(spec: StepSpec, weights: Parameters) -> TrainStep:
    """The training step in float32 with these weights; every tensor of the extractor is given."""
    extractor = build_extractor(spec)
    extractor.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    return TrainStep(spec, extractor)


def float64_copy(step: TrainStep) -> TrainStep:
    """The same step in double precision."""
    return _copy(step, torch.float64)


def float32_copy(step: TrainStep) -> TrainStep:
    """The same step in single precision."""
    return _copy(step, torch.float32)


def _copy(step: TrainStep, dtype: torch.dtype) -> TrainStep:
    extractor = build_extractor(step.spec)
    extractor.load_state_dict(step.extractor.state_dict())
    return TrainStep(step.spec, extractor.to(dtype))


def _outputs(
    step: TrainStep, columns: FloatArray, adjust: FloatArray, batch: Batch
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by name in the step's own precision, added up over pieces of the batch."""
    dtype = step.extractor.get_parameter("embedding.weight").dtype
    leaf = torch.from_numpy(columns).to(dtype).requires_grad_()
    total_loss = 0.0
    totals: list[Tensor] = []
    for start in range(0, len(batch.labels), EXAMPLES_AT_ONCE):
        piece = slice(start, start + EXAMPLES_AT_ONCE)
        loss = step(
            leaf,
            torch.from_numpy(adjust).to(dtype),
            torch.from_numpy(batch.images[piece]).to(dtype),
            torch.from_numpy(batch.labels[piece]),
            torch.from_numpy(batch.example_weight[piece]).to(dtype),
        )
        loss, extractor_gradients, columns_gradient = loss_and_gradients(loss, step.trainable_tensors(), leaf)
        total_loss += loss.item()
        gradients = [*extractor_gradients, columns_gradient]
        totals = [a + b for a, b in zip(totals, gradients, strict=True)] if totals else gradients
    return total_loss, dict(zip([*step.trainable, "columns"], totals, strict=True))


class _KinkClearance(TorchFunctionMode):
    """Watches the activations that an extractor calls: how near does any of their inputs come to a kink, per example?"""

    per_example: np.ndarray[Any, np.dtype[np.float64]]

    def __init__(self) -> None:
        super().__init__()
        self.per_example = np.array(np.inf)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for kink in _KINKS.get(getattr(func, "__name__", ""), ()):
            nearest = (args[0] - kink).abs().flatten(1).amin(1)  # [b]
            self.per_example = np.minimum(self.per_example, nearest.numpy())
        return func(*args, **(kwargs or {}))
