"""What one client exchanges with the server in a round: counted on encoded messages, not by a formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.step_signature import StepSignature
from ondevice.contract.vocabulary import ClientUpdate, ModelSlice, Rows
from ondevice.contract.wire import Envelope, request_to_bytes, slice_to_bytes, update_to_bytes

PAPER_EXTRACTOR_PARAMETERS = 3_690_000
"""What the shares in section 4.3 of the paper fit; ours has 3,033,456 (d = 64) or 4,202,032 (d = 1,280): no share of ours
is exactly one of the paper's."""


@dataclass(frozen=True)
class RoundBytes:
    """One client, one round."""

    request: int
    model_slice: int
    update: int

    @property
    def total(self) -> int:
        return self.request + self.model_slice + self.update


def round_bytes(signature: StepSignature, rows: int) -> RoundBytes:
    """Messages with so many rows of every table.  Numbers do not change a message's length, so zeros stand in for them."""
    envelope = Envelope(0, 0)
    dense = {name: np.zeros(shape, np.float32) for name, shape in signature.dense_shapes.items()}
    tables = {
        table: Rows(np.arange(rows), np.zeros((rows, dim), np.float32))
        for table, dim in signature.table_dims.items()
    }
    return RoundBytes(
        request=len(request_to_bytes(envelope, {table: some.ids for table, some in tables.items()})),
        model_slice=len(slice_to_bytes(envelope, ModelSlice(dense, tables))),
        update=len(update_to_bytes(envelope, ClientUpdate(dense, tables, 1, 0.0))),
    )
