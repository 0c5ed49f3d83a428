"""What a sampler may ask the server before it has its sample: where its data lies, and which rows are near.

Asking for φ is asking for a slice.  Its dense parameters are kept, so that the client's last question can do without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ondevice.backends import Backend
from ondevice.client.embedding import embed_places
from ondevice.contract import wire
from ondevice.contract.link import Ask
from ondevice.contract.messages.lookup import Lookup, found_from_bytes, lookup_to_bytes
from ondevice.contract.vocabulary import (
    COLUMNS,
    ExampleSet,
    FloatArray,
    IntArray,
    Parameters,
    RoundPlan,
    Rows,
)
from ondevice.contract.wire import Envelope, Expected


@dataclass
class WireQuestions:
    """Of one client in one round: the `Questions` of its sampler, as messages."""

    envelope: Envelope
    plan: RoundPlan
    ask: Ask
    open_backend: Callable[[], Backend]
    examples: ExampleSet
    positions: IntArray
    """Of the examples that take part."""
    dense: Parameters | None = field(default=None, init=False)
    """φ, once a sampler has asked for embeddings."""

    def embeddings(self, ids: IntArray) -> FloatArray:
        backend = self.open_backend()
        reads = any(spec.role == "table" for spec in backend.signature.embedded)
        # Where the extractor reads no rows, the client's own would tell its classes for nothing: a slice has one row at
        # least, and the first says nothing of anyone.
        asked = {COLUMNS: ids if reads else np.zeros(1, np.int64)}
        answer = self.ask(wire.request_to_bytes(self.envelope, asked))
        expected = expected_slice(backend, self.plan)
        model = wire.slice_from_bytes(answer, self.envelope, asked, expected)
        self.dense, rows = model.dense, model.tables

        def read_rows(table: str, wanted: IntArray) -> FloatArray:
            return rows[table].values[np.searchsorted(rows[table].ids, wanted)]

        features = {name: feature[self.positions] for name, feature in self.examples.features.items()}
        own = ExampleSet(features, self.examples.labels[self.positions])
        return embed_places(backend, model.dense, own, read_rows)

    @property
    def dim(self) -> int:
        return self.open_backend().signature.table_dims[COLUMNS]

    def look_up(self, lookup: Lookup) -> Rows:
        answer = self.ask(lookup_to_bytes(self.envelope, lookup))
        return found_from_bytes(answer, self.envelope, COLUMNS, self.plan.table_sizes[COLUMNS], self.dim)


def expected_slice(backend: Backend, plan: RoundPlan) -> Expected:
    """What a slice must look like for this step."""
    signature = backend.signature
    for table in signature.table_dims:
        if table not in plan.table_sizes:
            raise ValueError(
                f"the step has a table {table!r}, of which the plan says nothing; export for this model"
            )
    return Expected(signature.dense_shapes, plan.table_sizes, signature.table_dims, plan.sides)
