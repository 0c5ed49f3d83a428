"""Data sets split among clients: opened or rendered, described, drawn, and made from image files or texts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedss.api.callbacks import Advance
from fedss.api.errors import UsageError, WrongArgument
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.data import data_sets, partition_statistics
from server_sim.data.contact_sheet import contact_sheet as general_contact_sheet
from server_sim.data.glyphs import presets as glyphs
from server_sim.data.image_folder import import_image_folder
from server_sim.data.partition_statistics import PartitionStatistics, Spread, describe_partition
from server_sim.data.population import Population
from server_sim.data.population import open_population as open_population_folder
from server_sim.data.texts import import_texts as write_texts
from server_sim.data_settings import DataSettings
from server_sim.preparation import population_path

__all__ = [
    "DATA_SETS",
    "PartitionStatistics",
    "Population",
    "Spread",
    "describe_partition",
    "draw_contact_sheet",
    "draw_partition",
    "import_images",
    "import_texts",
    "open_population",
]

DATA_SETS = {name: data_set.summary for name, data_set in data_sets.DATA_SETS.items()}
"""What can be opened by name, each in a line."""
PICTURE_FORMATS = (".png", ".svg", ".pdf")


def open_population(
    name: str | Path,
    *,
    source: str | Path | None = None,
    cache: str | Path | None = None,
    on_progress: Advance | None = None,
) -> Population:
    """A data set by its name, made on first use, or by its folder.

    source  the folder with the files of a published data set
    """
    folder = default_cache_folder() if cache is None else Path(cache)
    data = DataSettings(population=str(name), source=None if source is None else str(source))
    return open_population_folder(population_path(data, folder, on_progress))


def import_images(
    table: str | Path,
    folder: str | Path,
    *,
    image_size: int = 32,
    grayscale: bool = False,
    seed: int = 0,
    on_progress: Advance | None = None,
) -> Population:
    """Make the folder of a population from image files.

    table  a CSV file with the columns path (relative to the table), user, class and split (train or test)
    seed   of the clients' private seeds
    """
    target = _new_folder(folder)
    import_image_folder(
        Path(table),
        target,
        name=target.name,
        image_size=image_size,
        grayscale=grayscale,
        seed=seed,
        progress=on_progress,
    )
    return open_population_folder(target)


def import_texts(
    table: str | Path,
    folder: str | Path,
    *,
    vocabulary: int = 10_000,
    length: int = 20,
    seed: int = 0,
) -> Population:
    """Make the folder of a population from texts, for next-word prediction.

    table       a file with a JSON object per line: {"user": ..., "texts": [...]}, "split": "test" beside them for the test
    vocabulary  tokens, four special ones among them: the most frequent words
    length      tokens of one example
    seed        of the clients' private seeds
    """
    target = _new_folder(folder)
    write_texts(Path(table), target, name=target.name, vocabulary=vocabulary, length=length, seed=seed)
    return open_population_folder(target)


def _new_folder(folder: str | Path) -> Path:
    target = Path(folder)
    if target.exists() or str(folder) in DATA_SETS:
        raise UsageError(
            f"the import would write to {folder}, which is taken; name a folder that is not there yet"
        )
    return target


def draw_partition(population: Population, path: str | Path) -> Path:
    """Histograms over the clients: examples, classes, distance from the whole."""
    return _draw(partition_statistics.plot, population, Path(path))


def draw_contact_sheet(population: Population, path: str | Path) -> Path:
    """Some classes: glyphs in all faces, others in a few images."""
    by_face = "faces" in population.recipe
    return _draw(glyphs.contact_sheet if by_face else general_contact_sheet, population, Path(path))


def check_picture(argument: str, path: Path) -> None:
    """`WrongArgument` unless a picture can be written there."""
    if path.suffix not in PICTURE_FORMATS:
        raise WrongArgument(argument, f"is {path}; expected a name that ends in {', '.join(PICTURE_FORMATS)}")
    if path.is_dir() or not _can_be_folder(path.parent):
        raise WrongArgument(argument, f"is {path}, which cannot be written; name a file in a folder")


def _can_be_folder(path: Path) -> bool:
    """Whether `path` is a folder, or can be made one."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def _draw(drawing: Callable[[Population, Path], None], population: Population, path: Path) -> Path:
    """The whole picture or none."""
    check_picture("path", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    drawing(population, temporary)
    temporary.replace(path)
    return path
