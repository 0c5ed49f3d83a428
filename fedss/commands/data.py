"""`fedss data POPULATION`: how a data set is split among the clients, in numbers and pictures; and the way in for others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedss.api.populations import (
    DATA_SETS,
    PartitionStatistics,
    Population,
    Spread,
    check_picture,
    describe_partition,
    draw_contact_sheet,
    draw_partition,
    import_images,
    import_texts,
    open_population,
)
from fedss.console import Json, UsageError, arguments_as_options, progress, show_result
from fedss.locations import DEFAULT_CACHE, Cache


def command(
    population: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(DATA_SETS)}, or the folder of a population."),
    ],
    source: Annotated[
        Path | None, typer.Option(help="The folder with the files of a published data set.")
    ] = None,
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
            metavar="TABLE",
            help="Make the folder first.  From image files: a .csv table with the columns path (relative to the table), "
            "user, class and split (train or test).  From texts: a .jsonl file with an object of user and texts per "
            "line. docs/data.md has examples.",
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Height and width of imported images.", show_default="32")
    ] = None,
    grayscale: Annotated[bool, typer.Option("--grayscale", help="Import images without colours.")] = False,
    vocabulary: Annotated[
        int | None, typer.Option(min=5, help="Tokens of imported texts.", show_default="10000")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per example of imported texts.", show_default="20")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the clients' private seeds in an import.", show_default="0")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Clients, sizes, classes per client and how far the clients are from the whole (EMD); data sets are made on first use.

    [bold]Examples[/]

      fedss data glyphs-2028 --plot partition.png --contact-sheet glyphs.png
      fedss data my-photos --import photos/table.csv --image-size 64
      fedss data my-chats --import chats.jsonl --vocabulary 5000 --length 20
      fedss simulate glyphs-fedss --set data.population=my-photos --set model.pretrained=none
    """
    with arguments_as_options():
        for argument, picture in (("plot", plot), ("contact_sheet", contact_sheet)):
            if picture is not None:
                check_picture(argument, picture)
    texts = import_table is not None and import_table.suffix == ".jsonl"
    of_images, of_texts = image_size is not None or grayscale, vocabulary is not None or length is not None
    if import_table is None and (of_images or of_texts or seed is not None):
        raise UsageError(
            "--image-size, --grayscale, --vocabulary, --length and --seed are about --import, which is not given"
        )
    if import_table is not None and source is not None:
        raise UsageError(f"--source is about a data set by name; {population} is made from {import_table}")
    if of_images and texts:
        raise UsageError(f"--image-size and --grayscale are about images; {import_table} holds texts")
    if of_texts and not texts:
        raise UsageError(f"--vocabulary and --length are about texts; {import_table} is no .jsonl file")
    title = f"data {population}" if import_table is None else f"importing {import_table}"
    with progress(title) as advance:
        if import_table is None:
            opened = open_population(population, source=source, cache=cache, on_progress=advance)
        elif texts:
            opened = import_texts(
                import_table, population, vocabulary=vocabulary or 10_000, length=length or 20, seed=seed or 0
            )
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
        "features": {name: list(shape) for name, shape in _shapes(opened).items()},
        **asdict(statistics),
        "plot": None if plot is None else str(plot),
        "contact_sheet": None if contact_sheet is None else str(contact_sheet),
    }
    show_result(as_json, payload, _table(opened, statistics))


def _table(population: Population, statistics: PartitionStatistics) -> Table:
    table = Table("", "", title=statistics.name, show_header=False)
    table.add_row("folder", str(population.directory))
    for name, shape in _shapes(population).items():
        table.add_row(name, " x ".join(map(str, shape)))
    table.add_row("classes that clients hold", f"{statistics.num_classes:,}")
    table.add_row("clients", f"{statistics.num_clients:,}")
    table.add_row("training examples", f"{statistics.num_train_examples:,}")
    table.add_row("test examples", f"{statistics.num_test_examples:,}")
    table.add_row("examples per client", _range(statistics.examples_per_client))
    table.add_row("classes per client", _range(statistics.classes_per_client))
    table.add_row("distance from the whole (EMD, 0 to 2)", f"{statistics.mean_emd:.2f}")
    return table


def _shapes(population: Population) -> dict[str, tuple[int, ...]]:
    """Feature -> shape of one example."""
    return {name: feature.shape[1:] for name, feature in population.train.features.items()}


def _range(spread: Spread) -> str:
    return f"{spread.min} to {spread.max}, median {spread.median:.0f}, mean {spread.mean:.1f}"
