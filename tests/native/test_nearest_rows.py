"""Rows near a client's data: of the same embeddings the native client asks for the same buckets and draws the same rows."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.messages.golden_messages import ENVELOPE, EXPECTED, EXPECTED_FILE, GOLDEN, PLAN, mutated
from helpers.native.programs import judged, run_probe

from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.contract import safetensors_file
from ondevice.contract.choice import Choice, UnknownChoice, chosen
from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.messages.lookup import Lookup, found_from_bytes, found_to_bytes, lookup_to_bytes
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray, RoundPlan, Rows
from ondevice.contract.wire import Envelope, WireError, plan_to_bytes
from server_sim.schemes.nearest import Nearest

pytestmark = pytest.mark.slow  # compiles the native client

NUM_ROWS = 90


class AllFound:
    """Answers a sampler's questions from arrays, as `probe near` does; a look-up finds all rows."""

    def __init__(self, embeddings: FloatArray, rows: FloatArray) -> None:
        self._embeddings, self._rows = embeddings, rows
        self.dim = rows.shape[1]
        self.asked = b""

    def embeddings(self, ids: IntArray) -> FloatArray:
        assert ids.size
        return self._embeddings

    def look_up(self, lookup: Lookup) -> Rows:
        self.asked = lookup_to_bytes(Envelope(7, 3), lookup)
        return Rows(np.arange(len(self._rows)), self._rows)


def on_planes(hashes: SimHash, vectors: FloatArray) -> FloatArray:
    """Each brought onto a plane of the hash functions, but for a rounding: where a sum's order would show."""
    planes = hashes._planes.T
    chosen_planes = planes[np.arange(len(vectors)) % len(planes)][:, : vectors.shape[1]]
    lengths = (chosen_planes * chosen_planes).sum(1, keepdims=True)
    beside = vectors - chosen_planes * (vectors * chosen_planes).sum(1, keepdims=True) / lengths
    near: FloatArray = beside.astype(np.float32)
    return near


@pytest.mark.parametrize("bias", [0, 1], ids=["cosine", "bias"])
@pytest.mark.parametrize(
    "scheme",
    [
        Nearest(num_negatives=30, num_random=10, num_bits=7, num_tables=5, hash_seed=9),
        Nearest(num_negatives=30, num_random=0, num_bits=3, num_tables=2, norm_bound=2.0),
        Nearest(num_negatives=200, num_random=100, num_bits=30, num_tables=40, of_words=True),
        Nearest(num_negatives=12, num_random=12),
        Nearest(num_negatives=20, num_random=5, search="exact"),
    ],
    ids=["buckets", "norm bound", "words", "random alone", "exact"],
)
def test_the_same_embeddings_give_the_same_look_up_and_the_same_rows(
    scheme: Nearest, bias: int, tmp_path: Path
) -> None:
    source = np.random.default_rng(4)
    dim = 24
    choice = scheme.sampler()
    hashes = SimHash(scheme.num_bits, scheme.num_tables, dim + bias, scheme.hash_seed)
    embeddings = on_planes(hashes, source.standard_normal((37, dim)).astype(np.float32))
    embeddings[:3] *= np.array([[1e-40], [1e30], [0]], np.float32)
    rows = source.standard_normal((NUM_ROWS, dim + bias)).astype(np.float32)
    # Rows of one activation: the first of them are kept.
    rows[40:60] = rows[39]
    for name, matrix in (("embeddings", embeddings), ("rows", rows)):
        safetensors_file.write_file(tmp_path / name, {"matrix": matrix}, {})
    labels, tokens = source.integers(4, NUM_ROWS, 9), source.integers(0, NUM_ROWS, 12)
    plan = RoundPlan(7, {COLUMNS: NUM_ROWS}, choice, scheme.weighting())
    server = AllFound(embeddings, rows)
    view = SamplingView(plan, labels, 99, numbers=lambda _: tokens, questions=server)
    sample = chosen(SAMPLERS, choice, "sampler").draw(view)
    line = " ".join(map(str, [99, 7, NUM_ROWS, *labels, ";", *tokens]))
    files = (tmp_path / "embeddings", tmp_path / "rows")
    ids, bits, asked = run_probe("near", line, *files, json.dumps(choice.to_document())).split("|")
    assert list(map(int, ids.split())) == sample.ids[COLUMNS].tolist()
    assert list(map(int, bits.split())) == sample.sides["adjust"].view(np.uint32).tolist()
    assert bytes.fromhex(asked.strip()) == server.asked


def test_the_native_client_accepts_and_refuses_the_same_found_rows_as_python() -> None:
    source = random.Random(3)
    genuine = (GOLDEN / "found.safetensors").read_bytes()
    none = found_to_bytes(ENVELOPE, COLUMNS, Rows(np.empty(0, np.int64), np.empty((0, 3), np.float32)))
    outside = found_to_bytes(ENVELOPE, COLUMNS, Rows(np.array([3, 20]), np.ones((2, 3), np.float32)))
    wider = found_to_bytes(ENVELOPE, COLUMNS, Rows(np.array([3]), np.ones((1, 4), np.float32)))
    infinite = found_to_bytes(ENVELOPE, COLUMNS, Rows(np.array([3]), np.full((1, 3), np.inf, np.float32)))
    twice = genuine.replace(np.int64(2).tobytes(), np.int64(0).tobytes(), 1)
    others = [
        (GOLDEN / f"{name}.safetensors").read_bytes() for name in ("lookup", "rows", "slice-fp32", "plan")
    ]
    candidates = [genuine, none, outside, wider, infinite, twice, *others]
    candidates += [mutated(source.choice([genuine, none]), source) for _ in range(3000)]
    verdicts = judged(["judge-found", EXPECTED_FILE], candidates)
    disagreements = [
        (message, verdict)
        for message, verdict in zip(candidates, verdicts, strict=True)
        if (verdict == "ok") != accepted_by_python(message)
    ]
    assert disagreements == []
    assert [verdict.split()[0] for verdict in verdicts[:10]] == ["ok", "ok", *["bad"] * 8]
    assert "reach from 3 to 20; expected ids from 0 to 19" in verdicts[2]
    assert "is a 'lookup'; expected a 'found'" in verdicts[6]
    assert 10 < verdicts.count("ok") < len(candidates) / 2


def accepted_by_python(message: bytes) -> bool:
    try:
        found_from_bytes(
            message, ENVELOPE, COLUMNS, EXPECTED.table_sizes[COLUMNS], EXPECTED.table_dims[COLUMNS]
        )
    except WireError:
        return False
    return True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"norm_bound": 3, "of_words": True}, ""),
        ({"hash_seed": 1}, "client and server are of different versions, or the plan is damaged"),
        ({"num_tables": 9}, "client and server are of different versions"),
        ({"fingerprint": 1}, "here, the plan says 1: client and server are of different versions"),
        ({"num_bits": 0}, "have the fingerprint 0 here"),
        ({"num_bits": 31}, "expected at most 30"),
        ({"num_tables": 0}, "num_tables is 0"),
        ({"num_tables": 1 << 40}, "expected at most 30 and 4096"),
        ({"num_random": 31}, "num_random is 31; expected 0 to num_negatives, which is 30"),
        ({"hash_seed": -1}, "hash_seed is -1"),
        ({"norm_bound": -1.0}, "norm_bound is -1.0"),
        ({"of_words": 1}, "of_words is 1"),
        ({"graph": 1}, "unknown field graph; this client is older than the plan"),
    ],
)
def test_hash_functions_that_are_not_the_servers_are_refused_as_by_python(
    change: dict[str, int | float | bool], words: str
) -> None:
    sampler = Nearest(num_negatives=30, num_random=10, hash_seed=7).sampler()
    choice = Choice(sampler.name, {**sampler.settings, **change})
    plan = replace(PLAN, sampler=choice)
    (verdict,) = judged(["judge-plan"], [plan_to_bytes(ENVELOPE, plan)])
    assert words in verdict
    assert (verdict == "ok") == (not words)
    if words:
        with pytest.raises(UnknownChoice):
            chosen(SAMPLERS, choice, "sampler")
    else:
        chosen(SAMPLERS, choice, "sampler")
