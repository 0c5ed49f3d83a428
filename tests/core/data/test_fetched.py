"""Drawings, clothes and characters in their packages' formats, a few made ones."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from server_sim.data.data_sets import DATA_SETS, DataSet
from server_sim.data.fetched import cjk, fashion_mnist, quickdraw
from server_sim.data.fetched.dealt_images import padded, write_dealt
from server_sim.data.glyphs.alphabet import face_path
from server_sim.data.glyphs.dealing import ByClient
from server_sim.data.partitioners.dirichlet import Dirichlet
from server_sim.data.population import open_population
from server_sim.data.population_files import PopulationError


def drawings_tarball(folder: Path, lengths: int = 784) -> Path:
    """As npm packs them: a compressed file of JSON lines per thing, with spaces in the names."""
    path = folder / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for number, thing in enumerate(("light bulb", "The Eiffel Tower", "cat")):
            lines = [json.dumps([(number + drawing) / 10] * lengths) for drawing in range(5)]
            data = gzip.compress(("\n".join(lines) + "\n").encode())
            member = tarfile.TarInfo(f"package/src/drawings/{thing}.ndjson.gz")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_drawings_are_read_by_class_and_the_last_are_the_test(tmp_path: Path) -> None:
    data = quickdraw.read_drawings(drawings_tarball(tmp_path), test_drawings=2)
    assert data.class_names == ["The Eiffel Tower", "cat", "light bulb"]
    assert data.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert data.is_test.tolist() == [False, False, False, True, True] * 3
    assert data.images.shape == (15, 28, 28)
    assert data.images[:, 0, 0].tolist() == [
        *(26, 51, 76, 102, 128),
        *(51, 76, 102, 128, 153),
        *(0, 26, 51, 76, 102),
    ]


def test_drawings_of_another_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PopulationError, match=r"drawings of \(783,\) numbers, expected 784"):
        quickdraw.read_drawings(drawings_tarball(tmp_path, lengths=783), test_drawings=2)


def test_dealt_images_become_clients_of_equal_size_with_the_attribution(tmp_path: Path) -> None:
    data = quickdraw.read_drawings(drawings_tarball(tmp_path), test_drawings=2)
    clients = Dirichlet(num_clients=3, concentration=1.0)
    write_dealt(tmp_path / "out", data, clients, name="drawn", recipe={}, attribution="By people.\n")
    population = open_population(tmp_path / "out")
    assert [population.num_examples(client) for client in population.client_ids] == [3, 3, 3]
    assert np.sort(population.train.labels).tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert (len(population.test), population.image_shape) == (6, (1, 32, 32))
    assert population.attribution == "By people.\n"


def test_a_picture_is_padded_around_its_middle() -> None:
    images = padded(np.full((1, 28, 28), 7, np.uint8))
    assert images.shape == (1, 1, 32, 32)
    assert (images[0, 0, 2:30, 2:30] == 7).all()
    assert images.sum() == 7 * 28 * 28


def test_clothes_are_read_from_idx_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (7, 28, 28))
    labels = np.array([0, 1, 2, 3, 9, 5, 6])
    for split, part in (("train", slice(0, 4)), ("t10k", slice(4, 7))):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", pictures[part])
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", labels[part])
    data = fashion_mnist.read_pictures(tmp_path)
    assert (data.images == pictures).all()
    assert data.labels.tolist() == labels.tolist()
    assert data.is_test.tolist() == [False] * 4 + [True] * 3
    assert data.class_names[9] == "9 ankle boot"


def test_a_cut_or_foreign_idx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(struct.pack(">II", 0x0801, 5) + b"1234"))
    with pytest.raises(PopulationError, match="has 4 bytes of data, expected 5"):
        fashion_mnist.read_idx(path)
    path.write_bytes(gzip.compress(b"PNG....."))
    with pytest.raises(PopulationError, match="expected an idx file of bytes"):
        fashion_mnist.read_idx(path)


def test_characters_are_those_that_enough_fonts_draw(tmp_path: Path) -> None:
    # Greek in fonts that are here, in the place of Han in fonts that are fetched.
    fonts = [face_path(name) for name in ("DejaVuSans", "DejaVuSerif", "STIXGeneral")]
    characters, covered = cjk.common_characters(fonts, 3, 0x391, 0x3A9)
    assert characters == [*"ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ"]
    assert covered.all()
    write = cjk.write_characters
    write(tmp_path / "out", fonts, ByClient(6, 12, 8), min_fonts=3, recipe={}, first=0x391, last=0x3A9)
    population = open_population(tmp_path / "out")
    assert (population.num_classes, len(population.client_ids), len(population.test)) == (24, 6, 24)
    assert {name.split()[-1] for name in population.client_names} == {font.stem for font in fonts}
    assert "fonts-wqy-zenhei" in population.attribution


@pytest.mark.parametrize("name", ["icons-3k", "icons-11k", "quickdraw-345", "fashion-mnist", "cjk"])
def test_a_fetched_data_set_is_known_by_name(name: str) -> None:
    assert isinstance(DATA_SETS[name], DataSet)
