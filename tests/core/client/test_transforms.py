"""What is done to weights before they travel: narrowed by half, or clipped to a length, in an order that works."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.client.transforms import TransformView, transformed
from ondevice.client.transforms.clip import Clip
from ondevice.client.transforms.precision import Precision
from ondevice.contract.choice import Choice
from ondevice.contract.messages.packed_weights import Int8Rows, Largest, Weight
from ondevice.contract.safetensors_file import Bfloat16
from ondevice.contract.vocabulary import FloatArray
from ondevice.contract.wire import WireError
from server_sim.one_round import RoundRules, run_round

BF16 = Choice("precision", {"format": "bf16"})
CLIP = Choice("clip", {"norm": 0.01})


def weights(seed: int, scale: float) -> dict[str, FloatArray]:
    rng = np.random.default_rng(seed)
    shapes = {"table.columns": (7, 16), "table.words": (3, 4), "dense.conv": (5, 3, 3), "dense.scale": ()}
    return {
        name: np.float32(scale) * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }


def length(tensors: Mapping[str, Weight]) -> float:
    """In float64, the slow and obvious way."""
    total = 0.0
    for values in tensors.values():
        assert not isinstance(values, Bfloat16 | Int8Rows | Largest)
        total += sum(float(entry) ** 2 for entry in values.ravel())
    return float(np.sqrt(total))


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
@settings(max_examples=200, deadline=None)
def test_clipped_weights_are_never_longer_than_the_norm_and_point_the_same_way(
    seed: int, scale: float, norm: float
) -> None:
    given_weights = weights(seed, scale)
    clipped = Clip(norm).apply(given_weights, TransformView())
    before = length(given_weights)
    assert length(clipped) <= norm  # exactly: no rounding may carry a client beyond its bound
    if before <= norm:
        assert all(clipped[name] is values for name, values in given_weights.items())
        return
    assert length(clipped) > norm * (1 - 1e-6)
    for name, values in given_weights.items():
        found = clipped[name]
        assert not isinstance(found, Bfloat16 | Int8Rows | Largest)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, values * (norm / before), rtol=1e-6)


def test_clipping_changes_no_array_of_the_callers() -> None:
    given_weights = weights(0, 1.0)
    before = {name: values.copy() for name, values in given_weights.items()}
    Clip(0.1).apply(given_weights, TransformView())
    assert all(np.array_equal(values, before[name]) for name, values in given_weights.items())


@pytest.mark.parametrize(("form", "dtype"), [("fp32", np.float32), ("fp16", np.float16)])
def test_precision_gives_every_weight_the_type_asked_for(form: str, dtype: type[np.floating]) -> None:
    narrowed = Precision(form).apply(weights(0, 1.0), TransformView())
    for name, values in weights(0, 1.0).items():
        found = narrowed[name]
        assert not isinstance(found, Bfloat16 | Int8Rows | Largest)
        assert found.dtype == dtype
        assert np.array_equal(found, values.astype(dtype))


def test_bf16_is_marked_as_what_it_is() -> None:
    for name, values in Precision("bf16").apply(weights(0, 1.0), TransformView()).items():
        assert isinstance(values, Bfloat16)
        np.testing.assert_allclose(values.to_float32(), weights(0, 1.0)[name], rtol=2.0**-8)


def test_a_value_beyond_fp16_is_refused_by_the_sender() -> None:
    with pytest.raises(
        WireError, match=r"dense.conv holds 1e.06, beyond fp16's 65504; send it as bf16 or fp32"
    ):
        Precision("fp16").apply({"dense.conv": np.full((2, 3), -1e6, np.float32)}, TransformView())
    large = {"dense.conv": np.full(2, 1e6, np.float32)}
    assert isinstance(Precision("bf16").apply(large, TransformView())["dense.conv"], Bfloat16)


@pytest.mark.parametrize("form", ["fp16", "bf16"])
def test_what_was_narrowed_can_be_neither_clipped_nor_narrowed_again(form: str) -> None:
    narrow = Choice("precision", {"format": form})
    with pytest.raises(ValueError, match="narrowed before; expected clip to come before precision"):
        transformed(weights(0, 1.0), [narrow, CLIP])
    with pytest.raises(
        ValueError, match="narrowed before; expected precision to be the last transform, once"
    ):
        transformed(weights(0, 1.0), [narrow, narrow])
    assert set(transformed(weights(0, 1.0), [CLIP, narrow])) == set(weights(0, 1.0))


def test_a_round_whose_clients_clip_moves_the_model_no_further_than_the_norm(tiny: TinyFederation) -> None:
    """The mean of updates of at most that length, applied as it is: FedAvg at rate 1."""
    before = {
        **{name: value.copy() for name, value in tiny.state.dense.items()},
        "columns": tiny.weights.copy(),
    }
    report = run_round(tiny.state, tiny_plan(transforms=(CLIP,)), [0, 1, 2], tiny.link(), tiny.aggregator())
    assert report.num_updates == 3
    after = {**tiny.state.dense, "columns": tiny.weights}
    moved = length({name: value.astype(np.float64) - before[name] for name, value in after.items()})
    assert 0.1 * 0.01 < moved < 0.01 * (1 + 1e-3)  # what is left is the rounding of the weights themselves
    unclipped = TinyFederation()
    run_round(unclipped.state, tiny_plan(), [0, 1, 2], unclipped.link(), unclipped.aggregator())
    assert state_bytes(tiny) != state_bytes(unclipped)


def test_slices_and_updates_in_half_precision_halve_what_a_round_sends() -> None:
    full, half = TinyFederation(), TinyFederation()
    whole = run_round(full.state, tiny_plan(), [0, 1], full.link(), full.aggregator())
    rules = RoundRules(slice_transforms=(BF16,))
    narrow = run_round(
        half.state, tiny_plan(transforms=(BF16,)), [0, 1], half.link(), half.aggregator(), rules
    )
    assert narrow.num_updates == 2
    assert narrow.bytes_down < 0.53 * whole.bytes_down
    assert narrow.bytes_up < 0.53 * whole.bytes_up
