"""Messages go round unchanged; the format is safetensors; whatever is malformed is refused with one named error."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from helpers.messages.wire_messages import (
    DENSE,
    ENVELOPE,
    EXPECTED,
    IDS,
    PLAN,
    REQUEST,
    SLICE,
    UPDATE,
    VALUES,
    assembled,
    assembled_text,
    encoded,
    parts,
    read,
)

from ondevice.client.transforms import transformed
from ondevice.contract import safetensors_file, wire
from ondevice.contract.choice import Choice
from ondevice.contract.safetensors_file import Bfloat16
from ondevice.contract.vocabulary import ClientUpdate, LocalTraining, ModelSlice, RoundPlan, Rows
from ondevice.contract.wire import Envelope, Expected, WireError


def test_a_request_goes_round_unchanged() -> None:
    ids = wire.request_from_bytes(wire.request_to_bytes(ENVELOPE, IDS), ENVELOPE, EXPECTED.table_sizes)
    assert list(ids) == ["columns", "words"]
    for table, expected in IDS.items():
        assert np.array_equal(ids[table], expected)


def test_a_plan_goes_round_unchanged() -> None:
    envelope, plan = wire.plan_from_bytes(wire.plan_to_bytes(ENVELOPE, PLAN))
    assert (envelope, plan) == (ENVELOPE, PLAN)
    bare = RoundPlan(0, {}, Choice("all_rows"), Choice("uniform"))
    assert wire.plan_from_bytes(wire.plan_to_bytes(Envelope(0, 0), bare)) == (Envelope(0, 0), bare)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 0), ("fp16", 1e-3), ("bf16", 8e-3)])
def test_slices_and_updates_go_round_within_their_precision(precision: str, tolerance: float) -> None:
    choices = [Choice("precision", {"format": precision})]
    sent = wire.slice_to_bytes(ENVELOPE, SLICE, transformed(wire.weights_of(SLICE), choices))
    model_slice = wire.slice_from_bytes(sent, ENVELOPE, IDS, EXPECTED)
    answered = wire.update_to_bytes(ENVELOPE, UPDATE, transformed(wire.weights_of(UPDATE), choices))
    update = wire.update_from_bytes(answered, ENVELOPE, IDS, EXPECTED)
    assert (update.num_examples, update.mean_loss) == (17, 1.5)
    assert np.array_equal(model_slice.sides["prior"], SLICE.sides["prior"])  # sides are never narrowed
    for dense, tables in ((model_slice.dense, model_slice.tables), (update.dense, update.tables)):
        for table, values in VALUES.items():
            assert np.array_equal(tables[table].ids, IDS[table])
            assert tables[table].values.dtype == np.float32
            np.testing.assert_allclose(tables[table].values, values, rtol=tolerance)
        for name, value in DENSE.items():
            np.testing.assert_allclose(dense[name], value, rtol=tolerance)


def test_a_model_without_tables_goes_round_unchanged() -> None:
    expected = Expected(EXPECTED.dense, {}, {})
    assert wire.request_from_bytes(wire.request_to_bytes(ENVELOPE, {}), ENVELOPE, {}) == {}
    message = wire.slice_to_bytes(ENVELOPE, ModelSlice(DENSE, {}))
    model_slice = wire.slice_from_bytes(message, ENVELOPE, {}, expected)
    assert not model_slice.tables
    message = wire.update_to_bytes(ENVELOPE, ClientUpdate(DENSE, {}, 3, 0.5))
    update = wire.update_from_bytes(message, ENVELOPE, {}, expected)
    for dense in (model_slice.dense, update.dense):
        assert list(dense) == list(DENSE)
        assert all(np.array_equal(dense[name], value) for name, value in DENSE.items())


def test_the_tables_of_a_message_are_those_of_the_plan() -> None:
    only_columns = {"columns": IDS["columns"]}
    with pytest.raises(WireError, match=r"missing: \['rows.words'\]"):
        wire.request_from_bytes(wire.request_to_bytes(ENVELOPE, only_columns), ENVELOPE, EXPECTED.table_sizes)
    with pytest.raises(WireError, match=r"unknown: \['rows.words'\]"):
        wire.request_from_bytes(wire.request_to_bytes(ENVELOPE, IDS), ENVELOPE, {"columns": 12})


def test_ids_of_one_table_do_not_answer_for_another() -> None:
    swapped = {"columns": Rows(IDS["words"], VALUES["columns"][:2]), "words": SLICE.tables["words"]}
    message = wire.slice_to_bytes(ENVELOPE, ModelSlice(DENSE, swapped, SLICE.sides))
    with pytest.raises(WireError, match="2 rows of columns that are not the 3 requested"):
        wire.slice_from_bytes(message, ENVELOPE, IDS, EXPECTED)


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ({}, r"missing: \['side.prior'\]"),
        ({"prior": np.zeros(2, np.float32)}, r"side.prior is float32 \[2\]; expected F32, F16 or BF16 \[3\]"),
        ({"prior": np.array([0, np.nan, 0], np.float32)}, "side.prior holds NaN"),
        ({"prior": np.zeros(3, np.int64)}, "side.prior is int64"),
        ({**SLICE.sides, "age": np.zeros(3, np.float32)}, r"unknown: \['side.age'\]"),
    ],
)
def test_a_side_array_is_an_entry_per_row_of_its_table(sides: dict[str, Any], message: str) -> None:
    sent = wire.slice_to_bytes(ENVELOPE, ModelSlice(DENSE, SLICE.tables, sides))
    with pytest.raises(WireError, match=message):
        wire.slice_from_bytes(sent, ENVELOPE, IDS, EXPECTED)


def test_half_precision_halves_the_message() -> None:
    large = ModelSlice({"conv": np.zeros((2, 30_000), np.float32)}, SLICE.tables)
    half = transformed(wire.weights_of(large), [Choice("precision", {"format": "bf16"})])
    assert len(wire.slice_to_bytes(ENVELOPE, large, half)) < 0.51 * len(wire.slice_to_bytes(ENVELOPE, large))


def test_bfloat16_rounds_to_nearest_even_as_torch_does() -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * 1e3
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(Bfloat16.from_float32(values).to_float32(), expected)


def test_the_safetensors_package_reads_our_messages_and_we_read_its_files() -> None:
    tensors = safetensors.numpy.load(wire.update_to_bytes(ENVELOPE, UPDATE))
    assert np.array_equal(tensors["dense.conv"], DENSE["conv"])
    assert np.array_equal(tensors["table.words"], VALUES["words"])
    assert tensors["num_examples"].tolist() == [17]
    ours, metadata = safetensors_file.from_bytes(safetensors.numpy.save(DENSE, {"kind": "x"}))
    assert metadata == {"kind": "x"}
    assert not isinstance(ours["conv"], Bfloat16)
    assert np.array_equal(ours["conv"], DENSE["conv"])


def test_reading_copies_nothing() -> None:
    message = wire.slice_to_bytes(ENVELOPE, SLICE)
    model_slice = wire.slice_from_bytes(message, ENVELOPE, IDS, EXPECTED)
    for rows in model_slice.tables.values():
        assert np.shares_memory(np.frombuffer(message, np.uint8), rows.values)


@pytest.mark.parametrize("kind", ["plan", "request", "slice", "update"])
def test_a_message_of_version_1_is_refused_by_name_with_what_to_do(kind: str) -> None:
    """Whatever else it holds: those of version 1 had other tensors, and other fields in their plans."""
    old = {"kind": kind, "version": "1", "round": "3", "client": "7"}
    message = safetensors_file.to_bytes({"class_ids": IDS["columns"]}, old)
    with pytest.raises(WireError, match="format version '1'; this program reads '2': update the older side"):
        read(kind, message)


# ------------------------------------------------------------------ malformed messages

VALID = encoded("update")


def with_tensor(name: str, values: np.ndarray) -> bytes:
    """The valid update with one tensor replaced by another, correctly described."""
    tensors, metadata = safetensors_file.from_bytes(VALID)
    return safetensors_file.to_bytes({**tensors, name: values}, metadata)


def with_header(change: Callable[[dict[str, Any]], None]) -> bytes:
    header, body = parts(VALID)
    change(header)
    return assembled(header, body)


def nan_columns() -> np.ndarray:
    columns = VALUES["columns"].copy()
    columns[1, 2] = np.nan
    return columns


def renamed(header: dict[str, Any]) -> None:
    header["dense.cnov"] = header.pop("dense.conv")


NAMED_FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "truncated": (VALID[:-5], "offsets"),
    "oversized header": (struct.pack("<Q", 1 << 40) + VALID[8:], "header claims"),
    "trailing bytes": (VALID + b"xxxx", "belong to no tensor"),
    "wrong shape": (
        with_tensor("table.columns", np.zeros((3, 5), np.float32)),
        "table.columns is float32 \\[3, 5\\]; expected",
    ),
    "huge shape": (
        with_header(lambda h: h["table.columns"].update(shape=[1 << 62, 1 << 62])),
        "table.columns: offsets",
    ),
    "huge empty shape": (
        with_header(lambda h: h["table.columns"].update(shape=[1 << 62, 0, 1 << 62], data_offsets=[0, 0])),
        "columns: ",
    ),
    "huge number": (
        assembled_text(json.dumps(parts(VALID)[0]).replace("[3, 4]", "[" + "9" * 5000 + "]")),
        "not JSON",
    ),
    "wrong dtype": (
        with_tensor("rows.columns", IDS["columns"].astype(np.float32)),
        "rows.columns is float32",
    ),
    "weights as integers": (with_tensor("table.columns", np.zeros((3, 4), np.int64)), "columns is int64"),
    "NaN": (with_tensor("table.columns", nan_columns()), "table.columns holds NaN or infinity"),
    "infinity": (
        with_tensor("dense.bias", np.array([1, np.inf], np.float32)),
        "bias holds NaN or infinity",
    ),
    "NaN loss": (with_tensor("mean_loss", np.array([np.nan], np.float32)), "mean_loss holds NaN"),
    "duplicate ids": (with_tensor("rows.columns", np.array([2, 2, 11])), "columns: .*sorted and unique"),
    "unsorted ids": (with_tensor("rows.columns", np.array([5, 2, 11])), "columns: .*sorted and unique"),
    "unsorted ids of the second table": (
        with_tensor("rows.words", np.array([4, 0])),
        "words: .*sorted and unique",
    ),
    "ids out of range": (with_tensor("rows.columns", np.array([2, 5, 12])), "rows of columns .*below 12"),
    "ids out of the second table's range": (
        with_tensor("rows.words", np.array([0, 5])),
        "rows of words .*below 5",
    ),
    "negative ids": (with_tensor("rows.columns", np.array([-1, 5, 11])), "start at -1"),
    "other ids": (with_tensor("rows.columns", np.array([2, 5, 10])), "not the 3 requested"),
    "ids of two dimensions": (with_tensor("rows.columns", np.array([[2, 5, 11]])), "of one dimension"),
    "no ids": (with_tensor("rows.columns", np.zeros(0, np.int64)), "1 or more ids"),
    "negative count": (with_tensor("num_examples", np.array([-4])), "num_examples is -4"),
    "zero count": (with_tensor("num_examples", np.array([0])), "num_examples is 0"),
    "unknown kind": (
        with_header(lambda h: h["__metadata__"].update(kind="poem")),
        "'poem', a kind this version",
    ),
    "other kind": (REQUEST, "is a 'request'"),
    "unknown version": (with_header(lambda h: h["__metadata__"].update(version="9")), "format version '9'"),
    "no version": (with_header(lambda h: h["__metadata__"].pop("version")), "metadata has"),
    "other round": (with_header(lambda h: h["__metadata__"].update(round="4")), "for round '4'"),
    "other client": (with_header(lambda h: h["__metadata__"].update(client="8")), "for client '8'"),
    "renamed tensor": (with_header(renamed), "missing: \\['dense.conv'\\]"),
    "extra tensor": (with_tensor("extra", np.zeros(1, np.float32)), "unknown: \\['extra'\\]"),
    "sides in an update": (
        with_tensor("side.prior", np.zeros(3, np.float32)),
        "unknown: \\['side.prior'\\]",
    ),
    "metadata missing": (with_header(lambda h: h.pop("__metadata__")), "metadata has"),
    "metadata of a plan": (with_header(lambda h: h["__metadata__"].update(settings="{}")), "metadata has"),
    "metadata of numbers": (with_header(lambda h: h["__metadata__"].update(round=3)), "map of strings"),
    "header is a list": (assembled([1, 2], b""), "expected a JSON object"),
    "deep header": (struct.pack("<Q", 100_000) + b"[" * 100_000, "not JSON"),
    "negative offsets": (
        with_header(lambda h: h["table.columns"].update(data_offsets=[-4, 44])),
        "two whole numbers",
    ),
    "unknown dtype": (with_header(lambda h: h["table.columns"].update(dtype="F8")), "dtype is 'F8'"),
}


@pytest.mark.parametrize("fault", NAMED_FAULTS)
def test_a_malformed_update_is_refused_and_the_reason_named(fault: str) -> None:
    message, reason = NAMED_FAULTS[fault]
    with pytest.raises(WireError, match=reason):
        wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED)


def settings_with(**changes: Any) -> str:
    settings = json.loads(parts(encoded("plan"))[0]["__metadata__"]["settings"])
    return json.dumps({**settings, **changes})


def training_with(**changes: Any) -> str:
    return settings_with(local_training={**LocalTraining().__dict__, **changes})


PLAN_FAULTS: dict[str, tuple[dict[str, str], str]] = {
    "not JSON": ({"settings": "{"}, "not a plan that this program knows"),
    "a list": ({"settings": "[]"}, "the fields are"),
    "a number": ({"settings": "3"}, "not a plan"),
    "nothing": ({"settings": "null"}, "not a plan"),
    "deep": ({"settings": "[" * 100_000}, "not a plan"),
    "a field more": ({"settings": settings_with(seed=3)}, "the fields are .*'seed'"),
    "sizes of no table": ({"settings": settings_with(table_sizes=[3])}, "table_sizes are \\[3\\]"),
    "a size of text": ({"settings": settings_with(table_sizes={"columns": "3"})}, "whole numbers by table"),
    "a size of truth": ({"settings": settings_with(table_sizes={"columns": True})}, "whole numbers by table"),
    "an empty table": ({"settings": settings_with(table_sizes={"columns": 0})}, "size of table columns is 0"),
    "a sampler without a name": ({"settings": settings_with(sampler={})}, "expected a name"),
    "a sampler that is a word": ({"settings": settings_with(sampler="positives")}, "expected a name"),
    "a setting that is a list": (
        {"settings": settings_with(sampler={"name": "positives", "of": []})},
        "of is \\[\\]; expected a number or a word",
    ),
    "transforms by name": ({"settings": settings_with(transforms=["clip"])}, "'clip' is no choice"),
    "no transforms": ({"settings": settings_with(transforms=None)}, "transforms are None; expected a list"),
    "transforms of text": ({"settings": settings_with(transforms="")}, "transforms are ''; expected a list"),
    "transforms in a table": ({"settings": settings_with(transforms={})}, "expected a list"),
    "training of text": ({"settings": settings_with(local_training="fast")}, "fields are 'fast'"),
    "a training setting more": ({"settings": training_with(nesterov=True)}, "fields are .*'nesterov'"),
    "no epochs": ({"settings": training_with(epochs=0)}, "epochs is 0"),
    "an infinite rate": ({"settings": training_with(learning_rate=float("inf"))}, "learning_rate is inf"),
    "a rate of text": ({"settings": training_with(learning_rate="1")}, "learning_rate is '1'"),
    "half an epoch": ({"settings": training_with(epochs=0.5)}, "epochs is 0.5; expected int"),
    "a negative round": ({"round": "-1"}, "round is '-1'; expected a whole number"),
    "a client of text": ({"client": "me"}, "client is 'me'; expected a whole number"),
    "a client beyond 64 bits": ({"client": "9" * 5000}, "client is '9"),
}


@pytest.mark.parametrize("fault", PLAN_FAULTS)
def test_a_malformed_plan_is_refused_and_the_reason_named(fault: str) -> None:
    changes, reason = PLAN_FAULTS[fault]
    tensors, metadata = safetensors_file.from_bytes(encoded("plan"))
    with pytest.raises(WireError, match=reason):
        wire.plan_from_bytes(safetensors_file.to_bytes(tensors, {**metadata, **changes}))


def test_a_plan_with_a_tensor_is_refused() -> None:
    _, metadata = safetensors_file.from_bytes(encoded("plan"))
    with pytest.raises(WireError, match=r"unknown: \['seed'\]"):
        wire.plan_from_bytes(safetensors_file.to_bytes({"seed": np.zeros(1, np.int64)}, metadata))
