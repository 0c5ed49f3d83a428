"""Images that stay files: like an array to whoever asks, the same in every engine, in memory only for a moment."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data.published_formats import PUBLISHED, write_image

from fedss.api.runs import simulate
from ondevice.client.device_files import read_examples, write_examples
from ondevice.contract.choice import Choice
from ondevice.contract.lazy_features import BATCHES_AHEAD, announced, in_round
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import IMAGES, ExampleSet
from server_sim.data import image_files
from server_sim.data.augmentations.center_crop import CenterCrop
from server_sim.data.augmentations.random_crop import RandomCrop
from server_sim.data.data_sets import materialize
from server_sim.data.image_files import ImageFiles, load_view, path_array
from server_sim.data.population import Population, open_population
from server_sim.data.population_files import PopulationError
from server_sim.data.reaugment import materialize_augmentation
from server_sim.data.repartition import materialize_partition

COUNT = 10
CROP = RandomCrop(20, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        write_image(root / f"image {number} ü.jpg", number)
    return root


def files_in(root: Path, augmentation: Any = CROP) -> ImageFiles:
    return ImageFiles(path_array([f"image {number} ü.jpg" for number in range(COUNT)]), root, augmentation)


@pytest.fixture(scope="module")
def landmarks(tmp_path_factory: pytest.TempPathFactory) -> Population:
    folder = tmp_path_factory.mktemp("landmarks")
    PUBLISHED["landmarks-user-160k"](folder / "source")
    path = materialize("landmarks-user-160k", folder / "source", folder)
    crop = Choice("random_crop", {"resized": 20, "size": 16})
    return open_population(materialize_augmentation(open_population(path), crop, folder))


def test_it_is_indexed_like_the_array_that_it_stands_for(folder: Path) -> None:
    files = files_in(folder)
    whole = np.asarray(files)
    assert (whole.shape, whole.dtype, files.ndim) == (files.shape, files.dtype, 4)
    np.testing.assert_array_equal(files[np.array([7, 2, 7])], whole[[7, 2, 7]])
    np.testing.assert_array_equal(files[3:6], whole[3:6])
    np.testing.assert_array_equal(files[8:20], whole[8:])
    np.testing.assert_array_equal(files[4], whole[4])
    np.testing.assert_array_equal(files.part(5, 8)[np.array([0, 2])], whole[[5, 7]])
    assert len({image.tobytes() for image in whole}) == COUNT


def test_what_a_round_sees_is_a_function_of_seed_round_and_example_alone(folder: Path) -> None:
    files = files_in(folder)
    seen = files.in_round(5, 2)[np.arange(COUNT)]
    # In another order, in pieces, prepared or not: the same.
    again = files.in_round(5, 2)
    again.prepare(np.array([1, 3]))
    order = np.random.default_rng(0).permutation(COUNT)
    for part in np.array_split(order, 4):
        np.testing.assert_array_equal(again[part], seen[part])
    for position in range(COUNT):
        random = PortableRandom(5, 2, Purpose.AUGMENTATION + position)
        np.testing.assert_array_equal(
            seen[position], load_view(folder / f"image {position} ü.jpg", CROP, random)
        )
    for other in (files.in_round(5, 3), files.in_round(6, 2), files):
        assert not np.array_equal(other[np.arange(COUNT)], seen)


def test_announced_batches_are_decoded_ahead_and_no_further(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a batch is trained on, the next ones are made in other threads; what is taken leaves memory."""
    decoded: list[str] = []
    threads = set()

    def noted(path: Path, augmentation: Any, random: PortableRandom | None) -> Any:
        decoded.append(path.name)
        threads.add(threading.current_thread())
        return load_view(path, augmentation, random)

    monkeypatch.setattr(image_files, "load_view", noted)
    files = files_in(folder)
    examples = ExampleSet({IMAGES: files}, np.arange(COUNT))  # type: ignore[dict-item]
    batches = [np.array([2 * number, 2 * number + 1]) for number in range(COUNT // 2)]
    for number, batch in enumerate(announced(examples, iter(batches))):
        np.testing.assert_array_equal(batch, batches[number])
        files[batch]
        assert len(files._coming) <= 2 * BATCHES_AHEAD
        assert len(decoded) <= 2 * (number + 1 + BATCHES_AHEAD)
    assert sorted(decoded) == sorted(f"image {number} ü.jpg" for number in range(COUNT))
    assert not files._coming
    assert threading.main_thread() not in threads


def test_arrays_are_left_alone() -> None:
    examples = ExampleSet({IMAGES: np.zeros((4, 1, 2, 2), np.uint8)}, np.arange(4))
    assert in_round(examples, 1, 2) is examples
    batches = iter([np.arange(4)])
    assert announced(examples, batches) is batches


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "does not exist any more"), (b"text", "is not an image"), (b"", "is not an image")],
)
def test_a_file_that_is_gone_or_damaged_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    write_image(tmp_path / "good.jpg", 1)
    if content is not None:
        (tmp_path / "bad.jpg").write_bytes(content)
    files = ImageFiles(path_array(["good.jpg", "bad.jpg"]), tmp_path, CROP)
    files[np.array([0])]
    with pytest.raises(PopulationError, match=f"bad.jpg {words}"):
        files[np.array([0, 1])]


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    write_image(tmp_path / "whole.jpg", 1, size=(64, 64))
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:-900])
    with pytest.raises(PopulationError, match=r"cut.jpg cannot be read .*; replace the file"):
        ImageFiles(path_array(["cut.jpg"]), tmp_path, CROP)[0]


def test_a_partition_deals_the_paths_out_anew_and_another_augmentation_keeps_them(
    landmarks: Population, tmp_path: Path
) -> None:
    dealt = open_population(materialize_partition(landmarks, Choice("iid", {"num_clients": 3}), 0, tmp_path))
    assert dealt.image_shape == landmarks.image_shape == (3, 16, 16)
    before, after = (
        {
            (path, population.class_names[label])
            for path, label in zip(
                population.train.features[IMAGES].paths.tolist(),  # type: ignore[attr-defined]
                population.train.labels.tolist(),
                strict=True,
            )
        }
        for population in (landmarks, dealt)
    )
    assert after <= before
    assert len(after) == len(dealt.train) == 57
    with pytest.raises(ValueError, match="no augmentation 'none'"):
        materialize_augmentation(dealt, Choice("none"), tmp_path)


def test_devices_are_given_the_pixels_of_the_central_crop(folder: Path, tmp_path: Path) -> None:
    files = files_in(folder, CenterCrop(8))
    examples = ExampleSet({IMAGES: files}, np.arange(COUNT))  # type: ignore[dict-item]
    write_examples(tmp_path / "data.safetensors", examples)
    given = read_examples(tmp_path / "data.safetensors").features[IMAGES]
    np.testing.assert_array_equal(given, files.in_round(3, 4)[np.arange(COUNT)])


@pytest.mark.slow  # starts worker processes
def test_every_engine_sees_the_same_augmented_images(landmarks: Population, tmp_path: Path) -> None:
    """The state after two rounds is the same bit for bit, with two epochs and evaluation on the way."""
    changes = {
        "data.population": str(landmarks.directory),
        "model.architecture": "two_convolutions",
        "model.pretrained": None,
        "server.rounds": 2,
        "server.clients_per_round": 3,
        "client.epochs": 2,
        "client.batch_size": 4,
        "evaluation.every": 1,
    }
    states = []
    for engine in ("in-process", "workers"):
        out = tmp_path / engine
        simulate("glyphs-tiny", overrides=changes, out=out, engine=engine, workers=2, cache=tmp_path)
        states.append((out / "state.safetensors").read_bytes())
    assert states[0] == states[1]
