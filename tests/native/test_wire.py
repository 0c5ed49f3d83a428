"""The native client's messages and draws against Python's: the same bytes, the same ids, the same refusals."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.messages.golden_messages import (
    ENVELOPE,
    EXPECTED,
    EXPECTED_FILE,
    GOLDEN,
    IDS,
    PRECISIONS,
    SEED,
    expectation,
    messages,
    model_slice,
    mutated,
    packed_update,
    rounded,
    update_of,
)
from helpers.native.programs import ask_probe, judged, run_probe, sanitized_program

from ondevice.client.transforms import TransformView, transformed
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import ClientUpdate, ModelSlice
from ondevice.contract.wire import (
    Expected,
    WireError,
    request_to_bytes,
    slice_from_bytes,
    slice_to_bytes,
    update_to_bytes,
    weights_of,
)

pytestmark = pytest.mark.slow  # compiles the native client


@pytest.mark.parametrize("name", sorted(messages()))
def test_the_frozen_messages_are_what_python_writes_today(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == messages()[name]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_native_client_writes_the_frozen_request_and_update(precision: str, tmp_path: Path) -> None:
    slice_file = GOLDEN / f"slice-{precision}.safetensors"
    transforms = json.dumps([{"name": "precision", "format": precision}])
    run_probe("answer", EXPECTED_FILE, slice_file, transforms, tmp_path / "request", tmp_path / "update")
    assert (tmp_path / "request").read_bytes() == (GOLDEN / "request.safetensors").read_bytes()
    assert (tmp_path / "update").read_bytes() == (GOLDEN / f"update-{precision}.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["request", "update"]


@pytest.mark.parametrize("norm", [0.25, 2.0, 1e9])
def test_an_update_is_clipped_to_the_same_bytes(norm: float, tmp_path: Path) -> None:
    choices = [Choice("clip", {"norm": norm}), Choice("precision", {"format": "fp16"})]
    transforms = json.dumps([choice.to_document() for choice in choices])
    slice_file = GOLDEN / "slice-fp32.safetensors"
    run_probe("answer", EXPECTED_FILE, slice_file, transforms, tmp_path / "request", tmp_path / "update")
    update = update_of(model_slice(), "fp32")
    expected = update_to_bytes(ENVELOPE, update, transformed(weights_of(update), choices))
    assert (tmp_path / "update").read_bytes() == expected


@pytest.mark.parametrize("seed", [0, SEED, 2**64 - 1])
def test_an_update_is_rounded_to_the_same_int8(seed: int, tmp_path: Path) -> None:
    """Clipped before, so that there are rows of all kinds of lengths."""
    for choices in ([Choice("int8")], [Choice("clip", {"norm": 0.3}), Choice("int8")]):
        transforms = json.dumps([choice.to_document() for choice in choices])
        files = [tmp_path / name for name in ("request", "update")]
        run_probe("answer", EXPECTED_FILE, GOLDEN / "slice-fp32.safetensors", transforms, *files, str(seed))
        assert files[1].read_bytes() == packed_update(choices, seed)
    assert packed_update([Choice("int8")]) == (GOLDEN / "update-int8.safetensors").read_bytes()


def test_a_large_update_of_all_scales_is_rounded_to_the_same_int8(tmp_path: Path) -> None:
    """Subnormal numbers, rows of zeros, numbers near the largest: 5 rows of 4,000 entries each, 40 orders apart."""
    rng = np.random.default_rng(3)
    scales = np.array([[1e-44], [1e-30], [0], [1], [1e34]], np.float32)
    given = ModelSlice({"wide": scales * rng.standard_normal((5, 4000), np.float32)}, {})
    expected = Expected({"wide": (5, 4000)}, {}, {})
    (tmp_path / "expected").write_bytes(expectation({}, expected))
    (tmp_path / "slice").write_bytes(slice_to_bytes(ENVELOPE, given))
    files = [tmp_path / name for name in ("expected", "slice", "request", "update")]
    run_probe("answer", files[0], files[1], '[{"name": "int8"}]', *files[2:], str(SEED))
    update = ClientUpdate(given.dense, {}, 11, 0.5)
    view = TransformView(ENVELOPE.round_index, SEED)
    weights = transformed(weights_of(update), [Choice("int8")], view)
    assert files[3].read_bytes() == update_to_bytes(ENVELOPE, update, weights)


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ('[{"name": "int8"}, {"name": "precision", "format": "bf16"}]', "expected precision to be the last"),
        ('[{"name": "precision", "format": "bf16"}, {"name": "int8"}]', "expected int8 to be the last"),
        (
            '[{"name": "int8"}, {"name": "clip", "norm": 1}]',
            "expected clip to come before precision and int8",
        ),
        ('[{"name": "int8", "bits": 4}]', "transform 'int8': unknown field bits; this client is older"),
        (
            '[{"name": "top_k", "fraction": 0.1}]',
            "there is no transform 'top_k' in this client, only precision",
        ),
    ],
)
def test_transforms_that_the_native_client_cannot_follow_are_refused_by_name(
    transforms: str, words: str, tmp_path: Path
) -> None:
    slice_file = GOLDEN / "slice-fp32.safetensors"
    done = ask_probe(
        "answer", EXPECTED_FILE, slice_file, transforms, tmp_path / "request", tmp_path / "update"
    )
    assert done.returncode == 3
    assert words in done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_a_model_without_tables_has_messages_too(tmp_path: Path) -> None:
    expected = Expected(EXPECTED.dense, {}, {})
    given = ModelSlice(model_slice().dense, {})
    (tmp_path / "expected").write_bytes(expectation({}, expected))
    (tmp_path / "slice").write_bytes(slice_to_bytes(ENVELOPE, given))
    files = [tmp_path / name for name in ("expected", "slice", "request", "update")]
    run_probe("answer", files[0], files[1], "[]", *files[2:])
    assert files[2].read_bytes() == request_to_bytes(ENVELOPE, {})
    assert files[3].read_bytes() == update_to_bytes(ENVELOPE, ClientUpdate(given.dense, {}, 11, 0.5))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_python_reads_the_frozen_slice(precision: str) -> None:
    data = (GOLDEN / f"slice-{precision}.safetensors").read_bytes()
    received = slice_from_bytes(data, ENVELOPE, IDS, EXPECTED)
    for table, rows in model_slice().tables.items():
        np.testing.assert_array_equal(received.tables[table].values, rounded(rows.values, precision))
    np.testing.assert_array_equal(received.sides["prior"], model_slice().sides["prior"])


def test_the_native_client_accepts_and_refuses_the_same_slices_as_python() -> None:
    source = random.Random(7)
    genuine = [(GOLDEN / f"slice-{precision}.safetensors").read_bytes() for precision in PRECISIONS]
    candidates = [*genuine, *hand_made(genuine[0])]
    candidates += [
        (GOLDEN / f"{name}.safetensors").read_bytes()
        for name in ("plan", "request", "update-fp32", "update-int8", "update-top_k")
    ]
    candidates += [mutated(source.choice(genuine), source) for _ in range(4000)]
    verdicts = judged(["judge", EXPECTED_FILE], candidates)
    disagreements = [
        (message, verdict)
        for message, verdict in zip(candidates, verdicts, strict=True)
        if (verdict == "ok") != accepted_by_python(message)
    ]
    assert disagreements == []
    accepted = verdicts.count("ok")
    assert accepted >= len(genuine)  # and a mutation of a weight's low bits is accepted by both
    assert accepted < len(candidates) / 2


def accepted_by_python(message: bytes) -> bool:
    try:
        slice_from_bytes(message, ENVELOPE, IDS, EXPECTED)
    except WireError:
        return False
    return True


def hand_made(genuine: bytes) -> list[bytes]:
    """Where two JSON readers and two languages like to differ."""
    size = struct.unpack("<Q", genuine[:8])[0]
    header, body = genuine[8 : 8 + size].rstrip(), genuine[8 + size :]

    def with_header(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text + body

    def edited(edit: Callable[[dict[str, dict[str, object]]], object]) -> bytes:
        document = json.loads(header)
        edit(document)
        return with_header(json.dumps(document).encode())

    return [
        with_header(header + b"\0"),
        with_header(header + b"\0 }"),
        with_header(b"\xef\xbb\xbf" + header),
        with_header(b" \n\t" + header + b"\r\n"),
        with_header(header + b"{}"),
        with_header(header.replace(b"{", b"{/* why */", 1)),
        with_header(header.replace(b'"round":"12"', b'"round":"12","round":"12"')),
        with_header(header.replace(b'"shape":[5]', b'"shape":[5.0]')),
        with_header(header.replace(b'"shape":[5]', b'"shape":[5e0]')),
        with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[-0,')),
        with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[NaN,')),
        with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[18446744073709551616,')),
        with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[false,')),
        with_header(header.replace(b'"I64"', b'"\\u0049\\u0036\\u0034"')),
        with_header(header.replace(b"stem.bias", b"stem.bia\\u0073")),
        with_header(header.replace(b"stem.bias", b"stem.bia\\ud800")),
        with_header(header.replace(b"\\u00e9", "é".encode())),
        with_header(header.replace(b"\\u00e9", b"\xe9")),
        with_header(b"[" * 100_000),
        *(with_header(header.replace(b'"shape":[5]', deeper)) for deeper in nested_shapes()),
        with_header(b"[]"),
        with_header(b""),
        with_header(b"null"),
        edited(lambda document: document["__metadata__"].update(kind="update")),
        edited(lambda document: document["__metadata__"].update(version="1")),
        edited(lambda document: document["__metadata__"].update(round="012")),
        edited(lambda document: document["__metadata__"].update(client=345)),
        edited(lambda document: document["__metadata__"].update(more="")),
        edited(lambda document: document.pop("__metadata__")),
        edited(lambda document: document.pop("table.columns")),
        edited(lambda document: document["table.columns"].update(more=1)),
        edited(lambda document: document["table.columns"].update(shape=[15])),
        edited(lambda document: document["table.columns"].update(shape=[1] * 6 + [5, 3, 1])),
        edited(lambda document: document["table.columns"].update(dtype="I64")),
        edited(lambda document: document["table.columns"].update(dtype="F64")),
        genuine + b"\0",
        genuine[:-1],
        struct.pack("<Q", 1 << 63) + genuine[8:],
        struct.pack("<Q", (1 << 20) + 1) + b" " * ((1 << 20) + 1) + genuine[8:],
        genuine[: 8 + size] + body[:-4] + struct.pack("<f", float("nan")),
        genuine[: 8 + size] + struct.pack("<q", -1) + body[8:],
        genuine[: 8 + size] + struct.pack("<q", 1) + body[8:],
        genuine[: 8 + size] + struct.pack("<q", 2) + body[8:],
        genuine[:7],
        b"",
    ]


def nested_shapes() -> list[bytes]:
    """Balanced, so that a reader that builds the value and frees it goes all the way down; below the header's megabyte."""
    deep = 170_000
    return [
        b'"shape":' + b"[" * 20 + b"5" + b"]" * 20,
        b'"shape":[' + b"[" * deep + b"]" * deep + b",5]",
        b'"shape":' + b'{"a":' * deep + b"5" + b"}" * deep,
        b'"shape":[5],"more":[' + b"[" * deep + b"]" * deep + b",5]",
    ]


def test_no_message_makes_the_reader_touch_memory_that_is_not_its_own() -> None:
    corpus = [GOLDEN / f"slice-{precision}.safetensors" for precision in PRECISIONS]
    corpus += [GOLDEN / "plan.safetensors", GOLDEN / "found.safetensors"]
    done = subprocess.run(
        [sanitized_program("fuzz_wire"), EXPECTED_FILE, "20000", "1", *corpus],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert 0 < int(done.stdout) < 10_000  # most are refused, and those with a changed weight are not
