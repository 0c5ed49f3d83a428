"""`fedss data POPULATION`: how a data set is split among the clients, in numbers and pictures; and the way in for others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedss.api.populations import (
    PRESETS,
    PartitionStatistics,
    Population,
    Spread,
    check_picture,
    describe_partition,
    draw_contact_sheet,
    draw_partition,
    import_images,
    open_population,
)
from fedss.console import Json, UsageError, arguments_as_options, progress, show_result
from fedss.locations import DEFAULT_CACHE, Cache


def command(
    population: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(PRESETS)}, or the folder of a population."),
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
      fedss simulate glyphs-fedss --set data.population=my-photos --set model.pretrained=none
    """
    with arguments_as_options():
        for argument, picture in (("plot", plot), ("contact_sheet", contact_sheet)):
            if picture is not None:
                check_picture(argument, picture)
    if import_table is None and (image_size is not None or grayscale or seed is not None):
        raise UsageError("--image-size, --grayscale and --seed are about --import, which is not given")
    title = f"data {population}" if import_table is None else f"importing {import_table}"
    with progress(title) as advance:
        if import_table is None:
            opened = open_population(population, cache=cache, on_progress=advance)
        else:
            opened = import_images(
                import_table,
                population,
                image_size=image_size or 32,
                grayscale=grayscale,
                seed=seed or 0,
                on_progress=advance,
            )
    if plot is not None:
        draw_partition(opened, plot)
    if contact_sheet is not None:
        draw_contact_sheet(opened, contact_sheet)
    statistics = describe_partition(opened)
    payload = {
        "population": str(opened.directory),
        "image_shape": list(opened.image_shape),
        **asdict(statistics),
        "plot": None if plot is None else str(plot),
        "contact_sheet": None if contact_sheet is None else str(contact_sheet),
    }
    show_result(as_json, payload, _table(opened, statistics))


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
