"""A population on disk: who owns what, what a reader refuses, and what a writer leaves behind."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ondevice.contract.vocabulary import IntArray
from server_sim.data import population, population_files
from server_sim.data.population import Population, Records, open_population, write_population
from server_sim.data.population_files import PopulationError

ARRAYS = ("client_images", "client_labels", "client_offsets", "test_images", "test_labels")

# Image i is filled with the number i, so that an image tells which record it came from.
RECORDS = Records(
    classes=["cat", "dog", "cat", "owl", "dog", "cat", "bat", "dog"],
    users=["zoe", "ann", "ann", "zoe", "zoe", "", "", ""],
    is_test=[False, False, False, False, False, True, True, True],
)


def images_of(rows: IntArray) -> NDArray[np.uint8]:
    return np.broadcast_to(rows.astype(np.uint8)[:, None, None, None], (len(rows), 3, 4, 5)).copy()


def write(directory: Path, records: Records = RECORDS, seed: int = 7) -> Path:
    write_population(
        directory, records, images_of, name="pets", image_shape=(3, 4, 5), seed=seed, recipe={"from": "here"}
    )
    return directory


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write(tmp_path / "pets")


def record_numbers(images: NDArray[np.uint8]) -> list[int]:
    return [int(number) for number in images[:, 0, 0, 0]]


def test_every_client_gets_its_own_images_and_labels(pets: Path) -> None:
    opened = open_population(pets)
    assert opened.client_names == ("ann", "zoe")
    assert opened.client_ids == (0, 1)
    ann, zoe = opened.client_examples(0), opened.client_examples(1)
    assert record_numbers(ann.features["images"]) == [1, 2]
    assert [opened.class_names[label] for label in ann.labels] == ["dog", "cat"]
    assert record_numbers(zoe.features["images"]) == [0, 3, 4]
    assert [opened.class_names[label] for label in zoe.labels] == ["cat", "owl", "dog"]
    assert [opened.num_examples(client) for client in opened.client_ids] == [2, 3]
    assert (opened.name, opened.image_shape, opened.recipe) == ("pets", (3, 4, 5), {"from": "here"})


def test_train_is_the_union_of_the_clients_and_test_belongs_to_nobody(pets: Path) -> None:
    opened = open_population(pets)
    assert sorted(record_numbers(opened.train.features["images"])) == [0, 1, 2, 3, 4]
    assert record_numbers(opened.test.features["images"]) == [5, 6, 7]
    assert [opened.class_names[label] for label in opened.test.labels] == ["cat", "bat", "dog"]


def test_classes_that_only_the_test_holds_come_after_the_columns_of_w(pets: Path) -> None:
    opened = open_population(pets)
    assert opened.num_classes == 3
    assert opened.class_names == ("cat", "dog", "owl", "bat")
    assert opened.train.labels.max() == 2
    assert opened.test.labels.tolist() == [0, 3, 1]


def test_more_images_than_fit_one_block_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population, "EXAMPLES_PER_BLOCK", 2)
    seen: list[tuple[int, int]] = []
    write_population(
        tmp_path / "pets",
        RECORDS,
        images_of,
        name="pets",
        image_shape=(3, 4, 5),
        seed=0,
        recipe={},
        progress=lambda done, total: seen.append((done, total)),
    )
    assert record_numbers(open_population(tmp_path / "pets").train.features["images"]) == [1, 2, 0, 3, 4]
    assert seen == [(2, 8), (4, 8), (5, 8), (7, 8), (8, 8)]


def test_private_seeds_are_64_bit_and_depend_on_data_set_and_client_alone(tmp_path: Path) -> None:
    one, same, other = (
        open_population(write(tmp_path / name, seed=seed)) for name, seed in (("a", 7), ("b", 7), ("c", 8))
    )
    assert [one.private_seed(client) for client in (0, 1)] == [1931433665893741079, 7987959340788761130]
    assert one.private_seed(1) == same.private_seed(1)
    assert one.private_seed(1) != other.private_seed(1)


@pytest.mark.parametrize("client_id", [-1, 2])
def test_a_client_that_does_not_exist_is_named(pets: Path, client_id: int) -> None:
    opened = open_population(pets)
    for question in (Population.client_examples, Population.num_examples, Population.private_seed):
        with pytest.raises(
            IndexError, match=f"client {client_id} of population pets: there are clients 0 to 1"
        ):
            question(opened, client_id)


def test_an_open_population_cannot_be_written_to(pets: Path) -> None:
    examples = open_population(pets).client_examples(0)
    with pytest.raises(ValueError, match="read-only"):
        examples.features["images"][0] = 0
    with pytest.raises(ValueError, match="read-only"):
        examples.labels[0] = 0


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("array", ARRAYS)
def test_one_changed_bit_is_found_and_the_file_named(pets: Path, array: str) -> None:
    open_population(pets)
    flip_last_byte(pets / f"{array}.npy")
    with pytest.raises(PopulationError, match=f"{array}.npy has sha256 .* delete the folder"):
        open_population(pets)


def test_a_file_is_hashed_once_and_again_only_when_its_time_changes(pets: Path) -> None:
    path = pets / "test_images.npy"
    open_population(pets)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    flip_last_byte(path)
    os.utime(path, ns=times)
    open_population(pets)  # the memo vouches for a file of this size and time
    os.utime(path, ns=(times[0], times[1] + 1))
    with pytest.raises(PopulationError, match="sha256"):
        open_population(pets)


def test_a_damaged_memo_only_means_hashing_again(pets: Path) -> None:
    (pets / population_files.VERIFIED).write_text("{ not json")
    open_population(pets)
    assert set(json.loads((pets / population_files.VERIFIED).read_text())) == {
        f"{name}.npy" for name in ARRAYS
    }


def test_a_truncated_file_is_named_with_both_sizes(pets: Path) -> None:
    path = pets / "client_images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PopulationError, match=r"client_images.npy has 427 bytes, manifest.json says 428"):
        open_population(pets)


def test_a_missing_file_and_a_missing_folder_are_named(pets: Path) -> None:
    (pets / "test_labels.npy").unlink()
    with pytest.raises(PopulationError, match=r"test_labels\.npy is missing"):
        open_population(pets)
    with pytest.raises(PopulationError, match="is not a population's folder"):
        open_population(pets.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format version 2, this program reads 1"),
        ({"seed": "seven"}, "seed = 'seven', expected int"),
        ({"class_names": None}, "class_names = None, expected list"),
        (
            {"image_shape": [1, 4, 5]},
            r"client_images.npy holds uint8 \[5, 3, 4, 5\], .* says uint8 \[5, 1, 4, 5\]",
        ),
        ({"client_names": ["ann"]}, r"client_offsets.npy holds int64 \[3\], .* says int64 \[2\]"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(pets: Path, change: dict[str, object], message: str) -> None:
    path = pets / population_files.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PopulationError, match=message):
        open_population(pets)


@pytest.mark.parametrize("text", ["", "[1, 2]", "null", '{"name": '])
def test_a_manifest_that_is_no_manifest_is_refused(pets: Path, text: str) -> None:
    (pets / population_files.MANIFEST).write_text(text)
    with pytest.raises(PopulationError, match=r"manifest\.json"):
        open_population(pets)


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken(rows: IntArray) -> NDArray[np.uint8]:
        raise OSError(f"no picture {rows[0]}")

    with pytest.raises(OSError, match="no picture"):
        write_population(
            tmp_path / "pets", RECORDS, broken, name="pets", image_shape=(3, 4, 5), seed=0, recipe={}
        )
    assert list(tmp_path.iterdir()) == []


def test_images_of_another_shape_are_refused_rather_than_stretched(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"images_of gave uint8 \[5, 3, 4, 5\] for 5 records; expected .*\[5, 3, 8, 5\]"
    ):
        write_population(
            tmp_path / "pets", RECORDS, images_of, name="pets", image_shape=(3, 8, 5), seed=0, recipe={}
        )
    assert list(tmp_path.iterdir()) == []


def test_a_population_is_never_overwritten(pets: Path) -> None:
    before = (pets / population_files.MANIFEST).read_bytes()
    with pytest.raises(FileExistsError, match="exists; remove it first"):
        write(pets, seed=8)
    assert (pets / population_files.MANIFEST).read_bytes() == before


def test_the_slower_of_two_writers_gives_way_and_clears_up(tmp_path: Path) -> None:
    def overtaken(rows: IntArray) -> NDArray[np.uint8]:
        if not (tmp_path / "pets").exists():
            write(tmp_path / "pets")
        return images_of(rows)

    with pytest.raises(FileExistsError, match="finished by another process"):
        write_population(
            tmp_path / "pets", RECORDS, overtaken, name="late", image_shape=(3, 4, 5), seed=0, recipe={}
        )
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]
    assert open_population(tmp_path / "pets").name == "pets"


def test_records_need_a_class_a_user_and_a_split_each_and_both_splits() -> None:
    with pytest.raises(ValueError, match="2 classes, 1 users and 2 splits"):
        Records(["a", "b"], ["x"], [False, True])
    with pytest.raises(ValueError, match="no test record"):
        Records(["a"], ["x"], [False])
    with pytest.raises(ValueError, match="no train record"):
        Records(["a"], ["x"], [True])
