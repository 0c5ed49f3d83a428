"""Examples as the extractor sees them, in blocks that bound the memory: for evaluation, and for samplers that look near.

An extractor makes one embedding of an example, or several: one for each place where it predicts, the first of which stands
for the whole.  Evaluation asks the whole examples, a sampler all places, for all of them compete with the classifier's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ondevice.backends import Backend
from ondevice.contract.tokens import NUM_SPECIAL, TOKENS
from ondevice.contract.vocabulary import ExampleSet, FloatArray, IntArray, Parameters

_BLOCK = 256
"""Examples embedded at a time, where the backend takes any number."""

ReadRows = Callable[[str, IntArray], FloatArray]
"""Table and row ids -> these rows."""


def embed_examples(
    backend: Backend, dense: Parameters, examples: ExampleSet, read_rows: ReadRows
) -> FloatArray:
    """[N, d]: what stands for each of them."""
    return np.concatenate([found for _, found in embedded_blocks(backend, dense, examples, read_rows)])


def embed_places(
    backend: Backend, dense: Parameters, examples: ExampleSet, read_rows: ReadRows
) -> FloatArray:
    """[places, d]: all that there are, one example's after the other."""
    return np.concatenate([_places(made) for _, made in _blocks(backend, dense, examples, read_rows)])


def embedded_blocks(
    backend: Backend, dense: Parameters, examples: ExampleSet, read_rows: ReadRows
) -> Iterator[tuple[slice, FloatArray]]:
    """Some examples after the other, and what stands for them."""
    for block, made in _blocks(backend, dense, examples, read_rows):
        yield block, made if made.ndim == 2 else made[:, 0]


def _places(made: FloatArray) -> FloatArray:
    if made.ndim == 2:
        return made
    flat = made.reshape(-1, made.shape[2])
    # Where an example has fewer places than others there are zeros.
    return flat[flat.any(1)]


def _blocks(
    backend: Backend, dense: Parameters, examples: ExampleSet, read_rows: ReadRows
) -> Iterator[tuple[slice, FloatArray]]:
    """Some examples after the other, and all that is made of them.  Of a table that the extractor reads, a block of examples
    gets the rows that it needs."""
    size = backend.micro_batch or _BLOCK
    read = [spec.name for spec in backend.signature.features]
    for start in range(0, len(examples), size):
        block = slice(start, min(start + size, len(examples)))
        features = {name: examples.features[name][block] for name in read}
        tables = {}
        for table in backend.signature.embedded:
            if table.role == "table":
                reading = [
                    spec.name for spec in backend.signature.features if spec.positions_in == table.name
                ]
                # Special tokens are asked for always: position 0 is padding, whatever a block holds.
                special = np.arange(NUM_SPECIAL) if TOKENS in reading else np.empty(0, np.int64)
                ids = np.unique(np.concatenate([special, *(features[name].reshape(-1) for name in reading)]))
                features |= {name: np.searchsorted(ids, features[name]) for name in reading}
                tables[table.name] = read_rows(table.name, ids)
        yield block, backend.embed({**dense, **tables, **features})
