"""What an exported program does, call by call: operators with the layers they belong to, and the tensors that it plans.

Written beside the program by the export, for whoever wants to know where time and memory go (`fedss bench --profile`,
`fedss inspect --memory`); no client needs it.  It is a file of the artifact like any other, its hash in the manifest, and
it is checked like the manifest when it is read: whatever it lacks, or says that cannot be, is a ValueError.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ondevice.contract.artifacts.manifest_fields import Fields, checked_count
from ondevice.contract.step_signature import Bounds

STEP_CALLS = "step.calls.json"
"""Of `step.pte`."""


@dataclass(frozen=True)
class OperatorCall:
    """One operator of a program as it is called."""

    instruction: int
    """Its number in the program: how the runtime names it when it is traced."""
    operator: str
    layer: str
    """The module of the network, by its path, whose output or whose gradient it computes."""
    backward: bool
    shapes: tuple[tuple[int | str, ...], ...]
    """Of the tensors that it takes and gives, in the order of its arguments; symbols are those of the signature."""

    def sizes(self, values: Bounds) -> list[tuple[int, ...]]:
        """The shapes at a number of rows."""
        return [
            tuple(values[size] if isinstance(size, str) else size for size in shape) for shape in self.shapes
        ]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor in the program's arena, at the bounds."""

    num_bytes: int
    offset: int
    first: int
    """The call that writes it, by its place among the calls."""
    last: int
    """The last call that needs it."""


@dataclass(frozen=True)
class ProgramCalls:
    """The calls of a program in their order, and its arena."""

    calls: tuple[OperatorCall, ...]
    tensors: tuple[PlannedTensor, ...]
    arena_bytes: int
    """What the program asks for; gaps that the planner could not fill included."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


def program_calls_from_bytes(data: bytes, bounds: Bounds) -> ProgramCalls:
    """`bounds`: those of the artifact, whose symbols are the only ones that a shape may have."""
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    fields = Fields(document, "the table of calls")
    fields.expect("calls", "tensors", "arena_bytes")
    calls = tuple(_call(entry, bounds) for entry in fields.objects("calls"))
    if [call.instruction for call in calls] != sorted({call.instruction for call in calls}):
        raise ValueError("its calls are not in the order of their instructions")
    found = ProgramCalls(
        calls,
        tuple(_tensor(entry, len(calls)) for entry in fields.objects("tensors")),
        fields.count("arena_bytes"),
    )
    for tensor in found.tensors:
        if tensor.offset + tensor.num_bytes > found.arena_bytes:
            raise ValueError(
                f"a tensor of {tensor.num_bytes} bytes at {tensor.offset} is outside the arena of {found.arena_bytes}"
            )
    return found


def _call(fields: Fields, bounds: Bounds) -> OperatorCall:
    fields.expect("instruction", "operator", "layer", "backward", "shapes")
    return OperatorCall(
        fields.count("instruction"),
        fields.text("operator"),
        fields.text("layer"),
        fields.flag("backward"),
        tuple(_shape(shape, bounds) for shape in fields.sequence("shapes")),
    )


def _shape(value: object, bounds: Bounds) -> tuple[int | str, ...]:
    if not isinstance(value, list):
        raise ValueError("a shape of a call is no list")
    return tuple(
        size if isinstance(size, str) and size in bounds else checked_count(size, "a size of a call", 0)
        for size in value
    )


def _tensor(fields: Fields, num_calls: int) -> PlannedTensor:
    fields.expect("num_bytes", "offset", "first", "last")
    tensor = PlannedTensor(
        fields.count("num_bytes"), fields.count("offset"), fields.count("first"), fields.count("last")
    )
    if not tensor.first <= tensor.last < num_calls:
        raise ValueError(
            f"a tensor lives from call {tensor.first} to {tensor.last}; expected some of the {num_calls} calls"
        )
    return tensor
