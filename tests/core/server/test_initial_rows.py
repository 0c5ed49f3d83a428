"""A row at the start is a function of the seed, its table and its id, the same bits wherever it is asked for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ondevice.contract.portable_random import GOLDEN, mix
from server_sim.server.initial_rows import InitialRows

ROWS = InitialRows(seed=3, table_number=0, dim=128, length=0.1, has_bias=False)


def by_hand(rows: InitialRows, row: int) -> list[float]:
    """The same with Python's whole numbers, one entry at a time."""
    key, entries = mix(mix(rows.seed) + rows.table_number), []
    for at in range(rows.dim):
        word = mix(key + GOLDEN * (row * -(-rows.dim // 2) + at // 2 + 1))
        half = (word >> 32 * (at % 2)) & 0xFFFFFFFF
        entries.append(2 * (sum(half.to_bytes(4, "little")) + half % 2) - 1021)
    if rows.has_bias:
        entries[-1] = 0
    scale = np.float32(rows.length / math.sqrt(sum(entry * entry for entry in entries)))
    return [float(np.float32(entry) * scale) for entry in entries]


@pytest.mark.parametrize(("dim", "has_bias"), [(1, False), (2, True), (5, False), (64, True), (128, False)])
def test_rows_are_as_they_are_defined_bit_by_bit(dim: int, has_bias: bool) -> None:
    rows = replace(ROWS, dim=dim, has_bias=has_bias)
    ids = np.array([0, 1, 2, 511, 512, 10_000_000, (1 << 62) + 1])
    assert rows(ids).tolist() == [by_hand(rows, row) for row in ids.tolist()]


def test_rows_have_one_length_and_no_favourite_direction() -> None:
    rows = ROWS(np.arange(5000))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 0.1, rtol=1e-6)
    unit = rows / 0.1
    # As of directions that are drawn evenly: means of 0 +- 1/sqrt(N d), cosines of 0 +- 1/sqrt(d).
    assert np.abs(unit.mean(axis=0)).max() < 5 / math.sqrt(5000 * 128)
    cosines = (unit @ unit.T)[np.triu_indices(5000, 1)]
    assert cosines.std() == pytest.approx(1 / math.sqrt(128), rel=0.01)
    assert np.abs(cosines).max() < 0.6


def test_rows_are_the_same_whatever_company_they_come_in() -> None:
    ids = np.random.default_rng(0).choice(1 << 40, 1500)
    together = ROWS(ids)
    assert np.array_equal(ROWS(ids[::-1])[::-1], together)
    assert np.array_equal(np.concatenate([ROWS(ids[at : at + 1]) for at in range(20)]), together[:20])


@pytest.mark.parametrize("other", [replace(ROWS, seed=4), replace(ROWS, table_number=1)])
def test_another_seed_and_another_table_have_other_rows(other: InitialRows) -> None:
    assert np.abs(other(np.arange(500)) @ ROWS(np.arange(500)).T).max() < 0.6 * 0.01
