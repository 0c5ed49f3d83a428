"""Batches by signature: the native client gathers the bytes that Python gathers, and refuses what is not as described."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.native.programs import ask_probe, run_probe

from ondevice.client.local_training import micro_batches
from ondevice.contract import safetensors_file
from ondevice.contract.safetensors_file import Tensor
from ondevice.contract.step_signature import (
    ArraySpec,
    StepSignature,
    padded,
    rows_of,
    signature_from_document,
)
from ondevice.contract.vocabulary import ExampleSet, RowSample

pytestmark = pytest.mark.slow  # compiles the native client

BOUNDS = {"b": 4, rows_of("columns"): 64, rows_of("tokens"): 32}
SIGNATURE = StepSignature(
    (
        ArraySpec("stem.weight", "dense", (2, 1, 3, 3)),
        ArraySpec("stem.bias", "dense", (2,)),
        ArraySpec("columns", "table", (rows_of("columns"), 8)),
        ArraySpec("tokens", "table", (rows_of("tokens"), 3)),
        ArraySpec("adjust", "side", (rows_of("columns"),), padding=-1e9),
        ArraySpec("images", "feature", ("b", 1, 3, 5), "uint8", padding=7),
        ArraySpec("words", "feature", ("b", 2, 3), "int64", positions_in="tokens"),
        ArraySpec("numbers", "feature", ("b", 2, 1, 1, 1, 2), padding=-0.5),
        ArraySpec("hour", "feature", ("b",), "int64", padding=-3),
        ArraySpec("day", "feature", ("b", 2), "int64", padding=1, below=7),
        ArraySpec("labels", "label", ("b",), "int64", positions_in="columns"),
        ArraySpec("example_weight", "example_weight", ("b",)),
    )
)
IDS = {"columns": np.array([1, 4, 9, 30]), "tokens": np.array([0, 5, 6, 7, 11, 20])}
BATCH = [8, 0, 3, 3, 7, 1]
"""Of two steps, the second of them padded; one example comes twice."""


def manifest_document() -> dict[str, Any]:
    """As `ondevice.contract.artifact` writes it, but for what people alone read."""
    return {
        "format": "fedss-artifact",
        "version": 2,
        "spec": {"embedding_dim": 8},
        "signature": SIGNATURE.to_document(),
        "bounds": dict(BOUNDS),
        "files": {},
    }


def write_manifest(directory: Path, document: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


def example_set() -> ExampleSet:
    source = np.random.default_rng(2)
    features = {
        "images": source.integers(0, 256, (9, 1, 3, 5), np.uint8),
        "words": source.choice(IDS["tokens"], (9, 2, 3)),
        "numbers": source.standard_normal((9, 2, 1, 1, 1, 2), np.float32),
        "hour": source.integers(-5, 5, 9),
        "day": source.integers(0, 7, (9, 2)),
        "of no step": source.standard_normal((9, 2), np.float32),
    }
    return ExampleSet(features, source.choice(IDS["columns"], 9))


def write_data(path: Path, changes: dict[str, Tensor | None] | None = None) -> Path:
    """The images first: the numbers after them are not aligned."""
    examples = example_set()
    tensors: dict[str, Tensor | None] = {
        f"feature/{name}": value for name, value in examples.features.items()
    }
    tensors |= {"labels": examples.labels, **(changes or {})}
    safetensors_file.write_file(
        path, {name: value for name, value in tensors.items() if value is not None}, {}
    )
    return path


def gather_words(folder: Path, data: Path, first: int) -> list[str | Path]:
    ids = json.dumps({table: rows.tolist() for table, rows in IDS.items()})
    return ["gather", folder, data, ids, str(first), *map(str, BATCH)]


@pytest.mark.parametrize("first", [0, 4])
def test_a_batch_is_gathered_byte_for_byte_as_in_python(first: int, tmp_path: Path) -> None:
    folder = write_manifest(tmp_path / "artifact", manifest_document())
    answer = run_probe(*gather_words(folder, write_data(tmp_path / "data"), first))
    found = {name: bytes.fromhex(data) for name, data in (line.split() for line in answer.splitlines())}
    weights = np.full(len(BATCH), np.float32(1 / len(BATCH)))
    pieces = list(
        micro_batches(SIGNATURE, example_set(), np.array(BATCH), weights, RowSample(IDS, {}), BOUNDS["b"])
    )
    expected = {
        name: padded(SIGNATURE[name], values, BOUNDS).tobytes()
        for name, values in pieces[first // BOUNDS["b"]].items()
    }
    assert found == expected


BAD_EXAMPLES: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "a feature is missing": (
        {"feature/images": None},
        "no feature/images; the step takes uint8 [b, 1, 3, 5]",
    ),
    "another shape": (
        {"feature/images": np.zeros((9, 1, 5, 3), np.uint8)},
        "feature/images is U8 [9, 1, 5, 3]; the step takes uint8 [b, 1, 3, 5]",
    ),
    "another rank": ({"feature/hour": np.zeros((9, 1), np.int64)}, "feature/hour is I64 [9, 1]"),
    "another type": (
        {"feature/hour": np.zeros(9, np.float32)},
        "feature/hour is F32 [9]; the step takes int64 [b]",
    ),
    "a type that no step takes": (
        {"feature/hour": np.zeros(9, np.float16)},
        "expected U8, I64 or F32 [9, ...]",
    ),
    "fewer examples than labels": ({"feature/hour": np.zeros(8, np.int64)}, "an entry per label"),
    "a word that was not asked for": (
        {"feature/words": np.full((9, 2, 3), 8)},
        "words holds 8, a row of tokens that was not asked for",
    ),
    "a number beyond its range": (
        {"feature/day": np.full((9, 2), 7)},
        "day holds 7; expected 0 to 6: make the data with the vocabulary",
    ),
    "a number below its range": ({"feature/day": np.full((9, 2), -1)}, "day holds -1; expected 0 to 6"),
    "a label that was not asked for": ({"labels": np.full(9, 31)}, "labels holds 31, a row of columns"),
    "a negative label": ({"labels": np.full(9, -1)}, "a label is negative"),
    "labels that are no numbers": ({"labels": np.zeros(9, np.uint8)}, "labels are U8 [9]; expected I64 [N]"),
    "no labels": ({"labels": None}, "expected labels"),
    "a stray tensor": ({"images": np.zeros(9, np.uint8)}, "unknown tensor images"),
}


@pytest.mark.parametrize("what", BAD_EXAMPLES)
def test_examples_that_the_step_cannot_take_are_refused_by_name(what: str, tmp_path: Path) -> None:
    changes, words = BAD_EXAMPLES[what]
    folder = write_manifest(tmp_path / "artifact", manifest_document())
    done = ask_probe(*gather_words(folder, write_data(tmp_path / "data", changes), 0))
    assert done.returncode == 3
    assert words in done.stderr.decode()


def edited(name: str, /, **fields: object) -> Callable[[dict[str, Any]], object]:
    """One input of the signature changed."""
    return lambda manifest: next(spec for spec in manifest["signature"] if spec["name"] == name).update(
        fields
    )


# What neither language takes as a signature.
BAD_SIGNATURES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a role that nothing has": (edited("hour", role="clock"), "role is"),
    "a type that nothing has": (edited("hour", dtype="int8"), "dtype is"),
    "a size below 0": (edited("stem.bias", shape=[-1]), "size is -1"),
    "half a size": (edited("stem.bias", shape=[0.5]), "size is 0.5"),
    "a size in words": (edited("stem.bias", shape=["wide"]), "size is"),
    "true for a size": (edited("stem.bias", shape=[True]), "size is true"),
    "seven dimensions": (edited("stem.bias", shape=[1] * 7), "at most 6"),
    "a field of tomorrow": (edited("hour", unit="h"), "unknown field unit"),
    "the same name twice": (edited("hour", name="images"), "every name once"),
    "a table that is no input": (edited("words", positions_in="phrases"), "a table that is no input"),
    "rows of a table that is no input": (edited("adjust", shape=["rows:x"]), "a table that is no input"),
    "no value at all": (edited("day", below=0), "below is 0; expected a whole number from 1"),
    "half a range": (edited("day", below=6.5), "below is 6.5"),
    "a range in words": (edited("day", below="week"), "below is"),
    "a range of fractions": (edited("numbers", below=3), "only whole numbers of examples"),
    "a range of positions": (edited("words", below=3), "only whole numbers of examples"),
    "padding beyond the range": (edited("day", padding=7), "padding of their range"),
    "another order": (lambda manifest: manifest["signature"].reverse(), "comes too late"),
    "no weights": (
        lambda manifest: manifest["signature"].pop(),
        "exactly one input with the role example_weight",
    ),
    "no list": (lambda manifest: manifest.update(signature=7), "not a list"),
    "no name": (lambda manifest: manifest["signature"][0].pop("name"), "damaged"),
}

# What numpy could still compute with, and this client could not.
BAD_MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "the version before": (
        lambda manifest: manifest.update(version=1),
        "has format version 1; this client reads version 2: export it again",
    ),
    "a version to come": (lambda manifest: manifest.update(version=3), "push a new bundle"),
    "a version in words": (lambda manifest: manifest.update(version="two"), "not a whole number"),
    "another format": (lambda manifest: manifest.update(format=[1]), "does not describe a fedss-artifact"),
    "labels of bytes": (
        edited("labels", dtype="uint8", positions_in=None),
        "which no input of its role can be",
    ),
    "a table of one dimension": (
        edited("columns", shape=["rows:columns"]),
        "which no input of its role can be",
    ),
    "a dense parameter per example": (edited("stem.bias", shape=["b"]), "which no input of its role can be"),
    "a feature per row": (edited("hour", shape=["rows:columns"]), "which no input of its role can be"),
    "padding that a byte cannot hold": (edited("images", padding=-1), "which no input of its role can be"),
    "padding in words": (edited("images", padding="none"), "padding is not a number"),
    "no bound for a table": (
        lambda manifest: manifest["bounds"].pop("rows:tokens"),
        "bounds have no rows:tokens",
    ),
    "no micro-batch": (lambda manifest: manifest["bounds"].pop("b"), "bounds have no b"),
    "a micro-batch of nothing": (lambda manifest: manifest["bounds"].update(b=0), "is 0, or too large"),
    "a micro-batch beyond all numbers": (
        lambda manifest: manifest["bounds"].update(b=5e22),
        "b is not a whole number",
    ),
    "a micro-batch beyond all memory": (
        lambda manifest: manifest["bounds"].update(b=1 << 60),
        "too large for this client",
    ),
    "rows in words": (
        lambda manifest: manifest["bounds"].update({"rows:columns": "many"}),
        "not a whole number",
    ),
    "rows that overflow": (
        edited("columns", shape=["rows:columns", (1 << 63) - 1]),
        "too large for this client",
    ),
    "a file of negative size": (
        lambda manifest: manifest.update(files={"a": {"size": -1, "sha256": ""}}),
        "size is not a whole number",
    ),
    "a bound of nothing": (lambda manifest: manifest["bounds"].update(z=1), "bounds have z"),
    "embeddings of another size": (
        lambda manifest: manifest.update(embedding=[4, 9]),
        "expected [8], or a number of places before it",
    ),
    "embeddings of three dimensions": (
        lambda manifest: manifest.update(embedding=[2, 2, 8]),
        "expected [8], or a number of places before it",
    ),
    "an embedding that is no list": (
        lambda manifest: manifest.update(embedding=8),
        "embedding is not a list",
    ),
    "places in words": (
        lambda manifest: manifest.update(embedding=["many", 8]),
        "embedding has a size that is no whole number",
    ),
    "places beyond all memory": (
        lambda manifest: manifest.update(embedding=[1 << 60, 8]),
        "too large for this client",
    ),
    "no bounds": (lambda manifest: manifest.pop("bounds"), "damaged"),
    "no signature": (lambda manifest: manifest.pop("signature"), "damaged"),
    "no files": (lambda manifest: manifest.pop("files"), "damaged"),
}


@pytest.mark.parametrize("what", [*BAD_SIGNATURES, *BAD_MANIFESTS])
def test_a_manifest_that_is_none_is_refused_by_name(what: str, tmp_path: Path) -> None:
    edit, words = {**BAD_SIGNATURES, **BAD_MANIFESTS}[what]
    document = manifest_document()
    edit(document)
    folder = write_manifest(tmp_path / "artifact", document)
    done = ask_probe(*gather_words(folder, write_data(tmp_path / "data"), 0))
    assert done.returncode == 3, done.stderr
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("what", [name for name in BAD_SIGNATURES if name != "half a size"])
def test_python_refuses_the_same_signatures(what: str) -> None:
    document = manifest_document()
    BAD_SIGNATURES[what][0](document)
    with pytest.raises((ValueError, TypeError, KeyError)):
        signature_from_document(document["signature"])


def test_a_manifest_nested_without_end_is_refused(tmp_path: Path) -> None:
    folder = write_manifest(tmp_path / "artifact", {})
    (folder / "manifest.json").write_text('{"a":[' + "[" * 170_000 + "]" * 170_000 + ',5],"b":1}')
    done = ask_probe(*gather_words(folder, write_data(tmp_path / "data"), 0))
    assert done.returncode == 3
    assert b"nested deeper than 16" in done.stderr
