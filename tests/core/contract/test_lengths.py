"""Texts of several lengths: which program holds them, what of them is cut, and manifests that know of lengths or do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.tiny_artifact import make_tiny_artifact

from ondevice.contract.artifact import MANIFEST, ArtifactError, open_artifact, rewrite_manifest
from ondevice.contract.artifacts.lengths import Lengths
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, StepSignature

SIGNATURE = StepSignature(
    (
        ArraySpec("tokens", "feature", (EXAMPLES, 6), "int64"),
        ArraySpec("mask", "feature", (EXAMPLES, 6), "uint8", padding=9),
        ArraySpec("numbers", "feature", (EXAMPLES, 6)),
        ArraySpec("example_weight", "example_weight", (EXAMPLES,)),
    )
)
LENGTHS = Lengths(("tokens", "mask"), (2, 4, 6))


def arrays(*texts: list[int]) -> dict[str, np.ndarray]:
    tokens = np.array([text + [0] * (6 - len(text)) for text in texts], np.int64)
    mask = np.full(tokens.shape, 9, np.uint8)
    return {"tokens": tokens, "mask": mask, "numbers": np.ones(tokens.shape, np.float32)}


def test_a_text_ends_where_nothing_but_padding_follows() -> None:
    given = arrays([], [5], [0, 5], [5, 0, 0, 0, 0, 5])
    assert LENGTHS.places(SIGNATURE, given).tolist() == [0, 1, 2, 6]
    given["mask"][0, 3] = 1
    assert LENGTHS.places(SIGNATURE, given).tolist() == [4, 1, 2, 6]  # any of the features


def test_the_shortest_that_holds_it() -> None:
    assert [LENGTHS.holding(places) for places in range(7)] == [2, 2, 2, 4, 4, 6, 6]


def test_texts_are_cut_and_nothing_else() -> None:
    cut = LENGTHS.cut(arrays([5, 6], [7]), 2)
    assert cut["tokens"].tolist() == [[5, 6], [7, 0]]
    assert [cut[name].shape for name in ("mask", "numbers")] == [(2, 2), (2, 6)]
    shapes = {spec.name: spec.shape for spec in LENGTHS.shortened(SIGNATURE, 2)}
    assert shapes["tokens"] == shapes["mask"] == (EXAMPLES, 2)
    assert shapes["numbers"] == (EXAMPLES, 6)


@pytest.mark.parametrize("sizes", [(), (0, 6), (4, 4), (6, 4)])
def test_sizes_that_do_not_rise_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected numbers from 1, each larger than the one before"):
        Lengths(("tokens",), sizes)


def test_lengths_that_the_signature_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lengths are 2, 5 of tokens; the step takes int64 \[b, 6\]"):
        Lengths(("tokens",), (2, 5)).check(SIGNATURE)
    with pytest.raises(ValueError, match="of words; the step takes no such feature"):
        Lengths(("words",), (2, 6)).check(SIGNATURE)


def test_a_manifest_of_before_has_one_length(tmp_path: Path) -> None:
    artifact = make_tiny_artifact(tmp_path / "artifact")
    path = artifact.directory / MANIFEST
    document = json.loads(path.read_text())
    assert document.pop("lengths") is None
    path.write_text(json.dumps(document))
    assert open_artifact(artifact.directory).manifest.lengths is None


def test_a_manifest_with_lengths_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    artifact = make_tiny_artifact(tmp_path / "artifact")
    rewrite_manifest(artifact.directory, replace(artifact.manifest, lengths=Lengths(("images",), (1, 9))))
    with pytest.raises(ArtifactError, match="lengths are 1, 9 of images"):
        open_artifact(artifact.directory)
