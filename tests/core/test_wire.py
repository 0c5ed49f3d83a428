"""Messages go round unchanged; the format is safetensors; whatever is malformed is refused with one named error."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondevice.contract import safetensors_file, wire
from ondevice.contract.safetensors_file import Bfloat16
from ondevice.contract.vocabulary import ClientUpdate, Columns, ModelSlice
from ondevice.contract.wire import Envelope, Expected, Precision, WireError

ENVELOPE = Envelope(round_index=3, client_id=7)
IDS = np.array([2, 5, 11])
EXPECTED = Expected(num_classes=12, column_dim=4, extractor_shapes={"conv": (2, 3), "bias": (2,)})
RNG = np.random.default_rng(0)
EXTRACTOR = {
    name: RNG.standard_normal(shape, np.float32) for name, shape in EXPECTED.extractor_shapes.items()
}
COLUMNS = Columns(IDS, RNG.standard_normal((3, 4), np.float32))
UPDATE = ClientUpdate(EXTRACTOR, COLUMNS, num_examples=17, mean_loss=1.5)


def test_a_request_goes_round_unchanged() -> None:
    assert np.array_equal(wire.request_from_bytes(wire.request_to_bytes(ENVELOPE, IDS), ENVELOPE, 12), IDS)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 0), ("fp16", 1e-3), ("bf16", 8e-3)])
def test_slices_and_updates_go_round_within_their_precision(precision: Precision, tolerance: float) -> None:
    sent = wire.slice_to_bytes(ENVELOPE, ModelSlice(EXTRACTOR, COLUMNS), precision)
    model_slice = wire.slice_from_bytes(sent, ENVELOPE, IDS, EXPECTED)
    update = wire.update_from_bytes(
        wire.update_to_bytes(ENVELOPE, UPDATE, precision), ENVELOPE, IDS, EXPECTED
    )
    assert (update.num_examples, update.mean_loss) == (17, 1.5)
    for extractor, columns in (
        (model_slice.extractor, model_slice.columns),
        (update.extractor_delta, update.columns_delta),
    ):
        np.testing.assert_allclose(columns.weights, COLUMNS.weights, rtol=tolerance)
        for name, value in EXTRACTOR.items():
            np.testing.assert_allclose(extractor[name], value, rtol=tolerance)


def test_half_precision_halves_the_message() -> None:
    large = ModelSlice({"conv": np.zeros((2, 30_000), np.float32)}, COLUMNS)
    full, half = (len(wire.slice_to_bytes(ENVELOPE, large, precision)) for precision in ("fp32", "bf16"))
    assert half < 0.51 * full


def test_bfloat16_rounds_to_nearest_even_as_torch_does() -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * 1e3
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(Bfloat16.from_float32(values).to_float32(), expected)


def test_the_safetensors_package_reads_our_messages_and_we_read_its_files() -> None:
    read = safetensors.numpy.load(wire.update_to_bytes(ENVELOPE, UPDATE))
    assert np.array_equal(read["extractor.conv"], EXTRACTOR["conv"])
    assert read["num_examples"].tolist() == [17]
    tensors, metadata = safetensors_file.from_bytes(safetensors.numpy.save(EXTRACTOR, {"kind": "x"}))
    assert metadata == {"kind": "x"}
    assert np.array_equal(tensors["conv"], EXTRACTOR["conv"])


def test_reading_copies_nothing() -> None:
    message = wire.slice_to_bytes(ENVELOPE, ModelSlice(EXTRACTOR, COLUMNS))
    read = wire.slice_from_bytes(message, ENVELOPE, IDS, EXPECTED)
    assert np.shares_memory(np.frombuffer(message, np.uint8), read.columns.weights)


def test_a_value_beyond_fp16_is_refused_by_the_sender() -> None:
    huge = ModelSlice({"conv": np.full((2, 3), 1e6, np.float32)}, COLUMNS)
    with pytest.raises(WireError, match="beyond fp16"):
        wire.slice_to_bytes(ENVELOPE, huge, "fp16")


# ------------------------------------------------------------------ malformed messages

VALID = wire.update_to_bytes(ENVELOPE, UPDATE)


def parts(message: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", message[:8])
    return json.loads(message[8 : 8 + size]), message[8 + size :]


def assembled(header: Any, body: bytes) -> bytes:
    return assembled_text(json.dumps(header)) + body


def assembled_text(header: str) -> bytes:
    return struct.pack("<Q", len(header.encode())) + header.encode()


def with_tensor(name: str, values: np.ndarray) -> bytes:
    """The valid update with one tensor replaced by another, correctly described."""
    tensors, metadata = safetensors_file.from_bytes(VALID)
    return safetensors_file.to_bytes({**tensors, name: values}, metadata)


def with_header(change: Callable[[dict[str, Any]], None]) -> bytes:
    header, body = parts(VALID)
    change(header)
    return assembled(header, body)


def nan_columns() -> np.ndarray:
    columns = COLUMNS.weights.copy()
    columns[1, 2] = np.nan
    return columns


def renamed(header: dict[str, Any]) -> None:
    header["extractor.cnov"] = header.pop("extractor.conv")


NAMED_FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "truncated": (VALID[:-5], "offsets"),
    "oversized header": (struct.pack("<Q", 1 << 40) + VALID[8:], "header claims"),
    "trailing bytes": (VALID + b"xxxx", "belong to no tensor"),
    "wrong shape": (
        with_tensor("columns", np.zeros((3, 5), np.float32)),
        "columns is float32 \\[3, 5\\]; expected",
    ),
    "huge shape": (with_header(lambda h: h["columns"].update(shape=[1 << 62, 1 << 62])), "columns: offsets"),
    "huge empty shape": (
        with_header(lambda h: h["columns"].update(shape=[1 << 62, 0, 1 << 62], data_offsets=[0, 0])),
        "columns: ",
    ),
    "huge number": (
        assembled_text(json.dumps(parts(VALID)[0]).replace("[3, 4]", "[" + "9" * 5000 + "]")),
        "not JSON",
    ),
    "wrong dtype": (with_tensor("class_ids", IDS.astype(np.float32)), "class_ids is float32"),
    "weights as integers": (with_tensor("columns", np.zeros((3, 4), np.int64)), "columns is int64"),
    "NaN": (with_tensor("columns", nan_columns()), "columns holds NaN or infinity"),
    "infinity": (
        with_tensor("extractor.bias", np.array([1, np.inf], np.float32)),
        "bias holds NaN or infinity",
    ),
    "NaN loss": (with_tensor("mean_loss", np.array([np.nan], np.float32)), "mean_loss holds NaN"),
    "duplicate ids": (with_tensor("class_ids", np.array([2, 2, 11])), "sorted and unique"),
    "unsorted ids": (with_tensor("class_ids", np.array([5, 2, 11])), "sorted and unique"),
    "ids out of range": (with_tensor("class_ids", np.array([2, 5, 12])), "below 12"),
    "negative ids": (with_tensor("class_ids", np.array([-1, 5, 11])), "start at -1"),
    "other ids": (with_tensor("class_ids", np.array([2, 5, 10])), "not the 3 requested"),
    "no ids": (with_tensor("class_ids", np.zeros(0, np.int64)), "1 or more ids"),
    "negative count": (with_tensor("num_examples", np.array([-4])), "num_examples is -4"),
    "zero count": (with_tensor("num_examples", np.array([0])), "num_examples is 0"),
    "unknown kind": (
        with_header(lambda h: h["__metadata__"].update(kind="poem")),
        "'poem', a kind this version",
    ),
    "other kind": (wire.request_to_bytes(ENVELOPE, IDS), "is a 'request'"),
    "unknown version": (with_header(lambda h: h["__metadata__"].update(version="9")), "format version '9'"),
    "other round": (with_header(lambda h: h["__metadata__"].update(round="4")), "for round '4'"),
    "other client": (with_header(lambda h: h["__metadata__"].update(client="8")), "for client '8'"),
    "renamed tensor": (with_header(renamed), "missing: \\['extractor.conv'\\]"),
    "extra tensor": (with_tensor("extra", np.zeros(1, np.float32)), "unknown: \\['extra'\\]"),
    "metadata missing": (with_header(lambda h: h.pop("__metadata__")), "metadata has"),
    "metadata of numbers": (with_header(lambda h: h["__metadata__"].update(round=3)), "map of strings"),
    "header is a list": (assembled([1, 2], b""), "expected a JSON object"),
    "deep header": (struct.pack("<Q", 100_000) + b"[" * 100_000, "not JSON"),
    "negative offsets": (
        with_header(lambda h: h["columns"].update(data_offsets=[-4, 44])),
        "two whole numbers",
    ),
    "unknown dtype": (with_header(lambda h: h["columns"].update(dtype="F8")), "dtype is 'F8'"),
}


@pytest.mark.parametrize("fault", NAMED_FAULTS)
def test_a_malformed_update_is_refused_and_the_reason_named(fault: str) -> None:
    message, reason = NAMED_FAULTS[fault]
    with pytest.raises(WireError, match=reason):
        wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED)


def refused_or_sound(message: bytes) -> bool:
    """True if refused.  Anything accepted must be finite and of the expected shape; any other error fails the test."""
    try:
        update = wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED)
    except WireError:
        return True
    assert update.num_examples >= 1
    assert np.isfinite(update.mean_loss)
    assert update.columns_delta.weights.shape == (3, 4)
    assert all(
        np.isfinite(value).all() for value in (update.columns_delta.weights, *update.extractor_delta.values())
    )
    return False


FEWER = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FEWER
@given(st.randoms(use_true_random=False))
def test_10000_changed_or_cut_messages_raise_nothing_but_wire_error(random: Random) -> None:
    """150 examples of hypothesis, 70 messages each: a few bytes changed, then whole, cut short or made longer."""
    for _ in range(70):
        message = bytearray(VALID)
        for _ in range(random.randint(1, 4)):
            message[random.randrange(len(message))] = random.randrange(256)
        cut = random.choice([len(message), random.randrange(len(message))])
        extra = random.choice([0, 0, random.randrange(1, 40)])
        sent = bytes(message[:cut]) + bytes(extra)
        refused = refused_or_sound(sent)
        assert refused or len(sent) == len(VALID)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
header_keys = st.sampled_from(
    ["__metadata__", "columns", "class_ids", "num_examples", "mean_loss", "extractor.conv"]
)
entry_keys = st.sampled_from(["dtype", "shape", "data_offsets", "kind", "version", "round", "client"])


@FEWER
@given(header_keys, entry_keys, json_values)
def test_strange_headers_raise_nothing_but_wire_error(key: str, field: str, value: Any) -> None:
    header, body = parts(VALID)
    if header[key].get(field) == value and type(header[key].get(field)) is type(value):
        return
    header[key][field] = value
    assert refused_or_sound(assembled(header, body))


@FEWER
@given(st.binary(max_size=200), st.integers(0, 300))
def test_random_bytes_are_refused(noise: bytes, claimed: int) -> None:
    assert refused_or_sound(noise)
    assert refused_or_sound(struct.pack("<Q", claimed) + noise)
