"""Data sets in their published formats: what is read from small ones, and what is said of missing or damaged files."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.published_formats import (
    CELLS,
    NUM_CLASSES,
    PER_CLIENT,
    PUBLISHED,
    TEST_PER_CLASS,
    USERS,
    write_inaturalist_tables,
    write_online_products,
)
from PIL import Image

from ondevice.contract.vocabulary import IMAGES
from server_sim.data.data_sets import DATA_SETS, DataSetError, PublishedDataSet, materialize
from server_sim.data.image_files import ImageFiles
from server_sim.data.partition_statistics import describe_partition
from server_sim.data.population import Population, open_population
from server_sim.data.population_files import PopulationError
from server_sim.data.published import extreme_classification
from server_sim.data.published.inaturalist_splits import balanced

Read = Callable[[str], Population]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    for name, write in PUBLISHED.items():
        write(folder / name)
    return folder


@pytest.fixture
def read(sources: Path, tmp_path: Path) -> Read:
    return lambda name: open_population(materialize(name, sources / name, tmp_path))


def file_colours(population: Population, split: str) -> list[list[int]]:
    """The mean colour of every image, read from its file in the plainest way."""
    images = (population.train if split == "train" else population.test).features[IMAGES]
    assert isinstance(images, ImageFiles)
    paths = [images.root / path.decode() for path in images.paths.tolist()]
    return [np.asarray(Image.open(path)).mean((0, 1)).round().astype(int).tolist() for path in paths]


def test_every_published_data_set_has_a_small_one_in_its_format() -> None:
    # Those of the Extreme Classification repository are in `tests/claims/test_fedmlh.py`, texts in `test_stack_overflow.py`.
    elsewhere = {published.name for published in extreme_classification.PUBLISHED}
    elsewhere |= {"stack-overflow-10k", "stack-overflow-80k"}
    assert set(PUBLISHED) | elsewhere == {
        name for name, entry in DATA_SETS.items() if isinstance(entry, PublishedDataSet)
    }


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not name.startswith("cifar")])
def test_images_stay_files_and_come_with_the_classes_that_the_tables_say(read: Read, name: str) -> None:
    population = read(name)
    for split, examples in (("train", population.train), ("test", population.test)):
        by_class: dict[int, list[list[int]]] = {}
        for label, colour in zip(examples.labels.tolist(), file_colours(population, split), strict=True):
            by_class.setdefault(label, []).append(colour)
        for colours in by_class.values():
            # The colour is the class's but for noise; two classes differ by more.
            assert np.ptp(colours, axis=0).max() <= 20
    assert not list(population.directory.glob("*.jpg"))
    size = sum(file.stat().st_size for file in population.directory.iterdir())
    assert size < 200 * (len(population.train) + len(population.test)) + 20_000


def test_landmarks_have_the_authors_of_the_table_as_clients(read: Read) -> None:
    population = read("landmarks-user-160k")
    assert population.client_names == tuple(sorted(USERS))
    assert population.num_classes == NUM_CLASSES
    assert len(population.test) == NUM_CLASSES * TEST_PER_CLASS
    sizes = {name: population.num_examples(k) for k, name in enumerate(population.client_names)}
    assert sizes == {user: PER_CLIENT + k for k, user in enumerate(USERS)}
    # Ids are the published numbers: class 10 does not come before class 2.
    assert [int(name) for name in population.class_names] == list(range(NUM_CLASSES))
    assert population.image_shape == (3, 224, 224)


def test_inaturalist_has_users_or_cells_as_clients(read: Read) -> None:
    assert read("inaturalist-user-120k").client_names == tuple(sorted(USERS))
    for label in ("30k", "3k", "1k", "100"):
        population = read(f"inaturalist-geo-{label}")
        assert population.client_names == tuple(sorted(CELLS))
        assert population.image_shape == (3, 299, 299)


def test_products_of_the_test_are_unseen_and_clients_hold_twenty_classes(read: Read) -> None:
    population = read("stanford-online-products")
    assert not set(population.test.labels.tolist()) & set(population.train.labels.tolist())
    assert population.test.labels.min() == population.num_classes
    spread = describe_partition(population).classes_per_client
    assert (spread.min, spread.max) == (20, 20)


def test_imagenet_is_split_eighty_to_twenty_in_every_class(read: Read, sources: Path) -> None:
    population = read("imagenet-21k")
    for label, name in enumerate(population.class_names):
        total = len(list((sources / "imagenet-21k" / name).iterdir()))
        assert (population.test.labels == label).sum() == round(0.2 * total)
        assert (population.train.labels == label).sum() == total - round(0.2 * total)
    assert describe_partition(population).classes_per_client.max == 20


@pytest.mark.parametrize(
    ("name", "file", "label_bytes"), [("cifar-10", "test_batch", 1), ("cifar-100", "test", 2)]
)
def test_cifar_has_the_pixels_of_its_files(
    read: Read, sources: Path, name: str, file: str, label_bytes: int
) -> None:
    population = read(name)
    path = next((sources / name).rglob(f"{file}.bin"))
    records = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, label_bytes + 3072)
    assert population.test.labels.tolist() == records[:, label_bytes - 1].tolist()
    np.testing.assert_array_equal(
        population.test.features[IMAGES].reshape(-1, 3072), records[:, label_bytes:]
    )
    assert population.class_names[7] == "07 class_7"
    assert len(population.client_ids) == 100


def test_a_split_made_from_the_tables_is_balanced_and_goes_by_user_or_place(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_inaturalist_tables(source)
    by_user = open_population(materialize("inaturalist-user-120k", source, tmp_path / "cache"))
    locations = {
        entry["id"]: entry for entry in json.loads((source / "train2017_locations.json").read_text())
    }
    files = {
        entry["file_name"]: entry["id"]
        for entry in json.loads((source / "train2017.json").read_text())["images"]
    }
    # Two classes of 101 images are cut to 100 each, of which one has no user; the class of 7 is gone.
    assert by_user.num_classes == 2
    images = by_user.train.features[IMAGES]
    assert isinstance(images, ImageFiles)
    for client, name in enumerate(by_user.client_names):
        start, stop = (sum(by_user.num_examples(k) for k in range(last)) for last in (client, client + 1))
        for path, place in zip(images.paths[start:stop], by_user.places[start:stop], strict=True):
            location = locations[files[path.decode()]]
            assert str(location["user_id"]) == name
            known = location["lat"] is not None
            assert np.isfinite(place).all() == known
            assert not known or place.tolist() == [location["lat"], location["lon"]]
    by_cell = open_population(materialize("inaturalist-geo-100", source, tmp_path / "cache"))
    assert max(by_cell.num_examples(k) for k in by_cell.client_ids) <= 100
    assert set(np.bincount(by_user.train.labels).tolist()) <= {99, 100}
    assert len(by_user.test) == 6


@pytest.mark.parametrize(
    "locations", ['{"id": 1}', '[{"user_id": 1}]', "[[1]]", '[{"id": 3, "lat": "N", "lon": 0}]']
)
def test_a_table_of_places_that_is_none_is_told(tmp_path: Path, locations: str) -> None:
    write_inaturalist_tables(tmp_path / "source")
    (tmp_path / "source/train2017_locations.json").write_text(locations)
    with pytest.raises(
        PopulationError, match=r"locations\.json is not like .* expected a list of id, lat, lon and user_id"
    ):
        materialize("inaturalist-geo-100", tmp_path / "source", tmp_path / "cache")


def test_balancing_keeps_as_many_of_every_class_and_drops_the_small_ones() -> None:
    classes = ["a"] * 7 + ["b"] * 5 + ["c"] * 4
    kept = balanced(classes, np.random.default_rng(0), per_class=5)
    assert [classes[number] for number in kept.tolist()] == ["a"] * 5 + ["b"] * 5
    assert len(set(kept.tolist())) == 10


def test_the_population_is_made_once_and_anew_when_the_table_changes(sources: Path, tmp_path: Path) -> None:
    source = shutil.copytree(sources / "landmarks-user-160k", tmp_path / "source")
    first = materialize("landmarks-user-160k", source, tmp_path / "cache")
    assert materialize("landmarks-user-160k", source, tmp_path / "cache") == first
    table = source / "federated_train.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]) + "\n")
    assert materialize("landmarks-user-160k", source, tmp_path / "cache") != first


def remove(name: str) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        found = next(iter(sorted(source.rglob(name))))
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return damage


def without_columns(name: str, *columns: str) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        table = next(source.rglob(name))
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        kept = [column for column in rows[0] if column not in columns]
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, kept, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)

    return damage


def cut(name: str, num_bytes: int = 5) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        found = next(source.rglob(name))
        found.write_bytes(found.read_bytes()[:-num_bytes])

    return damage


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (
            "landmarks-user-160k",
            remove("federated_train.csv"),
            "federated_train.csv .* does not exist; it comes with",
        ),
        ("landmarks-user-160k", remove("train"), "train does not exist"),
        (
            "landmarks-user-160k",
            remove("*.jpg"),
            "1 of 81 images are missing, the first at .*jpg; unpack the images",
        ),
        (
            "landmarks-user-160k",
            without_columns("test.csv", "class"),
            "lacks class; is it the published file",
        ),
        (
            "inaturalist-geo-3k",
            remove("*geo_3k.csv"),
            "no federated_train_geo_3k.csv .* train2017.json, val2017",
        ),
        ("inaturalist-geo-3k", remove("test.csv"), "inaturalist-geo/test.csv does not exist"),
        (
            "inaturalist-user-120k",
            remove("*.jpg"),
            "1 of 81 images are missing, the first .*jpg, which is nowhere",
        ),
        ("inaturalist-user-120k", without_columns("*user_120k.csv", "user_id"), "lacks user_id"),
        ("cifar-10", remove("data_batch_4.bin"), "data_batch_4.bin does not exist"),
        ("cifar-10", cut("data_batch_4.bin"), "has 153645 bytes; expected a multiple of 3073"),
        (
            "cifar-100",
            cut("fine_label_names.txt", len("class_99\n\n")),
            "has the class 99, of 99 that have names",
        ),
        ("stanford-online-products", remove("Ebay_test.txt"), "Ebay_test.txt does not exist"),
        ("stanford-online-products", remove("bicycle_final"), "510 of 510 images are missing"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    sources: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    source = shutil.copytree(sources / name, tmp_path / "source")
    damage(source)
    with pytest.raises(PopulationError, match=words):
        materialize(name, source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_source_that_is_not_given_or_empty_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match=r"data\.source is not given, and imagenet-21k is read from"):
        materialize("imagenet-21k", None, tmp_path)
    with pytest.raises(PopulationError, match=r"data\.source is .*nowhere, which is no folder"):
        materialize("imagenet-21k", tmp_path / "nowhere", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PopulationError, match="has no folders, and should have one per class"):
        materialize("imagenet-21k", tmp_path / "empty", tmp_path)


def test_products_may_lie_in_the_source_itself(tmp_path: Path) -> None:
    write_online_products(tmp_path / "above", num_classes=6)
    source = tmp_path / "above" / "Stanford_Online_Products"
    population = open_population(materialize("stanford-online-products", source, tmp_path / "cache"))
    assert population.num_classes == 6
