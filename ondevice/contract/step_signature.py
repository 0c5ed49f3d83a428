"""THE contract: a training step is named arrays in, named arrays out, and this list says which.

    inputs    dense parameters, table rows, side arrays of rows, example features, labels, noise, example weights, in
              this order
    outputs   `loss`, the weighted sum over the examples; then `gradient/NAME` for every dense parameter and every table

Trace, manifest, checks, backends, golden step and the C++ client read the signature; nothing else knows an order or a type.

A size is a number or a symbol: `b` is the number of examples, `rows:T` the number of rows of table T that came with the
slice.  An array with `positions_in = T` holds positions among those rows, never global ids.  Other whole numbers may have a
range: `below = V` says that they are 0 to V - 1, as the tokens of a vocabulary are.

Noise is what dropout and stochastic depth decide by: numbers of 0 to below 1 that the client draws for every example of
every step, so that a step gives the same numbers twice.

Weights of 1/B over a batch make the loss the batch mean, so the gradients of micro-batches add up; an example of weight 0
and a row whose side arrays hold their padding value change nothing.  That is how a step of fixed size takes fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Role = Literal["dense", "table", "side", "feature", "label", "noise", "example_weight"]
ROLES: tuple[Role, ...] = get_args(Role)
"""In the order in which a signature lists them."""

EXAMPLES = "b"
"""The symbol for the number of examples."""

LOSS = "loss"

Dtype = Literal["float32", "int64", "uint8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MAX_RANK = 6

Arrays = Mapping[str, npt.NDArray[Any]]
"""What goes into a step, or comes out of it, by name."""

Bounds = Mapping[str, int]
"""Symbol -> the most that an exported step takes."""


def gradient_of(name: str) -> str:
    """The output that holds an input's gradient."""
    return f"gradient/{name}"


def rows_of(table: str) -> str:
    """The symbol for the number of rows of a table."""
    return f"rows:{table}"


def describe_range(below: int) -> str:
    return f"0 to {below - 1}"


@dataclass(frozen=True)
class ArraySpec:
    """One input of a step."""

    name: str
    role: Role
    shape: tuple[int | str, ...]
    dtype: Dtype = "float32"
    padding: float = 0.0
    """What fills the places of missing examples or rows."""
    positions_in: str | None = None
    """The table among whose rows the values are positions; None where they are values."""
    below: int | None = None
    """How many values a whole number takes, from 0; None where any will do."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name is {self.name!r}; expected text")
        if (
            isinstance(self.padding, bool)
            or not isinstance(self.padding, int | float)
            or not isfinite(self.padding)
        ):
            raise ValueError(f"{self.name}: padding is {self.padding!r}; expected a finite number")
        if self.role not in ROLES:
            raise ValueError(f"{self.name}: role is {self.role!r}; expected one of {', '.join(ROLES)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"{self.name}: dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        if len(self.shape) > MAX_RANK:
            raise ValueError(f"{self.name}: {len(self.shape)} dimensions; at most {MAX_RANK} are possible")
        for size in self.shape:
            if isinstance(size, str):
                known = size == EXAMPLES or size.startswith("rows:")
            else:
                known = type(size) is int and size >= 0
            if not known:
                raise ValueError(f"{self.name}: size is {size!r}; expected a number, 'b' or 'rows:TABLE'")
        if self.below is not None:
            self._check_below(self.below)

    def _check_below(self, below: int) -> None:
        if type(below) is not int or below < 1:
            raise ValueError(f"{self.name}: below is {below!r}; expected a whole number from 1")
        if self.role not in ("feature", "label") or self.dtype == "float32" or self.positions_in is not None:
            raise ValueError(
                f"{self.name}: below is {below}; only whole numbers of examples that are no positions have it"
            )
        if not 0 <= self.padding < below:
            raise ValueError(f"{self.name}: padding is {self.padding}; expected {describe_range(below)}")

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(size for size in self.shape if isinstance(size, str))

    def sizes(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with numbers for its symbols."""
        return tuple(values[size] if isinstance(size, str) else size for size in self.shape)

    def describe(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class StepSignature:
    """The inputs of a step, in order."""

    inputs: tuple[ArraySpec, ...]

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.inputs]
        if len(set(names)) != len(names):
            raise ValueError(f"inputs are {names}; expected every name once")
        order = [ROLES.index(spec.role) for spec in self.inputs]
        if order != sorted(order):
            raise ValueError(f"roles are {[spec.role for spec in self.inputs]}; expected {', '.join(ROLES)}")
        if sum(spec.role == "example_weight" for spec in self.inputs) != 1:
            raise ValueError("expected exactly one input with the role example_weight")
        tables = {rows_of(spec.name) for spec in self.tables}
        for spec in self.inputs:
            unknown = set(spec.symbols) - tables - {EXAMPLES}
            if unknown or (spec.positions_in is not None and rows_of(spec.positions_in) not in tables):
                raise ValueError(f"{spec.name} speaks of a table that is no input: {spec.describe()}")
            if spec.positions_in is not None and spec.dtype != "int64":
                raise ValueError(
                    f"{spec.name} holds positions in {spec.positions_in}, but is {spec.dtype}; expected int64"
                )
            _check_role(spec)

    def __iter__(self) -> Iterator[ArraySpec]:
        return iter(self.inputs)

    def __getitem__(self, name: str) -> ArraySpec:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> Mapping[str, ArraySpec]:
        """Looked up for every output of every step."""
        return {spec.name: spec for spec in self.inputs}

    def of_role(self, *roles: Role) -> tuple[ArraySpec, ...]:
        return tuple(spec for spec in self.inputs if spec.role in roles)

    @property
    def dense(self) -> tuple[ArraySpec, ...]:
        """The parameters that every client trains whole."""
        return self.of_role("dense")

    @property
    def tables(self) -> tuple[ArraySpec, ...]:
        """The tables of which a client trains some rows."""
        return self.of_role("table")

    @property
    def features(self) -> tuple[ArraySpec, ...]:
        return self.of_role("feature")

    @property
    def noise(self) -> tuple[ArraySpec, ...]:
        """What the client draws for every example."""
        return self.of_role("noise")

    @property
    def embedded(self) -> tuple[ArraySpec, ...]:
        """What the extractor takes: the features, and the tables among whose rows they hold positions."""
        read = {spec.positions_in for spec in self.features}
        return (*self.features, *(table for table in self.tables if table.name in read))

    @property
    def data(self) -> tuple[ArraySpec, ...]:
        """Everything but the dense parameters: what differs from client to client and from batch to batch."""
        return tuple(spec for spec in self.inputs if spec.role != "dense")

    @property
    def weight(self) -> ArraySpec:
        """The examples' weights."""
        (spec,) = self.of_role("example_weight")
        return spec

    @property
    def trained(self) -> tuple[str, ...]:
        """What has a gradient: dense parameters, then tables."""
        return tuple(spec.name for spec in self.of_role("dense", "table"))

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LOSS, *(gradient_of(name) for name in self.trained))

    @property
    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {spec.name: spec.sizes({}) for spec in self.dense}

    @property
    def table_dims(self) -> dict[str, int]:
        """Table -> entries of one row."""
        return {spec.name: int(spec.shape[1]) for spec in self.tables}

    def to_document(self) -> list[dict[str, Any]]:
        return [asdict(spec) for spec in self.inputs]


def _check_role(spec: ArraySpec) -> None:
    """The type and shape that an input's role allows."""
    first = spec.shape[0] if spec.shape else None
    is_float = spec.dtype == "float32"
    allowed, expected = {
        "dense": (is_float and not spec.symbols, "a dense input is float32 of fixed sizes"),
        "table": (
            is_float and len(spec.shape) == 2 and first == rows_of(spec.name) and len(spec.symbols) == 1,
            f"a table input is float32 [{rows_of(spec.name)}, d]",
        ),
        "side": (str(first).startswith("rows:"), "a side input has an entry per row of a table"),
        "feature": (first == EXAMPLES, "a feature input is [b, ...]"),
        "label": (first == EXAMPLES, "a label input is [b, ...]"),
        "noise": (
            is_float and first == EXAMPLES and len(spec.symbols) == 1 and spec.padding == 0,
            "a noise input is float32 [b, ...] of fixed sizes, padded with 0",
        ),
        "example_weight": (
            is_float and spec.shape == (EXAMPLES,),
            "an example_weight input is float32 [b]",
        ),
    }[spec.role]
    if not allowed:
        raise ValueError(f"{spec.name} is {spec.describe()}; {expected}")


def signature_from_document(document: Any) -> StepSignature:
    """The inverse of `to_document`; ValueError, TypeError or KeyError for what is none."""
    return StepSignature(tuple(ArraySpec(**{**entry, "shape": tuple(entry["shape"])}) for entry in document))


def symbol_values(signature: StepSignature, arrays: Arrays) -> dict[str, int]:
    """What every symbol stands for in these arrays; ValueError where two arrays disagree, or are not as described."""
    values: dict[str, int] = {}
    for spec in signature:
        if spec.name not in arrays:
            raise ValueError(f"{spec.name} is missing; the step takes {spec.describe()}")
        array = arrays[spec.name]
        if array.dtype != np.dtype(spec.dtype) or array.ndim != len(spec.shape):
            raise ValueError(f"{spec.name} is {_kind(array)}; the step takes {spec.describe()}")
        for size, given in zip(spec.shape, array.shape, strict=True):
            expected = values.setdefault(size, given) if isinstance(size, str) else size
            if given != expected:
                meaning = f" with {size} = {expected}" if isinstance(size, str) else ""
                raise ValueError(f"{spec.name} is {_kind(array)}; the step takes {spec.describe()}{meaning}")
    unknown = set(arrays) - {spec.name for spec in signature}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: the step has no such input")
    return values


def check_arrays(signature: StepSignature, arrays: Arrays, bounds: Bounds) -> dict[str, int]:
    """What a runtime would compute wrongly, or crash on, is refused before it gets there.  Returns the symbols' values."""
    values = symbol_values(signature, arrays)
    for symbol, value in values.items():
        most = bounds.get(symbol)
        if value < 1 or (most is not None and value > most):
            what = "examples" if symbol == EXAMPLES else f"rows of {symbol.removeprefix('rows:')}"
            advice = "split the batch" if symbol == EXAMPLES else f"export with room for {value} or more"
            raise ValueError(f"{value} {what}; the step takes 1 to {most}: {advice}")
    for spec in signature:
        check_range(spec, arrays[spec.name])
        if spec.positions_in is not None:
            rows, array = values[rows_of(spec.positions_in)], arrays[spec.name]
            if array.size and (array.min() < 0 or array.max() >= rows):
                raise ValueError(
                    f"{spec.name} reach from {array.min()} to {array.max()}; "
                    f"expected positions among the {rows} rows of {spec.positions_in}"
                )
    return values


def check_range(spec: ArraySpec, array: npt.NDArray[Any]) -> None:
    """A token that no vocabulary has would be read from outside a runtime's memory; noise beyond 1 is no chance."""
    if spec.role == "noise":
        _check_noise(spec, array)
    if spec.below is None or not array.size:
        return
    for value in (array.min(), array.max()):
        if not 0 <= value < spec.below:
            raise ValueError(
                f"{spec.name} holds {value}; expected {describe_range(spec.below)}: "
                "make the data with the vocabulary that the step was exported for"
            )


def _check_noise(spec: ArraySpec, array: npt.NDArray[Any]) -> None:
    wrong = array[~((array >= 0) & (array < 1))]  # written so that a NaN is wrong too
    if wrong.size:
        raise ValueError(
            f"{spec.name} holds {wrong.flat[0]}; expected numbers from 0 to below 1: "
            "draw them with ondevice.client.noise"
        )


def padded(spec: ArraySpec, array: npt.NDArray[Any], bounds: Bounds) -> npt.NDArray[Any]:
    """The array with every symbolic size that `bounds` names brought up to its bound."""
    missing = [
        (0, bounds[size] - given if isinstance(size, str) and size in bounds else 0)
        for size, given in zip(spec.shape, array.shape, strict=True)
    ]
    if not any(after for _, after in missing):
        return array
    return np.pad(array, missing, constant_values=spec.padding)


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
