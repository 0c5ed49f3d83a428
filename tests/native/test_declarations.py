"""What Python and C++ both declare is the same in both: operators, structs and the numbers of the activations."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.native.kernels import ACTIVATIONS, STRUCTS, kernel_signatures

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.formulas import Activation, PlaneGradient, Value
from ondevice.native.build import SOURCE_FOLDER

KINDS = {
    **dict.fromkeys(("tensor", "planes", "bytes", "ids"), "Tensor"),
    "optional_tensor": "Optional[Tensor]",
    **dict.fromkeys(("integer", "activation"), "int"),
    "boolean": "bool",
    "number": "float",
    **dict.fromkeys(("integers", "pair"), "List[int]"),
}
"""What `Call` can take from the arguments -> the type in torch's schema."""
HEADER = (SOURCE_FOLDER / "operators/operator_call.h").read_text()
SOURCES = {path.stem: path.read_text() for path in sorted((SOURCE_FOLDER / "operators").glob("*.cpp"))}
KERNELS_H = (SOURCE_FOLDER / "kernels/kernels.h").read_text()


class Declaration(NamedTuple):
    names: list[str]
    kinds: list[str]
    outputs: int


def cpp_declaration(text: str, function: str) -> Declaration:
    """The arguments as the comment above a C++ function names them, and as its body takes them."""
    pattern = rf"^// ([^\n]*)\n[^\n]*\b{function}\((?:KernelRuntimeContext|Call)&.*?^}}"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert found, f"no {function} with a line above it that names its arguments"
    names: list[str] = []
    kinds: list[str] = []
    for name in found[1].partition(" -> ")[0].split(", "):
        names += value().names if name == "value" else [name.removesuffix("?")]
    for taken in re.findall(r"\bcall\.(\w+)\(|(value_of)\(call\)", found[0]):
        if taken[1]:
            kinds += value().kinds
        elif taken[0] in KINDS:
            kinds.append(KINDS[taken[0]])
        else:
            assert taken[0] in ("require", "failed", "output", "output_like"), (
                f"{function} takes an unknown {taken[0]}"
            )
    return Declaration(names, kinds, len(re.findall(r"\bcall\.output(?:_like)?\(", found[0])))


def value() -> Declaration:
    return cpp_declaration(HEADER, "value_of")


def python_operators() -> list[str]:
    declared = torch._C._dispatch_get_all_op_names()
    return sorted(name.removeprefix("fedss::") for name in declared if re.fullmatch(r"fedss::\w+", name))


def test_the_operators_of_python_are_those_that_cpp_registers() -> None:
    registered: Counter[str] = Counter()
    for text in SOURCES.values():
        for name, function in re.findall(r'Kernel\("fedss::(\w+)\.out", (\w+)\)', text):
            assert name == function
            registered[name] += 1
    assert registered == Counter(python_operators())


@pytest.mark.parametrize("name", python_operators())
def test_an_operator_has_the_same_arguments_in_python_and_in_cpp(name: str) -> None:
    (text,) = (text for text in SOURCES.values() if f'Kernel("fedss::{name}.out"' in text)
    schema = getattr(torch.ops.fedss, name).default._schema
    expected = Declaration(
        [argument.name for argument in schema.arguments],
        [str(argument.type) for argument in schema.arguments],
        len(schema.returns),
    )
    assert cpp_declaration(text, name) == expected


def cpp_fields(struct: str) -> list[str]:
    found = re.search(rf"^struct {struct} {{\n(.*?)^}};", KERNELS_H, re.MULTILINE | re.DOTALL)
    assert found, f"kernels.h has no struct {struct}"
    fields: list[str] = []
    for line in re.sub(r"//.*", "", found[1]).splitlines():
        declared = re.fullmatch(r"\s*(?:const )?\w+\*? ([\w, ]+?)(?: = \S+)?;\s*", line)
        fields += declared[1].split(", ") if declared else []  # the other lines are member functions
    return fields


@pytest.mark.parametrize("struct", STRUCTS)
def test_the_tests_see_the_structs_of_the_kernels_as_they_are(struct: type[Any]) -> None:
    assert list(struct._fields) == cpp_fields(struct.__name__)


@pytest.mark.parametrize(("formula", "of_cpp_alone"), [(Value, {"shape", "groups"}), (PlaneGradient, set())])
def test_a_formula_of_the_lowering_is_the_struct_of_the_same_name(
    formula: type, of_cpp_alone: set[str]
) -> None:
    names = [field.name for field in dataclasses.fields(formula) if field.name != "shape"]
    assert names == [name for name in cpp_fields(formula.__name__) if name not in of_cpp_alone]


def test_the_activations_have_the_same_numbers() -> None:
    found = re.search(r"enum class Activation : int64_t {(.*?)}", KERNELS_H, re.DOTALL)
    assert found
    in_cpp = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", found[1])}
    assert in_cpp == {activation.name.lower(): int(activation) for activation in Activation}
    assert in_cpp == {name: number for number, name in enumerate(ACTIVATIONS)}


def test_a_kernel_is_listed_once_and_called_by_an_operator_or_by_the_runtime() -> None:
    names = [signature.name for signature in kernel_signatures()]
    called = set(re.findall(r"kernels\(\)\.(\w+)\(", "".join(SOURCES.values())))
    for name in ("operators/work_sharing.h", "runtime/peak.cpp"):
        called |= set(re.findall(r"kernels\(\)\.(\w+)\(", (SOURCE_FOLDER / name).read_text()))
    assert sorted(names) == sorted(called)


def test_every_kernel_is_compared_with_a_plain_reference() -> None:
    """In every build (`conftest.py`): a test that takes the kernels calls it."""
    names = {signature.name for signature in kernel_signatures()}
    tests = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    called = set(re.findall(r"\bkernels\.(\w+)\(", tests))
    # It measures the processor's peak, and computes nothing.
    assert names - called == {"multiply_adds"}
