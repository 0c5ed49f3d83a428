"""The ExecuTorch backend: the exported step with our kernels, without torch."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.backends.pieces import check_features, embed_in_pieces
from ondevice.contract.artifact import Artifact
from ondevice.contract.step_signature import EXAMPLES, LOSS, Arrays, check_arrays, gradient_of, padded
from ondevice.contract.vocabulary import FloatArray
from ondevice.native.runtime.program import Program, set_threads


class Room:
    """Memory for an output, which is written again as soon as nobody has what was last written there.

    The system hands out fresh memory page by page, each cleared before: over a wide output layer that took more than three
    times as long as the step itself, at worst.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._memory: FloatArray = np.empty(sizes, np.float32)
        self._lent: weakref.ref[FloatArray] | None = None

    def lend(self) -> FloatArray:
        if self._lent is not None and self._lent() is not None:
            # What was written belongs to whoever has it.
            self._memory = np.empty(self._memory.shape, np.float32)
        # Behind a memoryview (`data`) every view of the array keeps the array alive, and not the memory behind it.
        lent: FloatArray = np.asarray(self._memory.data)
        self._lent = weakref.ref(lent)
        return lent


class ExecutorchBackend:
    """`step.pte` and `embed.pte`.  Weights are inputs of every call, so a new global model is a different set of arrays."""

    def __init__(self, artifact: Artifact, threads: int = 1, profiled: bool = False) -> None:
        self.signature = artifact.signature
        self.micro_batch = artifact.micro_batch
        self._bounds = artifact.bounds
        self._embedding = artifact.embedding
        set_threads(threads)
        self._step = Program(artifact.path("step.pte"), profiled)
        # The runtime asks for room for the most rows; what it does not fill is cut off.
        self._rooms = {
            name: Room(self.signature[name].sizes(self._bounds)) for name in self.signature.trained
        }
        self._embed_path = artifact.path("embed.pte")
        self._embed: Program | None = None

    def step(self, arrays: Arrays) -> Arrays:
        sizes = check_arrays(self.signature, arrays, self._bounds)
        full = {EXAMPLES: self.micro_batch}
        inputs = [_contiguous(padded(spec, arrays[spec.name], full)) for spec in self.signature]
        loss = np.empty((), np.float32)
        written = {name: room.lend() for name, room in self._rooms.items()}
        self._step.run(inputs, [loss, *written.values()])
        gradients = {
            gradient_of(name): array[: self.signature[name].sizes(sizes)[0]] if array.ndim else array
            for name, array in written.items()
        }
        return {LOSS: loss, **gradients}

    def nanoseconds(self) -> list[int]:
        """Of every instruction of the last step, where the backend is profiled."""
        return self._step.nanoseconds()

    def embed(self, arrays: Arrays) -> FloatArray:
        check_features(self.signature, arrays)
        if self._embed is None:
            self._embed = Program(self._embed_path)  # only evaluation needs it, and its arena
        program = self._embed
        inputs = (*self.signature.dense, *self.signature.embedded)
        given = {spec.name: _contiguous(arrays[spec.name]) for spec in inputs}

        def run(features: Arrays) -> FloatArray:
            out = np.empty((self.micro_batch, *self._embedding), np.float32)
            piece = {**given, **{name: _contiguous(feature) for name, feature in features.items()}}
            program.run(list(piece.values()), [out])
            return out

        return embed_in_pieces(self.signature, arrays, self.micro_batch, run)


def _contiguous(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array)
