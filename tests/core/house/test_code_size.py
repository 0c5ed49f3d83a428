"""Files that one reading takes in, and calls that say what they pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = (
    "fedss",
    "export",
    "ondevice",
    "server_sim",
    "android_harness",
    "tests",
    "benchmarks",
    "examples",
)
MOST_LINES = 350
MOST_POSITIONAL = 6

NAMED_BY_AN_OPERATOR = {
    "export/decompositions.py",
    "export/onnx/operators/activations.py",
    "export/onnx/operators/convolution.py",
    "export/onnx/operators/indexing.py",
    "export/onnx/operators/norms.py",
    "export/onnx/operators/pieces.py",
    "export/onnx/operators/pooling.py",
    "export/onnx/operators/reductions.py",
    "export/executorch/shapes.py",
    "export/executorch/grid_shapes.py",
    "export/proof/reference_grids.py",
    "export/proof/reference_kernels.py",
}
"""Their functions are called with the arguments of an ATen or `fedss::` operator, however many it has."""

COMMANDS = (ROOT / "fedss/commands", ROOT / "fedss/analyses")
"""A command's parameters are options: typer passes them by name."""


def sources(*endings: str) -> Iterator[Path]:
    for folder in FOLDERS:
        for ending in endings:
            yield from sorted((ROOT / folder).rglob(f"*{ending}"))


def long_signatures(path: Path) -> list[str]:
    """Functions that take more positional parameters than is allowed, beside the object that they belong to."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > MOST_POSITIONAL:
                name = "lambda" if isinstance(node, ast.Lambda) else node.name
                found.append(f"{path.name}:{node.lineno} {name} has {count}")
    return found


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources(".py", ".cpp", ".h", ".c", ".sh")}
    assert len(lengths) > 300  # or the folders are not those
    assert not {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_takes_more_than_six_positional_parameters(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name not in NAMED_BY_AN_OPERATOR and path.parent not in COMMANDS:
            assert not long_signatures(path), f"{name}: pass what belongs together as one thing, or by name"


@pytest.mark.parametrize("name", sorted(NAMED_BY_AN_OPERATOR))
def test_every_exception_is_still_one(name: str) -> None:
    assert long_signatures(ROOT / name)
