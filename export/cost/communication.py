"""What one client exchanges with the server in a round: counted on encoded messages, not by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import ClientUpdate, Columns, ModelSlice
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


def round_bytes(
    extractor_shapes: Mapping[str, tuple[int, ...]], column_dim: int, num_columns: int
) -> RoundBytes:
    """Messages with `num_columns` columns.  Numbers do not change a message's length, so zeros stand in for them."""
    envelope = Envelope(0, 0)
    extractor = {name: np.zeros(shape, np.float32) for name, shape in extractor_shapes.items()}
    columns = Columns(np.arange(num_columns), np.zeros((num_columns, column_dim), np.float32))
    return RoundBytes(
        request=len(request_to_bytes(envelope, columns.class_ids)),
        model_slice=len(slice_to_bytes(envelope, ModelSlice(extractor, columns))),
        update=len(update_to_bytes(envelope, ClientUpdate(extractor, columns, 1, 0.0))),
    )
