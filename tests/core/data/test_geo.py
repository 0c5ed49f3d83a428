"""S2 cells, and clients by where their examples come from (Hsu, Qi and Brown 2020, section 4.1)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.contract.choice import Choice, UnknownChoice, chosen
from server_sim.data.partitioners import NOBODY, PARTITIONERS, Pool
from server_sim.data.partitioners.geo import Geo
from server_sim.data.s2_cells import LEAF_LEVEL, adaptive_cells, cell_of, leaf_ids, token_of

# Leaf and level-12 tokens that Google's library gives.
KNOWN = {
    (37.7749, -122.4194): ("8085809e8e8d8c61", "8085809"),
    (0.0, 90.0): ("3000000000000001", "3000001"),
    (0.0, -90.0): ("9000000000000001", "9000001"),
    (51.4778, 0.0): ("48760281fd8a7877", "4876029"),
}

coordinates = st.tuples(st.floats(-90, 90), st.floats(-180, 180))


def places_of(points: list[tuple[float, float]]) -> np.ndarray:
    return np.array(points, np.float64).reshape(-1, 2)


def test_ids_are_those_of_the_s2_library() -> None:
    leaves = leaf_ids(places_of(list(KNOWN)))
    assert [token_of(leaf) for leaf in leaves.tolist()] == [leaf for leaf, _ in KNOWN.values()]
    assert [token_of(cell) for cell in cell_of(leaves, 12).tolist()] == [cell for _, cell in KNOWN.values()]


def test_the_six_faces_are_where_the_axes_leave_the_globe() -> None:
    axes = [(0, 0), (0, 90), (90, 0), (0, 180), (0, -90), (-90, 0)]
    faces = leaf_ids(places_of([(float(a), float(b)) for a, b in axes])) >> np.uint64(61)
    assert faces.tolist() == [0, 1, 2, 3, 4, 5]


@given(points=st.lists(coordinates, min_size=1, max_size=20), level=st.integers(1, LEAF_LEVEL))
def test_a_cell_lies_in_one_cell_of_the_level_above(points: list[tuple[float, float]], level: int) -> None:
    leaves = leaf_ids(places_of(points))
    np.testing.assert_array_equal(cell_of(cell_of(leaves, level), level - 1), cell_of(leaves, level - 1))
    np.testing.assert_array_equal(cell_of(leaves, LEAF_LEVEL), leaves)


@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(coordinates, min_size=1, max_size=40),
    copies=st.integers(1, 6),
    spread=st.sampled_from([0.0, 1e-6, 0.1]),
    most=st.integers(1, 12),
)
def test_no_cell_is_above_its_maximum_and_every_example_is_in_one(
    points: list[tuple[float, float]], copies: int, spread: float, most: int
) -> None:
    """Also where more examples than fit come from the very same place."""
    places = np.repeat(places_of(points), copies, axis=0)
    places += spread * np.random.default_rng(0).standard_normal(places.shape)
    numbers, names = adaptive_cells(places, most)
    counts = np.bincount(numbers, minlength=len(names))
    assert counts.sum() == len(places)
    assert counts.min() >= 1
    assert counts.max() <= most


def test_cells_are_as_coarse_as_the_maximum_allows() -> None:
    """Against the paper's words in plain lines: divide whatever holds too much, from the faces down."""
    rng = np.random.default_rng(4)
    places = np.concatenate(
        [rng.normal((40, -95), 3, (300, 2)), rng.uniform((-60, -180), (60, 180), (100, 2))]
    )
    leaves = [int(leaf) for leaf in leaf_ids(places)]

    def divided(held: list[int], level: int) -> list[tuple[int, int]]:
        """Cell and count, of all cells below that are not divided further."""
        found = []
        for cell, count in Counter(leaf >> (61 - 2 * level) for leaf in held).items():
            inside = [leaf for leaf in held if leaf >> (61 - 2 * level) == cell]
            found += [(cell, count)] if count <= 20 else divided(inside, level + 1)
        return found

    numbers, _ = adaptive_cells(places, 20)
    assert sorted(np.bincount(numbers).tolist()) == sorted(count for _, count in divided(leaves, 0))


def test_small_cells_and_examples_of_unknown_place_belong_to_nobody() -> None:
    places = np.concatenate([np.tile([[10.0, 10.0]], (50, 1)), [[-80.0, 100.0]], [[np.nan, np.nan]]])
    pool = Pool(np.zeros(52, np.int64), np.zeros(52, np.int64), places)
    found, names = Geo(max_examples=100, min_share=0.02).cells(pool)
    assert found.tolist() == [0] * 50 + [NOBODY, NOBODY]
    assert len(names) == 1
    # With N_min = 0.01 N_max = 1 the lonely one is a client.
    found, names = Geo(max_examples=100).cells(pool)
    assert found[-1] == NOBODY
    assert sorted(np.bincount(found[:-1]).tolist()) == [1, 50]
    assert len(names) == 2


def test_data_without_places_and_settings_that_mean_nothing_are_refused() -> None:
    pool = Pool(np.zeros(3, np.int64), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="latitude and longitude, which these data do not have"):
        Geo(10).owners(pool, np.random.default_rng(0))
    with pytest.raises(UnknownChoice, match="max_examples is 0; expected 1 or more"):
        chosen(PARTITIONERS, Choice("geo", {"max_examples": 0}), "partitioner")
    with pytest.raises(ValueError, match="no cell holds 100 examples or more"):
        Geo(100, min_share=1.0).cells(Pool(pool.labels, pool.users, np.zeros((3, 2))))
