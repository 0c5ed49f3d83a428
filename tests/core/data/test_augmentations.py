"""Augmentations: boxes inside the image, of the sizes that the papers give, and the pixels of a plain resize and crop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.data.published_formats import write_image
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ondevice.contract.choice import Choice, UnknownChoice, chosen
from ondevice.contract.portable_random import PortableRandom
from server_sim.data.augmentations import AUGMENTATIONS, Augmentation, Box
from server_sim.data.augmentations.random_crop import RandomCrop
from server_sim.data.augmentations.scale_and_aspect import ScaleAndAspect
from server_sim.data.image_files import load_view

EVERY = [build() for build in AUGMENTATIONS.values()]


def share(box: Box, width: int, height: int) -> float:
    return (box.right - box.left) * (box.lower - box.upper) / (width * height)


@pytest.mark.parametrize("augmentation", EVERY, ids=AUGMENTATIONS)
@given(width=st.integers(1, 5000), height=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1))
def test_a_box_lies_inside_and_the_same_draws_give_the_same(
    augmentation: Augmentation, width: int, height: int, seed: int
) -> None:
    drawn = augmentation.drawn(width, height, PortableRandom(seed))
    assert drawn == augmentation.drawn(width, height, PortableRandom(seed))
    for box in (drawn, augmentation.tested(width, height)):
        assert -1e-9 <= box.left < box.right <= width + 1e-9
        assert -1e-9 <= box.upper < box.lower <= height + 1e-9
    assert augmentation.is_random or drawn == augmentation.tested(width, height)


def test_a_random_crop_is_a_224th_of_256_and_reaches_every_place() -> None:
    crop = RandomCrop()
    random = PortableRandom(3)
    places = set()
    for _ in range(4000):
        box = crop.drawn(512, 1024, random)
        assert share(box, 512, 1024) == pytest.approx((224 / 256) ** 2)
        places.add((box.left / 2, box.upper / 4))
    assert {x for x, _ in places} == {y for _, y in places} == set(range(33))


def test_area_and_shape_are_evenly_distributed_between_their_bounds() -> None:
    augmentation = ScaleAndAspect()
    random = PortableRandom(5)
    boxes = [augmentation.drawn(400, 400, random) for _ in range(3000)]
    areas = np.array([share(box, 400, 400) for box in boxes])
    shapes = np.array([(box.right - box.left) / (box.lower - box.upper) for box in boxes])
    assert 0.08 <= areas.min() < 0.1
    assert 0.9 < areas.max() <= 1
    assert 0.75 <= shapes.min() < 0.76
    assert 1.32 < shapes.max() <= 4 / 3 + 1e-9
    # Small parts always fit, whatever their shape: there the distribution is the drawn one.
    small = areas[areas < 0.5]
    assert np.histogram(small, 3, (0.08, 0.5))[0].min() / len(small) == pytest.approx(1 / 3, abs=0.05)


def test_where_nothing_fits_the_largest_part_of_an_allowed_shape_is_taken() -> None:
    box = ScaleAndAspect(least_area=1.0).drawn(1000, 100, PortableRandom(0))
    assert (box.lower - box.upper, box.right - box.left) == pytest.approx((100, 400 / 3))
    assert (box.left + box.right, box.upper + box.lower) == pytest.approx((1000, 100))


@pytest.mark.parametrize("size", [(300, 200), (900, 700), (90, 120)])
def test_the_pixels_are_those_of_resizing_the_whole_image_and_cutting_the_crop_out(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8))
    smooth.resize(size, Image.Resampling.BICUBIC).save(tmp_path / "image.jpg", quality=95)
    crop = RandomCrop(64, 48)
    seen = load_view(tmp_path / "image.jpg", crop, PortableRandom(9))
    random = PortableRandom(9)
    x, y = random.below(17), random.below(17)
    whole = np.asarray(Image.open(tmp_path / "image.jpg").resize((64, 64), Image.Resampling.BILINEAR))
    expected = whole[y : y + 48, x : x + 48].transpose(2, 0, 1)
    # A large JPEG is decoded at a fraction of its size: other rounding, the same picture.
    assert np.abs(seen.astype(int) - expected).mean() < 1.5
    assert np.abs(seen.astype(int) - expected).max() < 16


def test_images_without_colours_and_with_transparency_get_three_channels(tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P", "CMYK"):
        path = tmp_path / f"{mode}.{'png' if mode != 'CMYK' else 'jpg'}"
        Image.new(mode, (30, 20), 90 if mode in "LP" else (90, 90, 90, 90)).save(path)
        assert load_view(path, RandomCrop(16, 8), None).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice("random_crop", {"resized": 200}), "resized is 200; expected 224"),
        (Choice("scale_and_aspect", {"least_area": 0.0}), "least_area is 0.0; expected a fraction above 0"),
        (Choice("scale_and_aspect", {"most_elongated": 0.5}), "most_elongated is 0.5; expected 1 or more"),
        (Choice("center_crop", {"size": 0}), "size is 0; expected 1 pixel or more"),
        (Choice("mixup"), "there is no augmentation 'mixup' here, only random_crop"),
    ],
)
def test_settings_that_mean_nothing_are_refused(choice: Choice, words: str) -> None:
    with pytest.raises(UnknownChoice, match=words):
        chosen(AUGMENTATIONS, choice, "augmentation")


def test_a_small_image_is_enlarged(tmp_path: Path) -> None:
    write_image(tmp_path / "small.jpg", 3, size=(5, 4))
    assert load_view(tmp_path / "small.jpg", ScaleAndAspect(size=32), PortableRandom(1)).shape == (3, 32, 32)
