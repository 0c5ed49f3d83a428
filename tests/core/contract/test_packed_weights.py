"""Updates in fewer bytes: int8 rows whose expectation is the update, largest entries whose rest is not lost, and what the
wire refuses of both before it believes a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, tiny_plan
from helpers.messages.wire_messages import ENVELOPE, EXPECTED, IDS, UPDATE
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ondevice.client.transforms import TransformView, transformed
from ondevice.client.transforms.int8 import Int8
from ondevice.client.transforms.top_k import TopK, largest_positions
from ondevice.contract import safetensors_file, wire
from ondevice.contract.choice import Choice
from ondevice.contract.messages.packed_weights import Int8Rows, Largest, Weight, packed, unpacked
from ondevice.contract.portable_random import PortableRandom
from ondevice.contract.safetensors_file import Bfloat16, Tensor
from ondevice.contract.vocabulary import ClientUpdate, FloatArray, ModelSlice, Rows
from ondevice.contract.wire import UpdateLimits, WireError
from server_sim.one_round import RoundRules, run_round

INT8 = Choice("int8")
HALF_OF_THEM = Choice("top_k", {"fraction": 0.5})


def f32(*numbers: float) -> FloatArray:
    return np.array(numbers, np.float32)


def read_again(weights: Mapping[str, Weight], like: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """What whoever receives them has."""
    found = unpacked(packed(weights), {name: np.shape(values) for name, values in like.items()})
    assert set(found) == set(like)
    floats = {}
    for name, values in found.items():
        assert not isinstance(values, Bfloat16)
        floats[name] = values
    return floats


def quantised(values: FloatArray, seed: int, round_index: int = 0) -> FloatArray:
    weights = {"dense.w": values}
    return read_again(Int8().apply(weights, TransformView(round_index, seed)), weights)["dense.w"]


def step_of(values: FloatArray) -> FloatArray:
    """The distance of two neighbours of the grid, per entry."""
    by_row = values.reshape(len(values) if values.ndim > 1 else 1, -1)
    steps = np.abs(by_row).max(axis=1, keepdims=True) / np.float32(127)
    return np.broadcast_to(steps, by_row.shape).reshape(values.shape)


# ------------------------------------------------------------------ int8


def test_draws_in_one_go_are_the_draws_one_by_one() -> None:
    at_once, one_by_one = PortableRandom(2**64 - 1, 3, 1), PortableRandom(2**64 - 1, 3, 1)
    found = [*at_once.uniform(5), *at_once.uniform(0), *at_once.uniform(2)]
    assert found == [(one_by_one.next() >> 11) / 2**53 for _ in range(7)]
    assert at_once.next() == one_by_one.next()


def test_the_expectation_of_int8_is_the_update() -> None:
    """Over 4,000 private seeds: every mean lies within 5 deviations of the entry, most of them within one."""
    sizes = f32(1e-6, 1e-3, 1, 10, 1e3, 1e6)[:, np.newaxis]
    values = sizes * np.random.default_rng(0).standard_normal((6, 5), np.float32)
    seeds = 4000
    total = np.zeros(values.shape)
    for seed in range(seeds):
        total += quantised(values, seed)
    # The variance of a rounding at a fraction f of the step is f (1 - f) steps^2.
    steps = step_of(values).astype(np.float64)
    fraction = values / steps - np.floor(values / steps)
    deviation = steps * np.sqrt(fraction * (1 - fraction) / seeds) + 1e-6 * steps
    distance = np.abs(total / seeds - values) / deviation
    assert distance.max() < 5
    assert 0.5 < (distance < 1).mean() < 0.9


def test_rounding_to_nearest_would_not_pass_for_unbiased() -> None:
    """The test above can fail: a small entry beside a large one is lost by every client alike."""
    values = f32(1, 0.001)
    assert np.rint(values / step_of(values))[1] == 0
    assert np.mean([quantised(values, seed)[1] for seed in range(4000)]) == pytest.approx(0.001, rel=0.3)


shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=6)
floats = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.float32, shapes, elements=floats), st.integers(0, 2**64 - 1))
def test_an_entry_goes_to_one_of_its_two_neighbours(values: FloatArray, seed: int) -> None:
    found = quantised(values, seed)
    assert found.shape == values.shape
    assert (np.abs(found - values) <= step_of(values) * np.float32(1 + 1e-5)).all()
    # A row's largest entry is on the grid, up to the rounding of its scale.
    assert np.abs(found).max() == pytest.approx(np.abs(values).max(), rel=1e-5)
    assert (found[values == 0] == 0).all()


def test_chance_is_the_clients_own_and_differs_from_round_to_round() -> None:
    values = np.random.default_rng(1).standard_normal((40, 50), np.float32)
    first = quantised(values, seed=7)
    assert np.array_equal(first, quantised(values, seed=7))
    for other in (quantised(values, seed=8), quantised(values, seed=7, round_index=1)):
        assert 0.2 < (first != other).mean() < 0.5


def test_int8_is_a_quarter_of_the_bytes() -> None:
    large = ClientUpdate({"conv": np.ones((64, 4000), np.float32)}, UPDATE.tables, 3, 1.0)
    narrow = transformed(wire.weights_of(large), [INT8])
    whole, quarter = wire.update_to_bytes(ENVELOPE, large), wire.update_to_bytes(ENVELOPE, large, narrow)
    assert len(quarter) < 0.255 * len(whole)


@pytest.mark.parametrize("transform", [INT8, HALF_OF_THEM])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_diverged_is_said_to_have(transform: Choice, value: float) -> None:
    diverged = {"dense.w": f32(1, value).reshape(1, 2)}
    with pytest.raises(ValueError, match=r"dense.w holds NaN or infinity: local training diverged"):
        transformed(diverged, [transform])


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([INT8, INT8], "expected int8 to be the last transform, once"),
        ([Choice("precision", {"format": "fp16"}), INT8], "expected int8 to be the last transform, once"),
        ([INT8, Choice("precision", {"format": "bf16"})], "expected precision to be the last transform"),
        ([INT8, Choice("clip", {"norm": 1})], "expected clip to come before precision, int8 and top_k"),
        ([INT8, HALF_OF_THEM], "expected top_k to come before precision and int8, once"),
        ([HALF_OF_THEM, HALF_OF_THEM], "expected top_k to come before precision and int8, once"),
    ],
)
def test_an_order_that_cannot_work_is_refused(order: list[Choice], words: str) -> None:
    with pytest.raises(ValueError, match=f"dense.w was narrowed before; {words}"):
        transformed({"dense.w": np.ones((2, 2), np.float32)}, order)


# ------------------------------------------------------------------ the largest entries


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([-2, -1, 0, 1, 3])), st.data())
def test_the_largest_are_taken_and_the_first_among_equals(values: FloatArray, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(values)))
    found = largest_positions(values, count)
    assert found.tolist() == sorted(sorted(range(len(values)), key=lambda at: (-abs(values[at]), at))[:count])
    assert found.dtype == np.int32


def test_what_is_not_sent_is_sent_later() -> None:
    """After any number of rounds: all that was sent and what is remembered add up to all that the client computed."""
    rng = np.random.default_rng(2)
    memory: dict[str, FloatArray] = {}
    computed, sent = np.zeros((8, 9)), np.zeros((8, 9))
    for round_index in range(20):
        weights = {
            "dense.w": rng.standard_normal((8, 9), np.float32),
            "table.columns": np.ones((2, 3), np.float32),
        }
        view = TransformView(round_index, 0, memory)
        found = TopK(0.1).apply(weights, view)
        assert found["table.columns"] is weights["table.columns"]
        largest = found["dense.w"]
        assert isinstance(largest, Largest)
        assert len(largest.positions) == 8
        computed += weights["dense.w"]
        sent += read_again(found, weights)["dense.w"]
        np.testing.assert_allclose(sent + memory["top_k.dense.w"], computed, atol=1e-5)
    assert (
        np.abs(memory["top_k.dense.w"]).max() < 12
    )  # it does not grow with the rounds: what waits, grows until it is sent


@pytest.mark.parametrize("narrow", [INT8, Choice("precision", {"format": "bf16"})])
def test_the_largest_may_be_narrowed_too(narrow: Choice) -> None:
    weights = {"dense.w": np.random.default_rng(3).standard_normal((30, 20), np.float32)}
    alone = read_again(transformed(weights, [HALF_OF_THEM]), weights)["dense.w"]
    both = read_again(transformed(weights, [HALF_OF_THEM, narrow]), weights)["dense.w"]
    assert 0.4 < (both != 0).mean() <= 0.5
    np.testing.assert_allclose(both, alone, atol=np.abs(alone).max() / 127)


def test_the_memory_of_another_model_is_refused() -> None:
    view = TransformView(memory={"top_k.dense.w": np.zeros((3, 2), np.float32)})
    with pytest.raises(ValueError, match=r"dense.w is \[2, 2\], but the client remembers \[3, 2\] of it"):
        TopK(0.5).apply({"dense.w": np.ones((2, 2), np.float32)}, view)


# ------------------------------------------------------------------ the wire


def test_packed_updates_go_round() -> None:
    for choices in ([INT8], [HALF_OF_THEM], [HALF_OF_THEM, INT8]):
        weights = transformed(wire.weights_of(UPDATE), choices, TransformView(3, 5))
        message = wire.update_to_bytes(ENVELOPE, UPDATE, weights)
        found = wire.weights_of(wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED))
        own = wire.weights_of(UPDATE)
        for name, values in read_again(weights, own).items():
            np.testing.assert_array_equal(found[name], values)


def spoiled(choices: list[Choice], **tensors: Any) -> bytes:
    """The update with some tensors replaced, taken out (None) or put in; `_` in a name stands for a dot."""
    weights = transformed(wire.weights_of(UPDATE), choices, TransformView(3, 5))
    given_tensors, metadata = safetensors_file.from_bytes(wire.update_to_bytes(ENVELOPE, UPDATE, weights))
    told: dict[str, Tensor] = dict(given_tensors)
    for name, tensor in tensors.items():
        told[name.replace("_", ".")] = tensor
    return safetensors_file.to_bytes({n: t for n, t in told.items() if t is not None}, metadata)


def i32(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


@pytest.mark.parametrize(
    ("choices", "tensors", "words"),
    [
        (
            [INT8],
            {"scale_dense_conv": f32(1, -1)},
            "scale.dense.conv holds a negative number, NaN or infinity",
        ),
        ([INT8], {"scale_dense_conv": f32(1, np.nan)}, "scale.dense.conv holds a negative number, NaN"),
        ([INT8], {"scale_dense_conv": f32(np.inf, 1)}, "scale.dense.conv holds a negative number, NaN"),
        ([INT8], {"scale_dense_conv": f32(1)}, r"scale.dense.conv is not F32 \[2\]: one scale per row"),
        ([INT8], {"scale_dense_bias": f32(1, 1)}, r"scale.dense.bias is not F32 \[1\]"),
        ([INT8], {"scale_table_columns": f32(1, 1)}, r"scale.table.columns is not F32 \[3\]"),
        (
            [INT8],
            {"scale_table_columns": np.ones((3, 1), np.float32)},
            r"scale.table.columns is not F32 \[3\]",
        ),
        ([INT8], {"scale_table_columns": np.ones(3, np.int64)}, r"scale.table.columns is not F32 \[3\]"),
        ([INT8], {"scale_dense_conv": None}, r"dense.conv is int8 \[2, 3\]; expected F32, F16 or BF16"),
        ([INT8], {"dense_conv": np.ones((2, 3), np.float32)}, r"dense.conv has scales; expected I8 \[2, 3\]"),
        ([INT8], {"dense_conv": np.ones((2, 3), np.uint8)}, r"dense.conv has scales; expected I8 \[2, 3\]"),
        ([INT8], {"dense_conv": np.ones((3, 2), np.int8)}, r"dense.conv has scales; expected I8 \[2, 3\]"),
        ([INT8], {"dense_conv": None}, r"missing: \['dense.conv'\]; tensors unknown: \['scale.dense.conv'\]"),
        ([INT8], {"scale_dense_stem": f32(1)}, r"unknown: \['scale.dense.stem'\]"),
        ([INT8], {"scale_rows_columns": f32(1)}, r"unknown: \['scale.rows.columns'\]"),
        (
            [HALF_OF_THEM],
            {"position_dense_conv": i32(0, 2, 1)},
            "position.dense.conv is not sorted and unique",
        ),
        (
            [HALF_OF_THEM],
            {"position_dense_conv": i32(0, 2, 2)},
            "position.dense.conv is not sorted and unique",
        ),
        ([HALF_OF_THEM], {"position_dense_conv": i32(0, 1, 6)}, "reaches from 0 to 6; expected 0 to 5"),
        ([HALF_OF_THEM], {"position_dense_conv": i32(-1, 1, 2)}, "reaches from -1 to 2; expected 0 to 5"),
        (
            [HALF_OF_THEM],
            {"position_dense_conv": i32(0, -7, 2)},
            "position.dense.conv is not sorted and unique",
        ),
        ([HALF_OF_THEM], {"position_dense_conv": i32(0, 1)}, r"dense.conv is not F32, F16 or BF16 \[2\]"),
        ([HALF_OF_THEM], {"position_dense_conv": i32()}, r"dense.conv is not F32, F16 or BF16 \[0\]"),
        ([HALF_OF_THEM], {"position_dense_conv": np.arange(3)}, "position.dense.conv is not I32 of one"),
        (
            [HALF_OF_THEM],
            {"position_dense_conv": i32(0).reshape(1, 1)},
            "position.dense.conv is not I32 of one",
        ),
        ([HALF_OF_THEM], {"position_dense_conv": None}, r"dense.conv is float32 \[3\]; expected .* \[2, 3\]"),
        ([HALF_OF_THEM], {"dense_conv": np.ones(3, np.int8)}, r"dense.conv is not F32, F16 or BF16 \[3\]"),
        ([HALF_OF_THEM], {"scale_dense_conv": f32(1)}, r"dense.conv has scales; expected I8 \[3\]"),
        ([HALF_OF_THEM], {"dense_conv": f32(1, np.nan, 1)}, "dense.conv holds NaN or infinity"),
        ([], {"position_dense_conv": i32(0, 1, 2)}, r"dense.conv is not F32, F16 or BF16 \[3\]"),
        # What is decoded counts: 127 times a scale that is finite may not be.
        ([INT8], {"scale_dense_bias": f32(3e38)}, "dense.bias holds NaN or infinity"),
        (
            [INT8],
            {"scale_dense_bias": f32(100)},
            r"dense.bias reaches 12700; expected at most 10000 \(server.max",
        ),
        ([HALF_OF_THEM], {"dense_conv": f32(1, 2e4, 1)}, r"dense.conv reaches 20000; expected at most 10000"),
    ],
)
def test_a_malformed_update_is_refused(choices: list[Choice], tensors: dict[str, Any], words: str) -> None:
    with pytest.raises(WireError, match=words):
        wire.update_from_bytes(spoiled(choices, **tensors), ENVELOPE, IDS, EXPECTED, UpdateLimits())


def test_no_entries_at_all_are_an_update_of_nothing() -> None:
    message = spoiled([HALF_OF_THEM], position_dense_conv=i32(), dense_conv=f32())
    assert not wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED).dense["conv"].any()


def test_a_slice_is_a_model_and_never_packed() -> None:
    model_slice = wire.slice_to_bytes(
        ENVELOPE,
        ModelSlice(UPDATE.dense, UPDATE.tables),
        {"dense.conv": Int8Rows(np.ones((2, 3), np.int8), f32(1, 1))},
    )
    with pytest.raises(WireError, match=r"unknown: \['scale.dense.conv'\]"):
        wire.slice_from_bytes(model_slice, ENVELOPE, IDS, EXPECTED)


# ------------------------------------------------------------------ a round


def test_a_round_in_int8_sends_a_third_and_moves_the_model_nearly_as_far() -> None:
    """Of a tiny model: names, shapes and ids weigh more than in a real one."""
    whole, quarter = TinyFederation(), TinyFederation()
    plain = run_round(whole.state, tiny_plan(), [0, 1, 2], whole.link(), whole.aggregator())
    narrow = run_round(
        quarter.state,
        tiny_plan(transforms=(INT8,)),
        [0, 1, 2],
        quarter.link(),
        quarter.aggregator(),
        RoundRules(slice_transforms=(Choice("precision", {"format": "bf16"}),)),
    )
    assert narrow.num_updates == 3
    assert narrow.bytes_up < 0.34 * plain.bytes_up
    assert narrow.bytes_down < 0.54 * plain.bytes_down
    moved = [tiny.weights - TinyFederation().weights for tiny in (whole, quarter)]
    assert np.linalg.norm(moved[1] - moved[0]) < 0.2 * np.linalg.norm(moved[0])


def test_rows_go_into_their_table_with_their_own_scales() -> None:
    values = f32(*range(12)).reshape(3, 4) * f32(1, 1e-3, 10)[:, np.newaxis]
    update = ClientUpdate(UPDATE.dense, {**UPDATE.tables, "columns": Rows(IDS["columns"], values)}, 3, 1.0)
    weights = transformed(wire.weights_of(update), [INT8])
    message = wire.update_to_bytes(ENVELOPE, update, weights)
    found = wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED).tables["columns"]
    assert np.array_equal(found.ids, IDS["columns"])
    assert (np.abs(found.values - values) <= step_of(values)).all()
