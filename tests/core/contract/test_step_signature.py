"""A step is named arrays in and out: what does not fit is refused by name, padding changes nothing, documents go round."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.pieces import check_features, embed_in_pieces
from ondevice.contract.step_signature import (
    EXAMPLES,
    MAX_RANK,
    Arrays,
    ArraySpec,
    StepSignature,
    check_arrays,
    gradient_of,
    padded,
    rows_of,
    signature_from_document,
    symbol_values,
)
from ondevice.contract.vocabulary import EXCLUDED, StepSpec

SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))
WEIGHTS = initial_parameters(SPEC, 0)
BACKEND = EagerBackend(SPEC, WEIGHTS)
SIGNATURE = BACKEND.signature
ROWS = rows_of("columns")
BOUNDS = {EXAMPLES: 4, ROWS: 7}

WEIGHT = ArraySpec("example_weight", "example_weight", (EXAMPLES,))
TWO_TABLES = StepSignature(
    (
        ArraySpec("mix.weight", "dense", (3, 4)),
        ArraySpec("scale", "dense", ()),
        ArraySpec("words", "table", ("rows:words", 4)),
        ArraySpec("columns", "table", ("rows:columns", 4)),
        ArraySpec("adjust", "side", ("rows:columns",), padding=float(EXCLUDED)),
        ArraySpec("tokens", "feature", (EXAMPLES, 6), "int64", positions_in="words"),
        ArraySpec("pixels", "feature", (EXAMPLES, 2), "uint8"),
        ArraySpec("labels", "label", (EXAMPLES,), "int64", positions_in="columns"),
        WEIGHT,
    )
)


def a_step(examples: int = 3, width: int = 5) -> dict[str, npt.NDArray[Any]]:
    random = np.random.default_rng(0)
    return {
        **WEIGHTS,
        "columns": random.standard_normal((width, SPEC.column_dim), np.float32),
        "adjust": random.uniform(0, 2, width).astype(np.float32),
        "images": random.integers(0, 256, (examples, 1, 16, 16), np.uint8),
        "labels": random.integers(0, width, examples),
        "example_weight": np.full(examples, np.float32(1 / examples)),
    }


def padded_step(arrays: Arrays, bounds: dict[str, int]) -> Arrays:
    return {spec.name: padded(spec, arrays[spec.name], bounds) for spec in SIGNATURE}


# ------------------------------------------------------------------ what a signature is


def test_the_signature_of_the_step_is_its_contract_in_order() -> None:
    assert [spec.name for spec in SIGNATURE.data] == [
        "columns",
        "adjust",
        "images",
        "labels",
        "example_weight",
    ]
    assert [spec.name for spec in SIGNATURE] == [*WEIGHTS, *(spec.name for spec in SIGNATURE.data)]
    assert SIGNATURE.dense_shapes == {name: value.shape for name, value in WEIGHTS.items()}
    assert SIGNATURE.table_dims == {"columns": 8}
    assert SIGNATURE.outputs == ("loss", *(f"gradient/{name}" for name in [*WEIGHTS, "columns"]))
    assert SIGNATURE["images"].describe() == "uint8 [b, 1, 16, 16]"
    assert list(BACKEND.step(a_step())) == list(SIGNATURE.outputs)


def test_tables_have_symbols_of_their_own() -> None:
    assert TWO_TABLES.table_dims == {"words": 4, "columns": 4}
    assert TWO_TABLES.trained == ("mix.weight", "scale", "words", "columns")
    assert [spec.name for spec in TWO_TABLES.features] == ["tokens", "pixels"]
    assert TWO_TABLES.weight == WEIGHT
    assert TWO_TABLES["tokens"].symbols == ("b",)
    assert TWO_TABLES["words"].sizes({"b": 2, "rows:words": 9, "rows:columns": 3}) == (9, 4)


@pytest.mark.parametrize("signature", [SIGNATURE, TWO_TABLES])
def test_a_document_goes_round_unchanged(signature: StepSignature) -> None:
    assert signature_from_document(json.loads(json.dumps(signature.to_document()))) == signature


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "gradient"}, "images: role is 'gradient'; expected one of dense, table, side"),
        ({"dtype": "float16"}, "images: dtype is 'float16'; expected one of float32, int64, uint8"),
        ({"shape": [1] * (MAX_RANK + 1)}, "images: 7 dimensions; at most 6 are possible"),
        ({"shape": ["b", -1]}, "images: size is -1"),
        ({"shape": ["b", True]}, "images: size is True"),
        ({"shape": ["batch", 3]}, "images: size is 'batch'; expected a number, 'b' or 'rows:TABLE'"),
        ({"shape": ["rows:words"]}, "images speaks of a table that is no input: uint8 .rows:words."),
        ({"positions_in": "words"}, "images speaks of a table that is no input"),
        ({"name": "labels"}, "expected every name once"),
        ({"role": "label"}, None),  # as good as a feature, where no feature follows
        ({"role": "dense"}, "roles are .*; expected dense, table, side"),
        ({"role": "example_weight"}, "roles are .*; expected dense"),
    ],
)
def test_a_document_that_is_no_signature_is_refused_by_name(
    change: dict[str, Any], message: str | None
) -> None:
    document = SIGNATURE.to_document()
    (images,) = (entry for entry in document if entry["name"] == "images")
    images.update(change)
    if message is None:
        assert signature_from_document(document)["images"].role == "label"
        return
    with pytest.raises(ValueError, match=message):
        signature_from_document(document)


@pytest.mark.parametrize("size", [3.5, None, [1]])
def test_a_size_that_is_no_whole_number_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"images: size is .*; expected a number, 'b' or 'rows:TABLE'"):
        ArraySpec("images", "feature", (EXAMPLES, size))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("embedding.bias", {"shape": ["b"]}, "a dense input is float32 of fixed sizes"),
        ("embedding.bias", {"dtype": "int64"}, "a dense input is float32 of fixed sizes"),
        ("columns", {"shape": ["rows:columns"]}, r"a table input is float32 \[rows:columns, d\]"),
        ("columns", {"shape": [5, 8]}, r"columns is float32 \[5, 8\]; a table input"),
        ("columns", {"dtype": "int64"}, r"columns is int64 .*; a table input"),
        ("adjust", {"shape": ["b"]}, "a side input has an entry per row of a table"),
        ("adjust", {"shape": []}, "a side input has an entry per row of a table"),
        ("images", {"shape": [1, 16, 16]}, r"a feature input is \[b, ...\]"),
        ("labels", {"shape": []}, r"a label input is \[b, ...\]"),
        ("labels", {"dtype": "uint8"}, "labels holds positions in columns, but is uint8; expected int64"),
        ("example_weight", {"shape": ["b", 2]}, r"an example_weight input is float32 \[b\]"),
        ("example_weight", {"dtype": "uint8"}, r"an example_weight input is float32 \[b\]"),
        ("adjust", {"padding": "none"}, "adjust: padding is 'none'; expected a finite number"),
        ("adjust", {"padding": float("nan")}, "adjust: padding is nan"),
        ("adjust", {"padding": True}, "adjust: padding is True"),
        ("adjust", {"name": 3}, "name is 3; expected text"),
        ("adjust", {"name": ""}, "name is ''; expected text"),
    ],
)
def test_an_input_that_its_role_does_not_allow_is_refused_by_name(
    name: str, change: dict[str, Any], message: str
) -> None:
    """What comes after the check relies on it: a table has rows and a dimension, a dense parameter has a shape."""
    document = SIGNATURE.to_document()
    (entry,) = (entry for entry in document if entry["name"] == name)
    entry.update(change)
    with pytest.raises(ValueError, match=message):
        signature_from_document(document)


def test_a_step_weighs_its_examples_exactly_once() -> None:
    for weights in ((), (WEIGHT, ArraySpec("other", "example_weight", (EXAMPLES,)))):
        with pytest.raises(ValueError, match="exactly one input with the role example_weight"):
            StepSignature((*SIGNATURE.inputs[:-1], *weights))


# ------------------------------------------------------------------ what fits


def test_symbols_are_what_the_arrays_say() -> None:
    assert symbol_values(SIGNATURE, a_step(3, 5)) == {EXAMPLES: 3, ROWS: 5}


def test_a_step_at_the_limits_is_accepted() -> None:
    assert check_arrays(SIGNATURE, a_step(4, 7), BOUNDS) == BOUNDS
    assert check_arrays(SIGNATURE, a_step(1, 1), BOUNDS) == {EXAMPLES: 1, ROWS: 1}
    assert check_arrays(SIGNATURE, a_step(9, 30), {}) == {EXAMPLES: 9, ROWS: 30}  # eager has no bounds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"images": np.zeros((3, 1, 32, 32), np.uint8)},
            r"images is uint8 \[3, 1, 32, 32\]; the step takes uint8 \[b, 1, 16, 16\]",
        ),
        ({"images": np.zeros((3, 1, 16, 16))}, r"images is float64 \[3, 1, 16, 16\]"),
        ({"images": np.zeros((3, 16, 16), np.uint8)}, r"images is uint8 \[3, 16, 16\]"),
        (
            {"labels": np.array([0, 5, 0])},
            "labels reach from 0 to 5; expected positions among the 5 rows of col",
        ),
        ({"labels": np.array([0, -1, 0])}, "labels reach from -1"),
        ({"labels": np.zeros(2, np.int64)}, r"labels is int64 \[2\]; the step takes int64 \[b\] with b = 3"),
        ({"labels": np.zeros(3, np.int32)}, r"labels is int32 \[3\]"),
        ({"example_weight": np.zeros(3)}, "example_weight is float64"),
        ({"example_weight": np.zeros((3, 1), np.float32)}, r"example_weight is float32 \[3, 1\]"),
        (
            {"columns": np.zeros((5, 7), np.float32)},
            r"columns is float32 \[5, 7\]; .* float32 \[rows:columns, 8\]",
        ),
        ({"adjust": np.zeros(4, np.float32)}, r"adjust is float32 \[4\]; .* with rows:columns = 5"),
        ({"embedding.bias": np.zeros(9, np.float32)}, r"embedding.bias is float32 \[9\]; .* float32 \[8\]"),
        ({"colour": np.zeros(3, np.float32)}, "colour: the step has no such input"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arrays(SIGNATURE, {**a_step(), **changes}, BOUNDS)


@pytest.mark.parametrize(
    "name", ["embedding.bias", "columns", "adjust", "images", "labels", "example_weight"]
)
def test_a_missing_array_is_named(name: str) -> None:
    arrays = a_step()
    del arrays[name]
    with pytest.raises(ValueError, match=f"{name} is missing; the step takes"):
        check_arrays(SIGNATURE, arrays, BOUNDS)


@pytest.mark.parametrize(
    ("examples", "width", "message"),
    [
        (5, 5, "5 examples; the step takes 1 to 4: split the batch"),
        (0, 5, "0 examples; the step takes 1 to 4"),
        (3, 8, "8 rows of columns; the step takes 1 to 7: export with room for 8 or more"),
    ],
)
def test_more_or_fewer_than_was_exported_for_is_refused(examples: int, width: int, message: str) -> None:
    arrays = a_step(max(examples, 1), width)
    for name in ("images", "labels", "example_weight"):
        arrays[name] = arrays[name][:examples]
    with pytest.raises(ValueError, match=message):
        check_arrays(SIGNATURE, arrays, BOUNDS)


def test_positions_are_checked_in_every_array_that_holds_some() -> None:
    arrays = {
        spec.name: np.zeros(spec.sizes({"b": 2, "rows:words": 3, "rows:columns": 5}), spec.dtype)
        for spec in TWO_TABLES
    }
    assert check_arrays(TWO_TABLES, arrays, {}) == {"rows:words": 3, "rows:columns": 5, "b": 2}
    arrays["tokens"][1, 4] = 3
    with pytest.raises(
        ValueError, match="tokens reach from 0 to 3; expected positions among the 3 rows of words"
    ):
        check_arrays(TWO_TABLES, arrays, {})


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_will_do_and_no_input_is_changed() -> None:
    """What came over the wire, or lies in a mapped file, is read-only."""
    arrays = a_step()
    before = {name: array.copy() for name, array in arrays.items()}
    writable = BACKEND.step(arrays)
    for array in arrays.values():
        array.flags.writeable = False
    try:
        read_only = BACKEND.step(arrays)
        embeddings = BACKEND.embed({**WEIGHTS, "images": arrays["images"]})
    finally:
        for array in WEIGHTS.values():
            array.flags.writeable = True
    assert embeddings.shape == (3, 8)
    for name, output in writable.items():
        assert np.array_equal(output, read_only[name])
    for name, array in arrays.items():
        assert np.array_equal(array, before[name])


# ------------------------------------------------------------------ padding


def test_padded_examples_and_rows_change_nothing() -> None:
    arrays = a_step()
    plain, full = BACKEND.step(arrays), BACKEND.step(padded_step(arrays, {EXAMPLES: 4, ROWS: 9}))
    assert float(full["loss"]) == pytest.approx(float(plain["loss"]), rel=1e-6)
    for name in WEIGHTS:  # sums in another order
        np.testing.assert_allclose(full[gradient_of(name)], plain[gradient_of(name)], atol=1e-5)
    columns = gradient_of("columns")
    np.testing.assert_allclose(full[columns][:5], plain[columns], atol=1e-5)
    assert not full[columns][5:].any()


def test_padding_is_the_specs_own_and_only_where_a_bound_is_named() -> None:
    arrays = a_step(3, 5)
    full = padded_step(arrays, BOUNDS)
    assert check_arrays(SIGNATURE, full, BOUNDS) == BOUNDS
    assert (full["adjust"][5:] == EXCLUDED).all()
    assert not full["example_weight"][3:].any()
    for name, array in arrays.items():
        assert np.array_equal(full[name][tuple(slice(size) for size in array.shape)], array)
        assert full[name].dtype == array.dtype
    assert padded_step(arrays, {EXAMPLES: 4})["columns"].shape == (5, 8)


def test_what_fits_is_not_copied() -> None:
    arrays = a_step()
    same = padded_step(arrays, {EXAMPLES: 3, ROWS: 5})
    assert all(same[name] is array for name, array in arrays.items())


# ------------------------------------------------------------------ embedding


@pytest.mark.parametrize("examples", [1, 4, 5, 8, 11])
def test_embedding_in_pieces_is_embedding_at_once(examples: int) -> None:
    images = a_step(examples)["images"]
    seen = []

    def run(features: Arrays) -> npt.NDArray[np.float32]:
        seen.append(len(features["images"]))
        return BACKEND.embed({**WEIGHTS, **features})

    pieces = embed_in_pieces(SIGNATURE, {"images": images}, 4, run)
    assert set(seen) == {4}
    np.testing.assert_allclose(pieces, BACKEND.embed({**WEIGHTS, "images": images}), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((3, 1, 16, 16), np.float32)}, "images is float32"),
        ({"images": np.zeros((3, 1, 16), np.uint8)}, r"images is uint8 \[3, 1, 16\]; expected uint8"),
        ({"images": np.zeros((3, 2, 16, 16), np.uint8)}, "images is uint8"),
        ({"embedding.bias": np.zeros(9, np.float32)}, r"embedding.bias is float32 \[9\]"),
    ],
)
def test_features_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    arrays = {**WEIGHTS, "images": a_step()["images"]}
    check_features(SIGNATURE, arrays)
    with pytest.raises(ValueError, match=message):
        check_features(SIGNATURE, {**arrays, **changes})
    with pytest.raises(ValueError, match="images is missing"):
        check_features(SIGNATURE, WEIGHTS)
