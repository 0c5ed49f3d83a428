"""EMD as the paper defines it, and the sizes that describe a split."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from server_sim.data.partition_statistics import Spread, client_figures, describe_partition, plot
from server_sim.data.population import Population, Records, open_population, write_population


def population_of(directory: Path, clients: Sequence[str]) -> Population:
    """Client k holds one image per letter of clients[k]; the letters are the classes."""
    classes = [letter for held in clients for letter in held]
    users = [f"{client:03d}" for client, held in enumerate(clients) for _ in held]
    write_population(
        directory / "p",
        Records([*classes, classes[0]], [*users, ""], [False] * len(classes) + [True]),
        lambda rows: np.zeros((len(rows), 1, 1, 1), dtype=np.uint8),
        name="letters",
        image_shape=(1, 1, 1),
        seed=0,
        recipe={},
    )
    return open_population(directory / "p")


def test_a_client_that_holds_everything_is_at_distance_zero(tmp_path: Path) -> None:
    population = population_of(tmp_path, ["abcabdd"])
    assert describe_partition(population).mean_emd == pytest.approx(0, abs=1e-12)


def test_clients_of_one_class_each_are_almost_two_away(tmp_path: Path) -> None:
    # Each holds 1/20 of the population: |1 - 1/20| for its class and 19/20 for the others.
    population = population_of(tmp_path, [letter * 3 for letter in "abcdefghijklmnopqrst"])
    assert describe_partition(population).mean_emd == pytest.approx(2 * 19 / 20)


def test_emd_is_the_distance_weighted_by_the_clients_sizes(tmp_path: Path) -> None:
    clients = ["aab", "bbbbcc", "d"]
    population = population_of(tmp_path, clients)
    whole = np.array(["".join(clients).count(letter) for letter in "abcd"]) / 10
    own = np.array([[held.count(letter) / len(held) for letter in "abcd"] for held in clients])
    emd = np.abs(own - whole).sum(axis=1)
    np.testing.assert_allclose(client_figures(population).emd, emd, rtol=1e-12)
    mean = describe_partition(population).mean_emd
    assert mean == pytest.approx((3 * emd[0] + 6 * emd[1] + 1 * emd[2]) / 10)


def test_sizes_and_classes_per_client_are_counted(tmp_path: Path) -> None:
    statistics = describe_partition(population_of(tmp_path, ["aab", "bbbbcc", "d"]))
    assert (statistics.num_clients, statistics.num_classes) == (3, 4)
    assert (statistics.num_train_examples, statistics.num_test_examples) == (10, 1)
    assert statistics.examples_per_client == Spread(min=1, median=3.0, mean=10 / 3, max=6)
    assert statistics.classes_per_client == Spread(min=1, median=2.0, mean=5 / 3, max=2)


@pytest.mark.parametrize("clients", [["a"], ["aab", "bbbbcc", "d"]])
def test_the_plot_is_a_picture(tmp_path: Path, clients: list[str]) -> None:
    plot(population_of(tmp_path, clients), tmp_path / "split.png")
    with Image.open(tmp_path / "split.png") as picture:
        assert picture.size == (1650, 540)
