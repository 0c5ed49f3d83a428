"""Data sets split among clients: opened or rendered, described, drawn, and made from image files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedss.api.callbacks import Advance
from fedss.api.errors import UsageError, WrongArgument
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.data import partition_statistics
from server_sim.data.contact_sheet import contact_sheet as general_contact_sheet
from server_sim.data.glyphs import presets as glyphs
from server_sim.data.image_folder import import_image_folder
from server_sim.data.partition_statistics import PartitionStatistics, Spread, describe_partition
from server_sim.data.population import Population
from server_sim.data.population import open_population as open_population_folder
from server_sim.experiment import DataSettings
from server_sim.preparation import population_path

__all__ = [
    "PRESETS",
    "PartitionStatistics",
    "Population",
    "Spread",
    "describe_partition",
    "draw_contact_sheet",
    "draw_partition",
    "import_images",
    "open_population",
]

PRESETS = tuple(glyphs.PRESETS)
PICTURE_FORMATS = (".png", ".svg", ".pdf")


def open_population(
    name: str | Path, *, cache: str | Path | None = None, on_progress: Advance | None = None
) -> Population:
    """A data set by the name of a preset, which is rendered on first use, or by its folder."""
    folder = default_cache_folder() if cache is None else Path(cache)
    return open_population_folder(population_path(DataSettings(population=str(name)), folder, on_progress))


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
    target = Path(folder)
    if target.exists() or str(folder) in glyphs.PRESETS:
        raise UsageError(
            f"the import would write to {folder}, which is taken; name a folder that is not there yet"
        )
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
