"""The folder with a data set's published files: finding and reading them, with words for what is missing."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server_sim.data.population_files import PopulationError


@dataclass(frozen=True)
class SourceFolder:
    """`data.source`, and who publishes what should lie there."""

    path: Path
    data_set: str
    publisher: str
    """Where the files are from, for somebody who does not have them."""

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise PopulationError(
                f"data.source is {self.path}, which is no folder; {self.data_set} is read from the files of {self.publisher}"
            )

    def find(self, *places: str) -> Path:
        """The first of these files or folders that is there."""
        found = self.find_any(*places)
        if found is None:
            expected = " or ".join(str(self.path / place) for place in places)
            raise PopulationError(
                f"{self.data_set}: {expected} does not exist; it comes with {self.publisher}: unpack it there, "
                "or set data.source to the folder that holds it"
            )
        return found

    def find_any(self, *places: str) -> Path | None:
        return next((self.path / place for place in places if (self.path / place).exists()), None)

    def check_images(self, root: Path, paths: Sequence[str]) -> None:
        """Every image is there, before anything is trained on some of them."""
        missing = [path for path in paths if not (root / path).is_file()]
        if missing:
            raise PopulationError(
                f"{self.data_set}: {len(missing)} of {len(paths)} images are missing, the first at {root / missing[0]}; "
                f"unpack the images of {self.publisher} into {root}"
            )


def read_table(path: Path, columns: Sequence[str], delimiter: str = ",") -> list[dict[str, str]]:
    """The lines of a table whose first line names at least these columns."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise PopulationError(
                    f"{path} has the columns {', '.join(reader.fieldnames or ['none'])}, and lacks {', '.join(missing)}; "
                    f"is it the published file, with its first line?"
                )
            rows = []
            for row in reader:
                for column in columns:
                    if not row[column]:
                        raise PopulationError(
                            f"{path}, line {reader.line_num}: {column} is empty; fetch the file again"
                        )
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise PopulationError(f"{path} is not a table in UTF-8 ({error}); fetch the file again") from None
    if not rows:
        raise PopulationError(f"{path} has no line but its first; fetch the file again")
    return rows


def numbered(names: Sequence[str]) -> list[str]:
    """Whole numbers with as many digits each, so that names sort as the numbers do; other names as they are."""
    if not all(name.isdecimal() for name in names):
        return list(names)
    digits = max(map(len, names))
    return [name.zfill(digits) for name in names]


def sha256_of(*paths: Path) -> dict[str, str]:
    """For a recipe: other files make another population."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
