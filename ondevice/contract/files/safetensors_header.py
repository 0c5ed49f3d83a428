"""What stands before the data of a safetensors file, as we write it: made quickly, since every message has one."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# bfloat16 has no numpy type: it travels as the upper half of a float32, in uint16.
DTYPE_OF: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}

Spec = tuple[str, list[int]]
"""dtype and shape of a tensor."""

Entry = tuple[str, list[int], int, int]
"""dtype, shape, and where its data begins and ends."""


class Block:
    """Tensors of one type that lie one behind the other: what a header says of them is made ready for any place."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: str) -> None:
        self.shapes = {name: list(shape) for name, shape in shapes.items()}
        self.dtype = dtype
        sizes = [math.prod(shape) * DTYPE_OF[dtype].itemsize for shape in self.shapes.values()]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.num_bytes = int(ends[-1]) if sizes else 0
        self._offsets = np.stack([ends - sizes, ends], axis=1).reshape(-1)
        self._text = ",".join(
            _entry_text(name, dtype, shape).replace("%", "%%") + "[%d,%d]}"
            for name, shape in self.shapes.items()
        )

    def placed(self, start: int) -> tuple[str, dict[str, Entry]]:
        """What a header says of them where the first begins at `start`."""
        offsets = (self._offsets + start).tolist()
        places = zip(self.shapes.items(), offsets[::2], offsets[1::2], strict=True)
        entries = {name: (self.dtype, shape, begin, end) for (name, shape), begin, end in places}
        return self._text % tuple(offsets), entries


class Header:
    """What stands before the data of a file with these tensors and, behind them, the block."""

    def __init__(self, metadata: Mapping[str, str], specs: Mapping[str, Spec], block: Block | None) -> None:
        self.metadata = metadata
        self.entries: dict[str, Entry] = {}
        self.block = block
        parts = ['"__metadata__":' + json.dumps(metadata, separators=(",", ":"))]
        end = 0
        for name, (dtype, shape) in specs.items():
            start, end = end, end + math.prod(shape) * DTYPE_OF[dtype].itemsize
            self.entries[name] = (dtype, shape, start, end)
            parts.append(f"{_entry_text(name, dtype, shape)}[{start},{end}]}}")
        self.block_start = end
        if block is not None and block.shapes:
            text_of_block, entries = block.placed(end)
            parts.append(text_of_block)
            self.entries |= entries
            end += block.num_bytes
        self.data_size = end
        text = f"{{{','.join(parts)}}}".encode()
        text += b" " * (-len(text) % 8)
        self.text = struct.pack("<Q", len(text)) + text


def _entry_text(name: str, dtype: str, shape: Sequence[int]) -> str:
    """Up to the offsets."""
    return f'{json.dumps(name)}:{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"data_offsets":'
