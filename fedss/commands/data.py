"""`fedss data POPULATION`: how a data set is split among the clients, in numbers and pictures; and the way in for others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedss.console import Json, UsageError, progress, show_result
from fedss.locations import DEFAULT_CACHE, Cache
from server_sim.data import partition_statistics
from server_sim.data.contact_sheet import contact_sheet as general_contact_sheet
from server_sim.data.glyphs import presets as glyphs
from server_sim.data.image_folder import import_image_folder
from server_sim.data.partition_statistics import PartitionStatistics, Spread, describe_partition
from server_sim.data.population import Population, open_population
from server_sim.experiment import DataSettings
from server_sim.preparation import population_path

PICTURE_FORMATS = (".png", ".svg", ".pdf")


def command(
    population: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(glyphs.PRESETS)}, or the folder of a population."),
    ],
    plot: Annotated[
        Path | None, typer.Option(help="Draw histograms over the clients: examples, classes, EMD.")
    ] = None,
    contact_sheet: Annotated[
        Path | None, typer.Option(help="Draw some classes: glyphs in all faces, others in a few images.")
    ] = None,
    import_table: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="TABLE.csv",
            help="Make the folder first, from image files: a CSV table with the columns path (relative to the table), "
            "user, class and split (train or test). docs/data.md has an example.",
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Height and width of imported images.", show_default="32")
    ] = None,
    grayscale: Annotated[bool, typer.Option("--grayscale", help="Import images without colours.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the clients' private seeds in an import.", show_default="0")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Clients, sizes, classes per client and how far the clients are from the whole (EMD); glyphs are rendered on first use.

    [bold]Examples[/]

      fedss data glyphs-2028 --plot partition.png --contact-sheet glyphs.png
      fedss data my-photos --import photos/table.csv --image-size 64
      fedss simulate glyphs-fedss --set data.population=my-photos
    """
    for option, picture in (("--plot", plot), ("--contact-sheet", contact_sheet)):
        if picture is not None and picture.suffix not in PICTURE_FORMATS:
            raise UsageError(
                f"{option} is {picture}; expected a name that ends in {', '.join(PICTURE_FORMATS)}"
            )
        if picture is not None and (picture.is_dir() or not _can_be_folder(picture.parent)):
            raise UsageError(f"{option} is {picture}, which cannot be written; name a file in a folder")
    if import_table is not None:
        _import(import_table, Path(population), image_size or 32, grayscale, seed or 0)
    elif image_size is not None or grayscale or seed is not None:
        raise UsageError("--image-size, --grayscale and --seed are about --import, which is not given")
    with progress(f"data {population}") as advance:
        opened = open_population(population_path(DataSettings(population=population), cache, advance))
    if plot is not None:
        _draw(partition_statistics.plot, opened, plot)
    if contact_sheet is not None:
        by_face = "faces" in opened.recipe
        _draw(glyphs.contact_sheet if by_face else general_contact_sheet, opened, contact_sheet)
    statistics = describe_partition(opened)
    payload = {
        "population": str(opened.directory),
        "image_shape": list(opened.image_shape),
        **asdict(statistics),
        "plot": None if plot is None else str(plot),
        "contact_sheet": None if contact_sheet is None else str(contact_sheet),
    }
    show_result(as_json, payload, _table(opened, statistics))


def _import(table: Path, folder: Path, image_size: int, grayscale: bool, seed: int) -> None:
    if folder.exists() or str(folder) in glyphs.PRESETS:
        raise UsageError(
            f"--import would write to {folder}, which is taken; name a folder that is not there yet"
        )
    with progress(f"importing {table}") as advance:
        import_image_folder(
            table,
            folder,
            name=folder.name,
            image_size=image_size,
            grayscale=grayscale,
            seed=seed,
            progress=advance,
        )


def _can_be_folder(path: Path) -> bool:
    """Whether `path` is a folder, or can be made one."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def _draw(drawing: Callable[[Population, Path], None], population: Population, path: Path) -> None:
    """The whole picture or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    drawing(population, temporary)
    temporary.replace(path)


def _table(population: Population, statistics: PartitionStatistics) -> Table:
    table = Table("", "", title=statistics.name, show_header=False)
    table.add_row("folder", str(population.directory))
    table.add_row("image", " x ".join(map(str, population.image_shape)))
    table.add_row("classes that clients hold", f"{statistics.num_classes:,}")
    table.add_row("clients", f"{statistics.num_clients:,}")
    table.add_row("training images", f"{statistics.num_train_examples:,}")
    table.add_row("test images", f"{statistics.num_test_examples:,}")
    table.add_row("images per client", _range(statistics.examples_per_client))
    table.add_row("classes per client", _range(statistics.classes_per_client))
    table.add_row("distance from the whole (EMD, 0 to 2)", f"{statistics.mean_emd:.2f}")
    return table


def _range(spread: Spread) -> str:
    return f"{spread.min} to {spread.max}, median {spread.median:.0f}, mean {spread.mean:.1f}"
