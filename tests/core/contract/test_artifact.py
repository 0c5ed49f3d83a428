"""The artifact directory proves itself: what it holds is checked before it is used, and says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.artifacts.tiny_artifact import SPEC, make_tiny_artifact

from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import open_backend
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import (
    GOLDEN,
    INITIAL,
    MANIFEST,
    Artifact,
    ArtifactError,
    open_artifact,
    write_artifact,
)
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import IMAGES


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return make_tiny_artifact(tmp_path / "artifact")


def test_an_artifact_reads_back_as_it_was_written(artifact: Artifact) -> None:
    opened = open_artifact(artifact.directory)
    assert opened == artifact
    assert opened.path("nested/notes.txt").read_bytes() == b"any file at all"
    for name, value in initial_parameters(SPEC, 3).items():
        np.testing.assert_array_equal(opened.initial()[name], value)


def test_the_manifest_states_every_input_in_order(artifact: Artifact) -> None:
    document = json.loads((artifact.directory / MANIFEST).read_text())
    assert document["version"] == 2
    names = list(initial_parameters(SPEC, 0))
    entries = {entry["name"]: entry for entry in document["signature"]}
    assert list(entries) == [*names, "columns", "adjust", "images", "labels", "example_weight"]
    assert entries["images"] == {
        "name": "images",
        "role": "feature",
        "shape": ["b", 1, 16, 16],
        "dtype": "uint8",
        "padding": 0.0,
        "positions_in": None,
        "below": None,
    }
    assert entries["labels"]["positions_in"] == "columns"
    assert entries["adjust"]["padding"] == -1e9
    assert entries["columns"]["shape"] == ["rows:columns", 8]
    assert document["bounds"] == {"b": 4, "rows:columns": 64}
    assert artifact.signature.outputs == ("loss", *map(gradient_of, names), "gradient/columns")
    assert (artifact.micro_batch, artifact.max_width) == (4, 64)


def flip_a_byte(directory: Path) -> None:
    data = bytearray((directory / INITIAL).read_bytes())
    data[-1] ^= 1
    (directory / INITIAL).write_bytes(data)


def cut_short(directory: Path) -> None:
    (directory / GOLDEN).write_bytes((directory / GOLDEN).read_bytes()[:-1])


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        document = json.loads((directory / MANIFEST).read_text())
        change(document)
        (directory / MANIFEST).write_text(json.dumps(document))

    return damage


def edit_input(name: str, /, **fields: object) -> Callable[[Path], None]:
    """Fields of the signature's entry for one input."""

    def change(document: dict[str, Any]) -> None:
        (entry,) = (entry for entry in document["signature"] if entry["name"] == name)
        entry.update(fields)

    return edit(change)


def last_first(document: dict[str, Any]) -> None:
    document["signature"].insert(0, document["signature"].pop())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_byte, r"initial\.safetensors was changed"),
        (cut_short, r"golden\.safetensors has \d+ bytes; manifest\.json says \d+"),
        (lambda directory: (directory / GOLDEN).unlink(), r"golden\.safetensors is missing"),
        (lambda directory: (directory / MANIFEST).unlink(), r"is not an artifact: no manifest\.json"),
        (lambda directory: (directory / MANIFEST).write_text("{"), "is not JSON"),
        (lambda directory: (directory / MANIFEST).write_text("[]"), "does not describe a fedss-artifact"),
        (
            edit(lambda document: document.update(version=1)),
            r"has format version 1; this program reads version 2: .*export the artifact again",
        ),
        (
            edit(lambda document: document.update(version=3)),
            r"has format version 3; this program reads version 2: update it",
        ),
        (
            edit(lambda document: document.pop("version")),
            "has format version None; this program reads version 2",
        ),
        (edit(lambda document: document.pop("signature")), r"is damaged: .*has no signature"),
        (edit(lambda document: document.pop("bounds")), r"is damaged: .*has no bounds"),
        (edit(lambda document: document.pop("spec")), r"is damaged: .*has no spec"),
        (
            edit(lambda document: document.update(embedding=[4, 9])),
            r"embedding is \[4, 9\]; expected \[8\], or a number of places before it",
        ),
        (edit(lambda document: document.update(embedding=[2, 2, 8])), r"embedding is \[2, 2, 8\]; expected"),
        (edit(lambda document: document.update(embedding=[])), r"embedding is \[\]; expected \[8\]"),
        (edit(lambda document: document.update(embedding=[0, 8])), "embedding is 0; expected"),
        (edit(lambda document: document.update(embedding=[1 << 40, 8])), "embedding would have the shape"),
        (edit(lambda document: document["bounds"].update(b=0)), "bounds.b is 0"),
        (edit(lambda document: document["bounds"].update({"rows:columns": 0})), "bounds.rows:columns is 0"),
        (
            edit(lambda document: document["bounds"].pop("b")),
            r"bounds are given for \['rows:columns'\]; expected",
        ),
        (
            edit(lambda document: document["bounds"].update({"rows:other": 3})),
            r"bounds are given for .*'rows:other'\]; expected \['b', 'rows:columns'\]",
        ),
        (edit(lambda document: document.update(bounds=[4, 64])), "bounds is a list; expected an object"),
        (edit(lambda document: document.update(signature={})), "signature is an object; expected a list"),
        (edit(lambda document: document.update(signature=[3])), r"signature\[0\] is 3; expected an object"),
        (
            edit(lambda document: document.update(signature=[])),
            "exactly one input with the role example_weight",
        ),
        (
            edit(lambda document: document["signature"].pop()),
            "exactly one input with the role example_weight",
        ),
        (edit(lambda document: document["signature"].pop(0)), "are not the dense inputs of the signature"),
        (edit(last_first), "roles are .*; expected dense, table, side"),
        (edit(lambda document: document["signature"][0].pop("padding")), r"signature\[0\] has no padding"),
        (edit_input(IMAGES, name="columns"), "expected every name once"),
        (edit_input(IMAGES, more=1), "has the unknown field 'more'"),
        (edit_input(IMAGES, name="[red]images"), "without brackets"),
        (edit_input(IMAGES, role="image"), "role is 'image'; expected one of dense"),
        (edit_input(IMAGES, dtype="float16"), "dtype is 'float16'; expected one of float32"),
        (edit_input(IMAGES, shape="wide"), "shape is text; expected a list"),
        (edit_input(IMAGES, shape=["b", -1]), "shape is -1; expected a whole number"),
        (edit_input(IMAGES, shape=["b", 1, 1, 1, 1, 1, 1]), "7 dimensions; at most 6"),
        (edit_input(IMAGES, shape=["batch", 1]), "size is 'batch'; expected a number, 'b' or 'rows:TABLE'"),
        (edit_input(IMAGES, shape=["rows:more"]), "images speaks of a table that is no input"),
        (edit_input(IMAGES, shape=["b", 1 << 40]), "images would have the shape"),
        (edit_input("adjust", padding=None), "padding is None; expected a finite number"),
        (edit_input("labels", positions_in="more"), "labels speaks of a table that is no input"),
        (edit_input("labels", positions_in=3), "positions_in is 3; expected text"),
        (edit_input(IMAGES, below=0), "images: below is 0; expected a whole number from 1"),
        (edit_input(IMAGES, below="many"), "below is text; expected a whole number"),
        (edit_input("labels", below=4), "labels: below is 4; only whole numbers of examples"),
        (edit_input("conv1.weight", shape=[3, 3]), "are not the dense inputs of the signature"),
        (
            edit(lambda document: document.update(files={"../outside": {"size": 1, "sha256": ""}})),
            "leads out of the artifact",
        ),
        (edit(lambda document: document.update(parameters=3)), "parameters is 3; expected a list"),
        (lambda directory: (directory / MANIFEST).write_text("[" * 100_000 + "]" * 100_000), "is not JSON"),
        (lambda directory: (directory / MANIFEST).write_text("9" * 5000), "is not JSON"),
        (
            edit(lambda document: document.update(version="9" * 5000)),
            "has format version 99999999999999999999;",
        ),
        (edit(lambda document: document["bounds"].update(b=1 << 40)), "images would have the shape"),
        (edit(lambda document: document["bounds"].update(b=10**400)), "bounds.b is a number of"),
        (
            edit(lambda document: document["bounds"].update(b=4.0)),
            "bounds.b is 4.0; expected a whole number",
        ),
        (
            edit(lambda document: document["bounds"].update(b=True)),
            "bounds.b is True; expected a whole number",
        ),
        (
            edit(lambda document: document["bounds"].update({"rows:columns": 1 << 31})),
            "columns would have the shape",
        ),
        (edit(lambda document: document.update(operators=[1])), "operators is a list; expected an object"),
        (edit(lambda document: document.update(operators={"a": 3})), "operators.a is 3; expected an object"),
        (edit(lambda document: document.update(operators={"a": {"b": "c"}})), "operators.a.b is text"),
        (edit(lambda document: document.update(operators={"a": {"[/evil]": 1}})), "without brackets"),
        (edit(lambda document: document.update(runtimes=["\x1b[31m"])), "printable characters"),
        (edit(lambda document: document.update(files=3)), "files is 3; expected an object"),
        (edit(lambda document: document.update(files={"a": 3})), "files.a is 3; expected an object"),
        (edit(lambda document: document.update(files={"a" * 5000: {}})), "printable characters"),
        (edit(lambda document: document.update(memory={})), "memory is an object; expected a list"),
        (edit(lambda document: document.update(parity={"a": {"passed": 1}})), "worst_relative_error"),
        (
            edit(lambda document: document["parameters"][0].update(shape=[1 << 40])),
            "would have the shape",
        ),
        (
            edit(lambda document: document["parameters"][0].update(shape="wide")),
            "shape is text; expected a list",
        ),
        (
            edit(lambda document: document["spec"].update(image_shape=[1, 8])),
            "image_shape",
        ),
        (
            edit(lambda document: document["spec"].update(more=1)),
            "spec has the unknown field 'more'",
        ),
        (edit(lambda document: document["spec"].pop("pixel_mean")), "spec has no pixel_mean"),
        (
            edit(lambda document: document["spec"].update(pixel_mean=[0.5, 0.5])),
            "pixel_mean has 2 entries; expected 1",
        ),
        (
            edit(lambda document: document["spec"].update(pixel_mean=["grey"])),
            "pixel_mean is text; expected a finite",
        ),
        (
            edit(lambda document: document["spec"].update(pixel_deviation=[0])),
            "pixel_deviation is .*expected positive",
        ),
        (edit(lambda document: document["spec"].update(pixel_deviation=[])), "pixel_deviation has 0 entries"),
        (edit(lambda document: document["spec"].update(objective=3)), "spec.objective is 3; expected text"),
    ],
)
def test_a_damaged_artifact_is_refused_with_the_reason(
    damage: Callable[[Path], object], message: str, artifact: Artifact
) -> None:
    damage(artifact.directory)
    with pytest.raises(ArtifactError, match=message):
        open_artifact(artifact.directory)


def test_weights_that_do_not_fit_the_parameter_table_are_refused(artifact: Artifact) -> None:
    others = initial_parameters(replace(SPEC, embedding_dim=9), 3)
    wrong = write_artifact(
        artifact.directory, artifact.manifest, {INITIAL: safetensors_file.to_bytes(others, {})}
    )
    with pytest.raises(
        ArtifactError, match=r"embedding\.weight is float32\[9, 512\]; expected float32\[8, 512\]"
    ):
        wrong.initial()


def test_a_runtime_that_was_not_exported_is_named(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match=r"runtime is 'executorch'; .* exported for eager"):
        open_backend(artifact, "executorch")
    with pytest.raises(ArtifactError, match=r"has no step\.pte"):
        artifact.path("step.pte")


def test_reading_an_artifact_and_opening_a_step_process_need_no_torch() -> None:
    program = "import sys, ondevice.contract.artifact, ondevice.tools.step_process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3]).returncode == 0
