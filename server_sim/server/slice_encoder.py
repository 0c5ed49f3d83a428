"""The slices of a round as messages: the dense weights, the same for all its clients, are transformed and encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from ondevice.client.transforms import transformed
from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.link import Pieces
from ondevice.contract.messages.packed_weights import packed
from ondevice.contract.safetensors_file import OnePiece
from ondevice.contract.vocabulary import ModelSlice, Parameters


class SliceEncoder:
    """Of one round: the parameters must not change meanwhile.  Transforms are such that change each weight by itself."""

    def __init__(self, dense: Parameters, transforms: Sequence[Choice]) -> None:
        self._parameters = dense
        self._transforms = transforms

    def encode(self, envelope: wire.Envelope, model_slice: ModelSlice) -> Pieces:
        rows = replace(model_slice, dense={})
        weights = transformed(wire.weights_of(rows), self._transforms)
        return wire.slice_in_pieces(envelope, rows, weights, self._dense)

    def encode_rows(self, envelope: wire.Envelope, model_slice: ModelSlice) -> bytes:
        """For a client that has the dense weights already."""
        rows = replace(model_slice, dense={})
        return wire.slice_to_bytes(envelope, rows, transformed(wire.weights_of(rows), self._transforms))

    @cached_property
    def _dense(self) -> OnePiece:
        """A copy, made for the first client that asks."""
        weights = wire.weights_of(ModelSlice(self._parameters, {}, {}))
        return OnePiece.joined(packed(transformed(weights, self._transforms)))
