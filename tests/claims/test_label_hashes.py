"""What FedMLH rests on: 2-universal hashes, Lemma 2, Theorem 2, and the count sketch."""

from __future__ import annotations

import numpy as np
import pytest

from ondevice.client.samplers import SAMPLERS
from ondevice.contract.choice import Choice, UnknownChoice, chosen
from ondevice.contract.hashing.label_hashes import PRIME, LabelHashes, enough_buckets
from server_sim.metrics.count_sketch import CountSketch, retrieved_means
from server_sim.schemes.fedmlh import FedMLH


@pytest.mark.parametrize("num_buckets", [2, 13, 100])
def test_two_classes_share_a_bucket_at_most_once_in_b_functions(num_buckets: int) -> None:
    """Over the choice of the function, for pairs that are near, far, and multiples of each other."""
    functions = 20_000
    tables = 1000
    pairs = np.array([[0, 1], [7, 7 + num_buckets], [3, 3_000_003], [5, PRIME - 1]])
    collisions = np.zeros(len(pairs))
    for seed in range(functions // tables):
        buckets = LabelHashes(tables, num_buckets, seed).buckets(pairs.reshape(-1)).reshape(4, 2, tables)
        collisions += (buckets[:, 0] == buckets[:, 1]).sum(1)
    share, deviation = 1 / num_buckets, (1 / num_buckets / functions) ** 0.5
    assert (collisions / functions < share + 4 * deviation).all()
    # And not only rarely: they are independent, too.
    assert (collisions / functions > share - 4 * deviation).all()


def test_one_class_falls_into_every_bucket_alike() -> None:
    found = np.concatenate([LabelHashes(1000, 10, seed).buckets(np.array([4711]))[0] for seed in range(20)])
    counts = np.bincount(found, minlength=10)
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-square of 9 degrees, 0.1 %


@pytest.mark.parametrize(("num_classes", "num_tables"), [(500, 2), (3993, 4), (2000, 3)])
def test_lemma_2_no_two_classes_share_all_buckets(num_classes: int, num_tables: int) -> None:
    failure = 0.05
    num_buckets = enough_buckets(num_classes, num_tables, failure)
    seeds = 60
    collided = 0
    for seed in range(seeds):
        buckets = LabelHashes(num_tables, num_buckets, seed).buckets(np.arange(num_classes))
        collided += len(np.unique(buckets, axis=0)) < num_classes
    # Binomial(60, 0.05) is above 9 once in a thousand times.
    assert collided <= 9
    # A hundredth of the buckets is far too few.
    few = LabelHashes(num_tables, max(1, num_buckets // 100), 0).buckets(np.arange(num_classes))
    assert len(np.unique(few, axis=0)) < num_classes


@pytest.mark.parametrize("seed", range(5))
def test_theorem_2_hashing_never_takes_two_clients_further_apart(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(40):
        num_classes = int(random.integers(2, 200))
        num_buckets = int(random.integers(1, num_classes + 1))
        pi = random.dirichlet(np.full(num_classes, random.choice([0.1, 1.0, 10.0])), 2) + 1e-9
        pi /= pi.sum(1, keepdims=True)
        buckets = LabelHashes(1, num_buckets, int(random.integers(1 << 30))).buckets(np.arange(num_classes))[
            :, 0
        ]
        omega = np.stack([np.bincount(buckets, each, num_buckets) for each in pi])
        held = omega[0] > 0
        before = float((pi[0] * np.log(pi[0] / pi[1])).sum())
        after = float((omega[0, held] * np.log(omega[0, held] / omega[1, held])).sum())
        assert after <= before + 1e-12


def test_the_sketch_finds_heavy_hitters() -> None:
    random = np.random.default_rng(0)
    amounts = random.pareto(1.1, 5000)
    amounts[:3] = 2000, 1500, 1000
    ids = np.arange(5000)
    sketch = CountSketch(LabelHashes(9, 512, seed=3))
    sketch.insert(ids[:2500], amounts[:2500])
    sketch.insert(ids[2500:], amounts[2500:])
    rest = np.sqrt((np.sort(amounts)[: 5000 - 512 // 4] ** 2).sum())
    # Theorem 1 of Charikar et al.: off by no more than 8 |tail| / sqrt(B), for most.
    off = np.abs(sketch.estimate(ids) - amounts)
    assert (off < 8 * rest / 512**0.5).mean() > 0.99
    assert list(np.argsort(-sketch.estimate(ids))[:3]) == list(np.argsort(-amounts)[:3])
    # The mean is right on average over the hash functions, and noisier for one of them.
    means = [_mean_estimate(amounts, seed) for seed in range(200)]
    assert np.mean(means) == pytest.approx(amounts[0], rel=0.05)


def _mean_estimate(amounts: np.ndarray, seed: int) -> float:
    sketch = CountSketch(LabelHashes(3, 512, seed))
    sketch.insert(np.arange(len(amounts)), amounts)
    return float(sketch.estimate(np.array([0]), by="mean")[0])


def test_retrieval_is_the_mean_over_a_class_s_buckets() -> None:
    hashes = LabelHashes(3, 4, seed=1)
    values = np.random.default_rng(0).standard_normal((2, 12), np.float32)
    outputs = hashes.outputs(np.arange(7))
    expected = values[:, outputs].mean(2)
    np.testing.assert_allclose(retrieved_means(values, outputs), expected, rtol=1e-6)


def test_hash_functions_that_are_not_the_server_s_are_refused() -> None:
    told = FedMLH(num_tables=4, num_buckets=250, hash_seed=5).sampler()
    found = chosen(SAMPLERS, told, "sampler").outputs(np.arange(9))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(found, LabelHashes(4, 250, 5).outputs(np.arange(9)))
    for name, value in (("seed", 6), ("num_buckets", 251), ("num_tables", 3), ("fingerprint", 0)):
        with pytest.raises(UnknownChoice, match="client and server are of different versions"):
            chosen(SAMPLERS, Choice(told.name, {**told.settings, name: value}), "sampler")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 5, 0), "num_tables is 0; expected 1 to 1024"),
        ((2, PRIME, 0), f"num_buckets is {PRIME}; expected 1 to {PRIME - 1}"),
        ((2, 5, -1), "seed is -1; expected 0 to"),
    ],
)
def test_hashes_out_of_range_are_refused(settings: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelHashes(*settings)


def test_a_class_that_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ValueError, match="classes reach from -1 to 2; expected 0 to"):
        LabelHashes(2, 5, 0).buckets(np.array([2, -1]))
    with pytest.raises(ValueError, match="num_classes is 1"):
        enough_buckets(1, 4, 0.1)
