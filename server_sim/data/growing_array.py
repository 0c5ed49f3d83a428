"""An array file that rows are appended to: nothing of it stays in memory, and its length need not be known before.

The header of the .npy format is padded so that the first axis may grow to any length within it; the rows follow as raw
bytes.  So they are written as they come, and the header once more at the end.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class GrowingArray:
    """A context: the file is an array once it was left."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> None:
        """Of rows of this type and shape."""
        self.num_rows = 0
        self._dtype, self._shape = np.dtype(dtype), shape
        self._file = path.open("wb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        if rows.dtype != self._dtype or rows.shape[1:] != self._shape:
            raise ValueError(
                f"rows are {rows.dtype} {list(rows.shape[1:])}; expected {self._dtype} {list(self._shape)}"
            )
        self._file.write(rows.tobytes())
        self.num_rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        shape = (self.num_rows, *self._shape)
        described = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(self._file, described)
