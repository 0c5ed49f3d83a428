"""A message as we write it is read on a short path, any other on a longer one: both give and refuse the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.messages.wire_messages import (
    DENSE,
    ENVELOPE,
    EXPECTED,
    IDS,
    SLICE,
    TABLES,
    UPDATE,
    assembled,
    assembled_text,
    encoded,
    parts,
    read,
)

from ondevice.client.transforms import transformed
from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.messages.checked_tensors import none_beyond
from ondevice.contract.messages.flat_parameters import FlatParameters
from ondevice.contract.safetensors_file import OnePiece
from ondevice.contract.vocabulary import ClientUpdate
from ondevice.contract.wire import Envelope, WireError
from server_sim.server.slice_encoder import SliceEncoder


def test_an_update_as_we_write_it_and_one_with_another_header_are_read_alike() -> None:
    """The first is compared with the header that it should have; the second, equal but for spaces, is parsed."""
    message = wire.update_to_bytes(ENVELOPE, ClientUpdate(FlatParameters.copied(DENSE), TABLES, 17, 1.5))
    assert message == wire.update_to_bytes(ENVELOPE, UPDATE)
    spaced = assembled(*parts(message))
    assert spaced != message
    for sent in (message, spaced):
        update = wire.update_from_bytes(sent, ENVELOPE, IDS, EXPECTED)
        assert (update.num_examples, update.mean_loss) == (17, 1.5)
        weights = wire.weights_of(update)
        assert list(weights) == list(wire.weights_of(UPDATE))
        assert all(np.array_equal(weights[name], value) for name, value in wire.weights_of(UPDATE).items())


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("key", ["rows.words", "__metadata__"])
@pytest.mark.parametrize("kind", ["request", "slice", "update", "update in int8"])
def test_a_header_that_names_a_key_twice_is_refused(kind: str, key: str, separators: tuple[str, str]) -> None:
    """Whether the rest of it is as we write it or not, at its beginning or its end, even if both say the same."""
    header, body = parts(encoded(kind))
    text = json.dumps(header, separators=separators)
    entry = f'"{key}":{json.dumps(header[key], separators=separators)}'
    for doubled in (f"{{{entry},{text[1:]}", f"{text[:-1]},{entry}}}"):
        assert json.loads(doubled) == header
        with pytest.raises(WireError, match="the same key twice"):
            read(kind, assembled_text(doubled) + body)


@pytest.mark.parametrize("position", [0, 500, 999])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e4 * (1 + 1e-6), -1.1e4, 3e38])
def test_one_pass_finds_an_entry_that_is_beyond_the_limit(wrong: float, position: int) -> None:
    values = np.random.default_rng(0).standard_normal(1000, np.float32)
    assert none_beyond(values, 1e4)
    values[position] = wrong
    assert not none_beyond(values, 1e4)


def test_many_entries_below_the_limit_pass_though_one_pass_cannot_tell() -> None:
    """Their squares sum up to more than the limit's: then every tensor is looked at."""
    dense = {"conv": np.full((2, 3), 9e3, np.float32), "bias": np.full(2, -9e3, np.float32)}
    assert not none_beyond(dense["conv"].reshape(-1), 1e4)
    message = wire.update_to_bytes(ENVELOPE, ClientUpdate(dense, TABLES, 17, 1.5))
    update = wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED)
    assert np.array_equal(update.dense["bias"], dense["bias"])


@pytest.mark.parametrize("precision", [None, "fp16", "bf16"])
def test_slices_whose_dense_weights_are_encoded_once_are_the_same_bytes(precision: str | None) -> None:
    transforms = () if precision is None else (Choice("precision", {"format": precision}),)
    slices = SliceEncoder(SLICE.dense, transforms)
    messages = [slices.encode(Envelope(3, client_id), SLICE) for client_id in range(2)]
    for client_id, message in enumerate(messages):
        weights = transformed(wire.weights_of(SLICE), transforms)
        whole = wire.slice_to_bytes(Envelope(3, client_id), SLICE, weights)
        assert bytes(message) == whole
        assert len(message) == len(whole)
    assert messages[0].shared is messages[1].shared


def test_one_piece_has_one_type() -> None:
    with pytest.raises(ValueError, match="types F16, F32; one piece has one type"):
        OnePiece.joined({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float16)})
