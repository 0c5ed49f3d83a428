"""Partitioners: what each promises, over random pools; and a population that is split anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_population import make_tiny_population
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import IMAGES, IntArray
from server_sim.data.partition_statistics import describe_partition
from server_sim.data.partitioners import NOBODY, PARTITIONERS, Pool
from server_sim.data.partitioners.dirichlet import Dirichlet
from server_sim.data.population import Population, open_population
from server_sim.data.repartition import materialize_partition
from server_sim.experiment import ConfigurationError, load_experiment


def pool_of(num_classes: int, per_class: int) -> Pool:
    labels = np.repeat(np.arange(num_classes), per_class)
    return Pool(labels, np.arange(len(labels)) % 3)


def owners(name: str, pool: Pool, seed: int = 0, **fields: float) -> IntArray:
    return chosen(PARTITIONERS, Choice(name, fields), "partitioner").owners(pool, np.random.default_rng(seed))


def mean_emd(pool: Pool, found: IntArray) -> float:
    """The paper's distance in plain lines: Σ n_i/n ‖q_i − p‖₁ over the examples that were given away."""
    given_away = pool.labels[found != NOBODY]
    num_classes = int(pool.labels.max()) + 1
    whole = np.bincount(given_away, minlength=num_classes) / len(given_away)
    total = 0.0
    for client in np.unique(found[found != NOBODY]):
        labels = pool.labels[found == client]
        own = np.bincount(labels, minlength=num_classes) / len(labels)
        total += len(labels) / len(given_away) * float(np.abs(own - whole).sum())
    return total


@settings(max_examples=40, deadline=None)
@given(
    num_classes=st.integers(1, 12),
    per_class=st.integers(2, 20),
    num_clients=st.integers(1, 12),
    concentration=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 100.0]),
    spread=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_every_client_gets_its_size_and_no_example_twice(
    num_classes: int, per_class: int, num_clients: int, concentration: float, spread: float, seed: int
) -> None:
    pool = pool_of(num_classes, per_class)
    total = len(pool.labels)
    num_clients = min(num_clients, total)
    for name, fields in (("iid", {}), ("dirichlet", {"concentration": concentration})):
        found = owners(name, pool, seed, num_clients=num_clients, size_spread=spread, **fields)
        assert found.shape == (total,)
        sizes = np.bincount(found[found != NOBODY], minlength=num_clients)
        assert len(sizes) == num_clients
        assert sizes.min() >= 1
        if not spread:
            assert set(sizes.tolist()) == {total // num_clients}
        assert 0 <= mean_emd(pool, found) <= 2
        again = owners(name, pool, seed, num_clients=num_clients, size_spread=spread, **fields)
        np.testing.assert_array_equal(found, again)


def test_a_high_concentration_gives_the_prior_and_a_low_one_clients_of_one_class() -> None:
    pool = pool_of(10, 500)
    emd = {
        concentration: mean_emd(pool, owners("dirichlet", pool, num_clients=10, concentration=concentration))
        for concentration in (1e7, 10.0, 1.0, 0.1, 0.0)
    }
    assert list(emd.values()) == sorted(emd.values())
    # 500 draws of 10 classes by the prior itself: E‖q − p‖₁ = 10 √(2 · 0.1 · 0.9 / (π · 500)) = 0.107.
    assert emd[1e7] < 0.13
    # As long as classes last, there is one in each client.
    found = owners("dirichlet", pool_of(40, 100), num_clients=10, concentration=0.0)
    few = pool_of(40, 100).labels
    # 400 examples each of classes of 100: as few classes as can be, but for those that others had begun.
    assert all(len(np.unique(few[found == client])) <= 6 for client in range(10))
    single = pool_of(5, 1000)
    found = owners("dirichlet", single, num_clients=50, concentration=0.0)
    classes = [len(np.unique(single.labels[found == client])) for client in range(50)]
    assert classes == [1] * 50


def test_after_a_class_is_exhausted_the_others_keep_their_proportions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eq. 5: with q = (0.6, 0.3, 0.1) and few examples of the first class, the rest is drawn 3 to 1."""
    monkeypatch.setattr(Dirichlet, "_distribution", lambda *_: np.array([0.6, 0.3, 0.1]))
    pool = Pool(np.repeat([0, 1, 2], [20, 100, 100]), np.zeros(220, np.int64))
    shares = []
    for seed in range(40):
        found = Dirichlet(2, 1.0).owners(pool, np.random.default_rng(seed))
        first = found[0]
        counts = np.bincount(pool.labels[found == first])
        # Whoever came first wanted 66 of the first class: it has all 20, and as many examples as it should have.
        assert (counts[0], counts.sum()) == (20, 110)
        shares.append(counts[1] / (counts[1] + counts[2]))
    # The deviation of a share is √(0.75 · 0.25 / 90) = 0.046, that of their mean 0.007.
    assert np.mean(shares) == pytest.approx(0.75, abs=0.03)


def test_an_exhausted_class_is_eliminated_and_what_is_left_scaled_up() -> None:
    # One client takes everything: whatever it would draw, it ends with all there is.
    pool = Pool(np.repeat([0, 1, 2], [1, 5, 94]), np.zeros(100, np.int64))
    found = owners("dirichlet", pool, num_clients=1, concentration=1.0)
    assert (found == 0).all()


def test_iid_clients_are_small_copies_of_the_whole() -> None:
    pool = pool_of(4, 1000)
    assert mean_emd(pool, owners("iid", pool, num_clients=4)) < 0.1
    spread = np.bincount(owners("iid", pool, num_clients=50, size_spread=1.0) + 1)[1:]
    assert spread.max() > 4 * np.median(spread)


def test_pathological_clients_hold_as_many_classes_as_shards() -> None:
    pool = pool_of(10, 100)
    found = owners("pathological", pool, num_clients=10, shards_per_client=2)
    assert np.bincount(found).tolist() == [100] * 10
    assert all(len(np.unique(pool.labels[found == client])) <= 2 for client in range(10))


def test_natural_clients_are_the_authors_who_have_enough() -> None:
    pool = Pool(np.zeros(6, np.int64), np.array([0, 0, 0, 1, 2, 2]))
    assert owners("natural_id", pool).tolist() == pool.users.tolist()
    assert owners("natural_id", pool, min_examples=2).tolist() == [0, 0, 0, NOBODY, 2, 2]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice("dirichlet", {"num_clients": 3, "concentration": -1.0}), "concentration is -1.0"),
        (Choice("iid", {"num_clients": 0}), "num_clients is 0; expected 1 to 8"),
        (Choice("iid", {"num_clients": 9}), "num_clients is 9; expected 1 to 8"),
        (Choice("iid", {"num_clients": 2, "size_spread": -1.0}), "size_spread is -1.0"),
        (Choice("pathological", {"num_clients": 5}), "expected 1 to 8 shards"),
        (Choice("natural_id", {"min_examples": 9}), "nobody has as many"),
    ],
)
def test_a_split_that_cannot_be_is_refused(choice: Choice, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chosen(PARTITIONERS, choice, "partitioner").owners(pool_of(4, 2), np.random.default_rng(0))


def images_by_class(population: Population) -> dict[str, list[bytes]]:
    images = population.train.features[IMAGES]
    found: dict[str, list[bytes]] = {}
    for label, image in zip(population.train.labels.tolist(), images, strict=True):
        found.setdefault(population.class_names[label], []).append(image.tobytes())
    return {name: sorted(pictures) for name, pictures in found.items()}


def test_a_population_split_anew_has_the_same_examples_with_other_clients(tmp_path: Path) -> None:
    before = make_tiny_population(tmp_path / "tiny")
    split = Choice("iid", {"num_clients": 11})
    path = materialize_partition(before, split, 0, tmp_path / "cache")
    after = open_population(path)
    assert describe_partition(after).num_clients == 11
    assert images_by_class(after) == images_by_class(before)
    assert after.test.features[IMAGES].tobytes() == before.test.features[IMAGES].tobytes()
    assert after.test.labels.tolist() == before.test.labels.tolist()
    assert materialize_partition(before, split, 0, tmp_path / "cache") == path
    assert materialize_partition(before, split, 1, tmp_path / "cache") != path


def test_an_experiment_names_the_partitioner_and_what_is_wrong_with_it() -> None:
    experiment = load_experiment(
        "glyphs-tiny", ["data.partition={name = 'dirichlet', num_clients = 6, concentration = 0.3}"]
    )
    assert experiment.data.partition is not None
    assert experiment.data.partition.choice.settings == {"num_clients": 6, "concentration": 0.3}
    for value, words in (
        ("{name = 'zip'}", "there is no partitioner 'zip' here, only iid, dirichlet"),
        ("{name = 'iid', clients = 3}", "partitioner 'iid' has no setting 'clients'; it has num_clients"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            load_experiment("glyphs-tiny", [f"data.partition={value}"])


def test_few_classes_gives_the_numbers_that_fedss_gives_for_stanford_online_products() -> None:
    """Section 4.3: 59,551 images of 11,318 classes; 596 clients of 100 images in 20 classes."""
    rng = np.random.default_rng(0)
    counts = np.full(11_318, 2)
    np.add.at(counts, rng.integers(0, len(counts), 59_551 - counts.sum()), 1)
    pool = Pool(np.repeat(np.arange(len(counts)), counts), np.zeros(59_551, np.int64))
    found = owners("few_classes", pool, examples_per_client=100)
    sizes = np.bincount(found)
    assert (len(sizes), sizes.sum()) == (596, 59_551)
    # The largest client has not twice the images of the smallest.
    assert sizes.max() < 2 * sizes.min()
    pairs = np.unique(np.stack([found, pool.labels]), axis=1)
    assert set(np.bincount(pairs[0]).tolist()) == {20}


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    classes=st.integers(1, 8),
    per_class=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_few_classes_gives_every_example_to_somebody_and_nobody_too_many_classes(
    counts: list[int], classes: int, per_class: int, seed: int
) -> None:
    pool = Pool(np.repeat(np.arange(len(counts)), counts), np.zeros(sum(counts), np.int64))
    found = owners(
        "few_classes", pool, seed, examples_per_client=classes * per_class, classes_per_client=classes
    )
    assert found.min() == 0
    assert set(found.tolist()) == set(range(found.max() + 1))
    pairs = np.unique(np.stack([found, pool.labels]), axis=1)
    assert np.bincount(pairs[0]).max() <= classes
