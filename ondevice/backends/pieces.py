"""Embedding any number of examples with a program that takes a fixed number: in pieces, the last one padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ondevice.contract.step_signature import EXAMPLES, Arrays, StepSignature, check_range, padded
from ondevice.contract.vocabulary import FloatArray


def embed_in_pieces(
    signature: StepSignature, features: Arrays, micro_batch: int, run: Callable[[Arrays], FloatArray]
) -> FloatArray:
    """`run` takes features of exactly `micro_batch` examples and gives their embeddings [micro_batch, ...]."""
    rows = [run(piece)[:count] for piece, count in _pieces(signature, features, micro_batch)]
    return np.concatenate(rows)


def _pieces(signature: StepSignature, features: Arrays, micro_batch: int) -> Iterator[tuple[Arrays, int]]:
    total = len(features[signature.features[0].name])
    bounds = {EXAMPLES: micro_batch}
    # Of no examples, one piece of padding is embedded: that gives [0, ...].
    for first in range(0, max(1, total), micro_batch):
        piece = {spec.name: features[spec.name][first : first + micro_batch] for spec in signature.features}
        count = min(micro_batch, total - first)
        yield {spec.name: padded(spec, piece[spec.name], bounds) for spec in signature.features}, count


def check_features(signature: StepSignature, arrays: Arrays) -> None:
    """The same names, types, shapes and ranges as the step's, for as many examples as there are."""
    for spec in (*signature.dense, *signature.embedded):
        if spec.name not in arrays:
            raise ValueError(f"{spec.name} is missing; expected {spec.describe()}")
        array = arrays[spec.name]
        sizes = zip(spec.shape, array.shape, strict=False)
        if (
            array.dtype != np.dtype(spec.dtype)
            or array.ndim != len(spec.shape)
            or any(isinstance(size, int) and size != given for size, given in sizes)
        ):
            raise ValueError(f"{spec.name} is {array.dtype} {list(array.shape)}; expected {spec.describe()}")
        check_range(spec, array)
