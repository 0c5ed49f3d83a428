"""SimHash and the tables over it: the papers' collision law, and tables that follow rows wherever they move."""

from __future__ import annotations

import numpy as np
import pytest

from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.vocabulary import FloatArray
from server_sim.server.hash_tables import HashTables

DIM = 24
TABLES = 4000


def pair_at(angle: float) -> FloatArray:
    """Two vectors of other lengths at this angle."""
    source = np.random.default_rng(7)
    axes, _ = np.linalg.qr(source.standard_normal((DIM, 2)))
    first, second = axes.T
    return np.stack([3 * first, 0.2 * (np.cos(angle) * first + np.sin(angle) * second)]).astype(np.float32)


@pytest.mark.parametrize("num_bits", [1, 2, 4])
@pytest.mark.parametrize("angle", [0.0, 0.3, np.pi / 3, np.pi / 2, 2.5])
def test_two_vectors_meet_as_often_as_definition_1_says(num_bits: int, angle: float) -> None:
    buckets = SimHash(num_bits, TABLES, DIM, seed=5).buckets_of_rows(pair_at(angle))
    expected = (1 - angle / np.pi) ** num_bits
    spread = np.sqrt(expected * (1 - expected) / TABLES)
    assert abs(float((buckets[0] == buckets[1]).mean()) - expected) <= 4 * spread


def test_with_a_norm_bound_a_row_and_a_query_meet_by_their_inner_product() -> None:
    bound = 2.0
    source = np.random.default_rng(3)
    query = source.standard_normal((1, DIM)).astype(np.float32)
    direction = query[0] / np.linalg.norm(query)
    # The same direction, other lengths: by angle they would all meet the query alike.
    rows = np.outer([0.1, 0.5, 1.0, 2.0, 50.0], direction).astype(np.float32)
    simhash = SimHash(1, TABLES, DIM, seed=1, norm_bound=bound)
    meet = (simhash.buckets_of_rows(rows) == simhash.buckets_of_queries(query)).mean(1)
    cosines = np.minimum(np.linalg.norm(rows, axis=1) / bound, 1)
    np.testing.assert_allclose(meet, 1 - np.arccos(cosines) / np.pi, atol=0.03)


def test_both_sides_make_the_same_functions_from_a_seed_and_others_from_another() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, DIM)).astype(np.float32)
    first, again, other = (SimHash(6, 3, DIM, seed).buckets_of_rows(vectors) for seed in (9, 9, 10))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(first >> 6, np.broadcast_to(np.arange(3), (50, 3)))


@pytest.mark.parametrize("settings", [(0, 1, 4), (31, 1, 4), (2, 0, 4), (2, 1, 0)])
def test_sizes_that_cannot_be_are_named(settings: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"num_bits is|num_tables is"):
        SimHash(*settings, seed=0)


def test_a_bucket_holds_exactly_the_rows_whose_hash_it_is() -> None:
    source = np.random.default_rng(1)
    rows = source.standard_normal((300, DIM)).astype(np.float32)
    simhash = SimHash(4, 3, DIM, seed=2)
    tables = HashTables(simhash, 300, [rows[:100], rows[100:]])
    buckets_of = simhash.buckets_of_rows(rows)
    asked = np.array([0, 5, 17, 40])
    found, hits = tables.look_up(asked)
    inside = np.isin(buckets_of, asked)
    assert np.array_equal(found, np.flatnonzero(inside.any(1)))
    assert np.array_equal(hits, inside.sum(1)[found])


def test_tables_that_followed_every_move_equal_tables_made_anew() -> None:
    source = np.random.default_rng(4)
    rows = source.standard_normal((500, DIM)).astype(np.float32)
    simhash = SimHash(5, 4, DIM, seed=8)
    tables = HashTables(simhash, 500, [rows])
    for count in [1, 500, 3, 40, 0, 40, 7, 499, 250, 250, 2, 500, 500]:
        moved = np.sort(source.choice(500, count, replace=False))
        rows[moved] += source.standard_normal((count, DIM)).astype(np.float32)
        tables.refresh(moved, rows[moved])
        anew = HashTables(simhash, 500, [rows])
        for asked in (np.arange(simhash.num_buckets), np.unique(source.integers(0, simhash.num_buckets, 9))):
            for followed, made in zip(tables.look_up(asked), anew.look_up(asked), strict=True):
                assert np.array_equal(followed, made)


def test_a_bucket_does_not_depend_on_the_order_of_a_sum_or_on_the_scale_of_a_vector() -> None:
    """Vectors that lie on a plane but for a rounding: a float32 sum would put them on either side."""
    hashes = SimHash(8, 4, 64, seed=3)
    source = np.random.default_rng(1)
    planes = hashes._planes
    vectors = source.standard_normal((200, 64))
    for vector, plane in zip(vectors, planes.T[source.integers(0, 32, 200)], strict=True):
        vector -= plane * (vector @ plane) / (plane @ plane)
    near = vectors.astype(np.float32)
    found = hashes.buckets_of_queries(near)
    order = source.permutation(64)
    shuffled = SimHash(8, 4, 64, seed=3)
    shuffled.__dict__["_planes"] = planes[order]
    assert np.array_equal(shuffled.buckets_of_queries(near[:, order]), found)
    assert np.array_equal(hashes.buckets_of_queries(near * np.float32(2.0**-100)), found)
    assert np.array_equal(hashes.buckets_of_queries(np.zeros((1, 64), np.float32))[0], np.arange(4) << 8)


def test_a_fingerprint_knows_seed_bits_and_tables_and_no_size_of_vectors() -> None:
    prints = {
        SimHash(*settings).fingerprint
        for settings in [(5, 2, 3, 0), (5, 2, 3, 1), (4, 4, 3, 0), (5, 3, 3, 0)]
    }
    assert len(prints) == 4
    assert SimHash(5, 2, 9, 0, norm_bound=2.0).fingerprint == SimHash(5, 2, 3, 0).fingerprint
