"""What a client remembers from one round to the next in which it takes part: arrays by name, on the client alone.

Memory belongs to a round.  A client recalls what it kept in the last round *before* this one, so that a round that is held
again, after a kill or a lost link, starts from the same memory and ends in the same update.

    ROUND.safetensors       one file per round that left a memory, in the folder of the client
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.safetensors_file import Bfloat16, SafetensorsError
from ondevice.contract.vocabulary import FloatArray


class ClientMemory(Protocol):
    def recall(self, round_index: int) -> Mapping[str, FloatArray]:
        """What was kept in the last round before this one; nothing at first."""
        ...

    def keep(self, round_index: int, arrays: Mapping[str, FloatArray]) -> None:
        """In place of what this round has kept before."""
        ...


class NoMemory:
    """Of a client that is made anew for every round, as on a device."""

    def recall(self, round_index: int) -> Mapping[str, FloatArray]:
        raise self._refusal(round_index)

    def keep(self, round_index: int, arrays: Mapping[str, FloatArray]) -> None:  # noqa: ARG002
        raise self._refusal(round_index)

    @staticmethod
    def _refusal(round_index: int) -> ValueError:
        return ValueError(
            f"round {round_index}: the plan has a transform that remembers what it did not send (top_k), and this client "
            "has no memory that lasts over rounds; expected a simulated client, or a plan with int8 or precision instead"
        )


class FolderMemory:
    """One client's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """That left a memory, the oldest first."""
        found = self.folder.glob("*.safetensors") if self.folder.is_dir() else ()
        return sorted(int(path.stem) for path in found if path.stem.isdigit())

    def recall(self, round_index: int) -> Mapping[str, FloatArray]:
        before = [kept for kept in self.rounds() if kept < round_index]
        if not before:
            return {}
        path = self._path(before[-1])
        try:
            tensors, _ = safetensors_file.read_file(path)
        except SafetensorsError as error:
            raise ValueError(f"{path} is no memory of a client: {error}") from None
        arrays = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, Bfloat16) or tensor.dtype != np.float32:
                raise ValueError(f"{path}: {name} is not F32; expected what a transform has kept")
            arrays[name] = tensor
        return arrays

    def keep(self, round_index: int, arrays: Mapping[str, FloatArray]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        safetensors_file.write_file(self._path(round_index), arrays, {})

    def forget(self, round_index: int) -> None:
        """As if that round had not been."""
        self._path(round_index).unlink(missing_ok=True)

    def _path(self, round_index: int) -> Path:
        return self.folder / f"{round_index}.safetensors"
