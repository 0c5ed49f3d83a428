"""fashion-mnist (Xiao et al. 2017): 70,000 pictures of ten kinds of clothes, from Debian's package of it.

The files are MNIST's format, idx: big-endian numbers 0x0801 (labels) or 0x0803 (images), the sizes, then the bytes.
"""

from __future__ import annotations

import gzip
import struct
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ondevice.tools.registries import DebianPackage, fetch, unpack_debian_package
from server_sim.data.fetched.dealt_images import LabelledImages, write_dealt
from server_sim.data.made_once import made_once
from server_sim.data.partitioners.dirichlet import Dirichlet
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError

NAME = "fashion-mnist"
PACKAGE = DebianPackage(
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
CLASS_NAMES = [
    *("0 T-shirt", "1 trouser", "2 pullover", "3 dress", "4 coat"),
    *("5 sandal", "6 shirt", "7 sneaker", "8 bag", "9 ankle boot"),
]
CLIENTS = Dirichlet(num_clients=100, concentration=1.0)
ATTRIBUTION = (
    f"The pictures are Fashion-MNIST, Copyright 2017 Zalando SE, under the MIT licence, of the {PACKAGE.label},\n"
    "padded from 28 x 28 to 32 x 32 pixels.\n"
)
_FOLDER = "usr/share/datasets/fashion-mnist"


def materialize(cache: Path, progress: Progress | None = None) -> Path:
    recipe = {"version": 1, "package": asdict(PACKAGE), "clients": asdict(CLIENTS)}

    def write(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as unpacked:
            unpack_debian_package(fetch(PACKAGE, cache), Path(unpacked))
            pictures = read_pictures(Path(unpacked) / _FOLDER)
        write_dealt(
            directory, pictures, CLIENTS, name=NAME, recipe=recipe, attribution=ATTRIBUTION, progress=progress
        )

    return made_once(cache, NAME, recipe, write)


def read_pictures(folder: Path) -> LabelledImages:
    """Both splits, the training split first."""
    images = [read_idx(folder / f"{split}-images-idx3-ubyte.gz") for split in ("train", "t10k")]
    labels = [read_idx(folder / f"{split}-labels-idx1-ubyte.gz") for split in ("train", "t10k")]
    return LabelledImages(
        images=np.concatenate(images),
        labels=np.concatenate(labels).astype(np.int64),
        is_test=np.repeat([False, True], [len(part) for part in labels]),
        class_names=CLASS_NAMES,
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """A compressed idx file of bytes."""
    content = gzip.decompress(path.read_bytes())
    magic, first = struct.unpack(">II", content[:8])
    num_axes = magic - 0x0800
    if not 1 <= num_axes <= 3:
        raise PopulationError(
            f"{path.name} starts with {magic:#06x}, expected an idx file of bytes (0x0801 to 0x0803)"
        )
    shape = struct.unpack(f">{num_axes}I", content[4 : 4 + 4 * num_axes])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes)
    if first == 0 or values.size != np.prod(shape):
        raise PopulationError(
            f"{path.name} has {values.size} bytes of data, expected {np.prod(shape)} for {shape}"
        )
    return values.reshape(shape)
