"""Image files and a table of who took them -> a population.

The table is a CSV file with the columns path, user, class and split (train or test), in any order and beside any
others; paths are relative to the table.  The user of a test image is not looked at and may be empty.
"""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from server_sim.data.population import Progress, Records, write_population
from server_sim.data.population_files import PopulationError

COLUMNS = ("path", "user", "class", "split")


def import_image_folder(
    table: Path,
    directory: Path,
    *,
    name: str,
    image_size: int,
    grayscale: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Write the images that `table` names as a population in `directory`.

    Every image is scaled so that its shorter side is `image_size`, and cut to the square in its middle.
    """
    table = Path(table)
    rows = _read_table(table)
    paths = [table.parent / row["path"] for row in rows]
    mode, channels = ("L", 1) if grayscale else ("RGB", 3)

    def images_of(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = [_load_square(paths[number], mode, image_size) for number in numbers.tolist()]
        pixels = np.stack(images).reshape(len(images), image_size, image_size, channels)
        return pixels.transpose(0, 3, 1, 2)

    write_population(
        directory,
        Records(
            classes=[row["class"] for row in rows],
            users=[row["user"] for row in rows],
            is_test=[row["split"] == "test" for row in rows],
        ),
        images_of,
        name=name,
        image_shape=(channels, image_size, image_size),
        seed=seed,
        recipe={"source": table.name, "image_size": image_size, "grayscale": grayscale},
        progress=progress,
    )


def _read_table(table: Path) -> list[dict[str, str]]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise PopulationError(
                    f"{table} has the columns {reader.fieldnames}, and lacks {', '.join(missing)}; "
                    f"its first line must name {', '.join(COLUMNS)}"
                )
            return [_checked_row(table, reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise PopulationError(
            f"{table} does not exist; it should be a CSV file of {', '.join(COLUMNS)}"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise PopulationError(f"{table} is not a CSV file in UTF-8: {error}") from None


def _checked_row(table: Path, line: int, row: dict[str, str]) -> dict[str, str]:
    if row["split"] not in ("train", "test"):
        raise PopulationError(f"{table}, line {line}: split is {row['split']!r}, expected train or test")
    needed = COLUMNS if row["split"] == "train" else ("path", "class")
    for column in needed:
        if not row[column]:
            raise PopulationError(f"{table}, line {line}: {column} is empty; fill it in or remove the line")
    return row


def _load_square(path: Path, mode: str, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image).convert(mode)
    except FileNotFoundError:
        raise PopulationError(f"{path} does not exist; correct the table or add the file") from None
    except UnidentifiedImageError:
        raise PopulationError(
            f"{path} is not an image that Pillow reads; convert it, or remove its line"
        ) from None
    except OSError as error:  # what Pillow raises for a truncated image
        raise PopulationError(
            f"{path} cannot be read ({error}); replace the file, or remove its line"
        ) from None
    return np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC))
