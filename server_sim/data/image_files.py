"""Images that stay the files they are: an index of paths, decoded and cut when an example is asked for.

The data sets of the papers are 100,000s of JPEG files.  As raw pixels of 256 x 256 Landmarks-User-160k would fill 36 GB and
ImageNet-21k 2.8 TB; packing the stored bytes into one file would still copy the whole data set, to save an open() of some
microseconds beside a decoding of milliseconds.  So a population keeps their paths, memory-mapped, and nothing is copied.

Decoding costs CPU, so a few threads do it while the network trains: Pillow lets go of Python's lock as it decodes and
scales.  `prepare` says what will be asked for next.  What is drawn by chance (`augmentations`) is a pure function of the
client's private seed, the round and the example's position, and of nothing that threads or engines could change.

The orientation that a camera wrote into a file is not looked at, as the papers' decoders do not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ondevice.contract.choice import Choice, choice_from_document, chosen
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import IntArray
from server_sim.data.augmentations import AUGMENTATIONS, Augmentation, Box
from server_sim.data.population_files import PopulationError

Pixels = NDArray[np.uint8]
"""[3, size, size], or [N, 3, size, size]"""

CHANNELS = 3
_MOST_THREADS = 4
"""Decoding keeps up with training on far fewer than this."""


class ImageFiles:
    """uint8 [N, 3, size, size], indexed like an array; an image is in memory from when it is prepared until it is taken."""

    dtype = np.dtype(np.uint8)
    itemsize = 1

    def __init__(
        self,
        paths: NDArray[np.bytes_],
        root: Path,
        augmentation: Augmentation,
        chance: tuple[int, int] | None = None,
    ) -> None:
        self.paths = paths
        """[N], relative to the root, UTF-8"""
        self.root = root
        self.augmentation = augmentation
        self._chance = chance
        """Private seed and round; without them the images are those of a test."""
        self._coming: dict[int, Future[Pixels]] = {}

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.paths), CHANNELS, self.augmentation.size, self.augmentation.size)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, start: int, stop: int) -> ImageFiles:
        """Those of one client, still undecoded; the first of them is at position 0."""
        return ImageFiles(self.paths[start:stop], self.root, self.augmentation, self._chance)

    def in_round(self, private_seed: int, round_index: int) -> ImageFiles:
        return ImageFiles(self.paths, self.root, self.augmentation, (private_seed, round_index))

    def prepare(self, positions: IntArray) -> None:
        for position in positions.tolist():
            if position not in self._coming:
                self._coming[position] = _decoders().submit(self._decoded, position)

    def __getitem__(self, which: IntArray | slice | int) -> Pixels:
        """A slice is taken for one of many in a row, as an evaluation asks for them: the next one is prepared."""
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            positions = np.arange(start, stop)
            self.prepare(np.arange(start, min(2 * stop - start, len(self))))
        else:
            positions = np.atleast_1d(np.asarray(which, np.int64))
            self.prepare(positions)
        taken = {position: self._coming.pop(position) for position in set(positions.tolist())}
        images = np.empty((len(positions), *self.shape[1:]), np.uint8)
        for image, position in zip(images, positions.tolist(), strict=True):
            image[:] = taken[position].result()
        return images if isinstance(which, slice) or np.ndim(which) else images[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        """All of them in memory: for the few examples that a device is given."""
        if dtype not in (None, self.dtype) or copy is False:
            raise ValueError("images in files are decoded to a new array of uint8, and no other")
        return self[np.arange(len(self))]

    def _decoded(self, position: int) -> Pixels:
        path = self.root / os.fsdecode(self.paths[position])
        random = self._chance and PortableRandom(*self._chance, Purpose.AUGMENTATION + position)
        return load_view(path, self.augmentation, random or None)


def image_files_entry(root: Path, augmentation: Choice) -> dict[str, Any]:
    """What a population's manifest says of images that stay files."""
    return {"root": str(root), "augmentation": augmentation.to_document()}


def open_image_files(paths: NDArray[np.bytes_], entry: Mapping[str, Any]) -> Any:
    """The feature that these paths are.  Typed as anything: it is indexed like the array that it stands for."""
    augmentation = chosen(AUGMENTATIONS, choice_from_document(entry["augmentation"]), "augmentation")
    return ImageFiles(paths, Path(entry["root"]), augmentation)


def path_array(paths: Sequence[str]) -> NDArray[np.bytes_]:
    """[N], each as wide as the longest: an array that can be mapped."""
    return np.array([os.fsencode(path) for path in paths], np.bytes_)


def load_view(path: Path, augmentation: Augmentation, random: PortableRandom | None) -> Pixels:
    """The part of an image that the augmentation draws, or tests on, at the size that the network takes."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            box = (
                augmentation.tested(width, height)
                if random is None
                else augmentation.drawn(width, height, random)
            )
            return _scaled(image, box, augmentation.size)
    except FileNotFoundError:
        raise PopulationError(
            f"{path} does not exist any more; put the image back, or make the data set again from what is there"
        ) from None
    except UnidentifiedImageError:
        raise PopulationError(f"{path} is not an image that Pillow reads; replace the file") from None
    except OSError as error:  # what Pillow raises for a truncated image
        raise PopulationError(f"{path} cannot be read ({error}); replace the file") from None


def _scaled(image: Image.Image, box: Box, size: int) -> Pixels:
    width, height = image.size
    # A JPEG can be decoded at 1/2, 1/4 or 1/8, in less time.  The box keeps at least as many pixels as are wanted of it.
    least = (size / (box.right - box.left), size / (box.lower - box.upper))
    draft = image.draft("RGB", (math.ceil(width * least[0]), math.ceil(height * least[1])))
    # The smaller image is a little larger than this fraction of the original: it ends with a whole pixel.
    scale = 1.0 if draft is None else draft[1][2] / width
    decoded = image.convert("RGB")
    # Rounding must not lead outside.
    scaled_box = (
        box.left * scale,
        box.upper * scale,
        min(box.right * scale, decoded.width),
        min(box.lower * scale, decoded.height),
    )
    pixels = decoded.resize((size, size), Image.Resampling.BILINEAR, box=scaled_box)
    return np.asarray(pixels).transpose(2, 0, 1)


@cache
def _decoders() -> ThreadPoolExecutor:
    """Of this process."""
    return ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="decoding")
