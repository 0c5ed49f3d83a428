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
from helpers.golden_messages import (
    CLASS_IDS,
    ENVELOPE,
    EXPECTED,
    EXPECTED_FILE,
    GOLDEN,
    PRECISIONS,
    messages,
    model_slice,
    rounded,
)
from helpers.native_programs import sanitized_program
from ondevice.client.class_sampling import logit_adjustment, sample_classes

from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import Method, RoundPlan
from ondevice.contract.wire import Precision, WireError, slice_from_bytes

pytestmark = pytest.mark.slow  # compiles the native client

METHODS: tuple[Method, ...] = (
    "fedss",
    "negatives_only",
    "positives_only",
    "full_softmax",
)  # as in round_plan.h


def run_probe(*arguments: str | Path, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [sanitized_program("probe"), *arguments], input=stdin, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("name", sorted(messages()))
def test_the_frozen_messages_are_what_python_writes_today(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == messages()[name]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_native_client_writes_the_frozen_request_and_update(precision: Precision, tmp_path: Path) -> None:
    slice_file = GOLDEN / f"slice-{precision}.safetensors"
    run_probe("answer", EXPECTED_FILE, slice_file, precision, tmp_path / "request", tmp_path / "update")
    assert (tmp_path / "request").read_bytes() == (GOLDEN / "request.safetensors").read_bytes()
    assert (tmp_path / "update").read_bytes() == (GOLDEN / f"update-{precision}.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["request", "update"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_python_reads_the_frozen_slice(precision: Precision) -> None:
    data = (GOLDEN / f"slice-{precision}.safetensors").read_bytes()
    received = slice_from_bytes(data, ENVELOPE, CLASS_IDS, EXPECTED)
    np.testing.assert_array_equal(received.columns.weights, rounded(model_slice().columns.weights, precision))


def test_the_same_seed_draws_the_same_classes_and_orders_in_both_languages() -> None:
    source = random.Random(5)
    cases, expected = [], []
    for _ in range(3000):
        num_classes = source.choice([1, 2, 7, 60, 2028])
        count = source.randint(1, 12)
        labels = np.array([source.randrange(num_classes) for _ in range(count)], np.int64)
        method = source.choice(METHODS if num_classes < 100 else METHODS[:3])
        draws = method in ("fedss", "negatives_only")
        plan = RoundPlan(
            round_index=source.choice([0, 1, source.randrange(1 << 40)]),
            num_classes=num_classes,
            num_negatives=source.choice([0, 1, 5, 170]) if draws else 0,
            method=method,
        )
        seed = source.choice([0, source.randrange(1 << 64), (1 << 64) - 1])
        sample = sample_classes(labels, plan, seed)
        order = PortableRandom(seed, plan.round_index, Purpose.FIRST_EPOCH).permutation(count)
        bits = logit_adjustment(sample, plan).view(np.uint32)
        expected.append([sample.class_ids.tolist(), bits.tolist(), order.tolist()])
        words = [seed, plan.round_index, num_classes, plan.num_negatives, METHODS.index(method), *labels]
        cases.append(" ".join(map(str, words)))
    lines = run_probe("sample", stdin="\n".join(cases).encode()).splitlines()
    assert [[list(map(int, part.split())) for part in line.split("|")] for line in lines] == expected


def test_the_native_client_accepts_and_refuses_the_same_messages_as_python() -> None:
    source = random.Random(7)
    genuine = [(GOLDEN / f"slice-{precision}.safetensors").read_bytes() for precision in PRECISIONS]
    candidates = [*genuine, *(message for message in hand_made(genuine[0]))]
    candidates += [
        (GOLDEN / "request.safetensors").read_bytes(),
        (GOLDEN / "update-fp32.safetensors").read_bytes(),
    ]
    candidates += [mutated(source.choice(genuine), source) for _ in range(4000)]
    stdin = b"".join(struct.pack("<I", len(message)) + message for message in candidates)
    verdicts = run_probe("judge", EXPECTED_FILE, stdin=stdin).splitlines()
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
        slice_from_bytes(message, ENVELOPE, CLASS_IDS, EXPECTED)
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
        edited(lambda document: document["__metadata__"].update(version="2")),
        edited(lambda document: document["__metadata__"].update(round="012")),
        edited(lambda document: document["__metadata__"].update(client=345)),
        edited(lambda document: document["__metadata__"].update(more="")),
        edited(lambda document: document.pop("__metadata__")),
        edited(lambda document: document.pop("columns")),
        edited(lambda document: document["columns"].update(more=1)),
        edited(lambda document: document["columns"].update(shape=[15])),
        edited(lambda document: document["columns"].update(shape=[1] * 6 + [5, 3, 1])),
        edited(lambda document: document["columns"].update(dtype="I64")),
        edited(lambda document: document["columns"].update(dtype="F64")),
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


def mutated(message: bytes, source: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(source.choice([1, 1, 2, 5])):
        at = source.randrange(len(data))
        change = source.randrange(4)
        if change == 0:
            data[at] ^= 1 << source.randrange(8)
        elif change == 1:
            data[at] = source.choice(b'0123456789"{}[],:e.-x')
        elif change == 2:
            data[at : at + 1] = source.choice([b"", b"00", b"9" * 19, b"null", b'"a":1,'])
        else:
            del data[source.randrange(len(data)) + 1 :]
    return bytes(data)


def test_no_message_makes_the_reader_touch_memory_that_is_not_its_own() -> None:
    corpus = [GOLDEN / f"slice-{precision}.safetensors" for precision in PRECISIONS]
    done = subprocess.run(
        [sanitized_program("fuzz_wire"), EXPECTED_FILE, "20000", "1", *corpus],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert 0 < int(done.stdout) < 10_000  # most are refused, and those with a changed weight are not
