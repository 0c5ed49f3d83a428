"""Arithmetic, comparisons and logic, element by element; operands broadcast and are brought to one type."""

from __future__ import annotations

import math

import torch
from torch import fx

from export.onnx.operators.group_norm import scale_planes
from export.onnx.translation import (
    Formulation,
    Operand,
    Translation,
    Value,
    dtype_of,
    refused,
    shape_of,
)

aten = torch.ops.aten

NOT_FOR_BOOLEANS = frozenset({"Add", "Sub", "Mul", "Div", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"})


def _arithmetic(operator_name: str, operands: int) -> Formulation:
    """In the type of the result."""

    def formulation(t: Translation, node: fx.Node, *given: Operand) -> Value:
        dtype = dtype_of(node)
        if len(given) != operands or (dtype == torch.bool and operator_name in NOT_FOR_BOOLEANS):
            raise refused(node)
        return t.elementwise(operator_name, *given, dtype=dtype)

    return formulation


def _comparison(operator_name: str, *, negated: bool = False) -> Formulation:
    """In the type that torch would promote both sides to."""

    def formulation(t: Translation, _: fx.Node, left: fx.Node, right: Operand) -> Value:
        dtype = torch.result_type(
            left.meta["val"], right.meta["val"] if isinstance(right, fx.Node) else right
        )
        if dtype == torch.bool and operator_name in NOT_FOR_BOOLEANS:
            dtype = torch.int64
        compared = t.elementwise(operator_name, left, right, dtype=dtype)
        return t.elementwise("Not", compared) if negated else compared

    return formulation


def _logic(operator_name: str) -> Formulation:
    def formulation(t: Translation, node: fx.Node, *given: Operand) -> Value:
        if dtype_of(node) != torch.bool:
            raise refused(node, "only booleans have an ONNX formulation")
        return t.elementwise(operator_name, *given, dtype=torch.bool)

    return formulation


def _add(t: Translation, node: fx.Node, left: Operand, right: Operand, *, alpha: float = 1) -> Value:
    if alpha == 1 and isinstance(left, fx.Node) and isinstance(right, fx.Node):
        planes = _scaled_planes(t, left, right) or _scaled_planes(t, right, left)
        if planes:
            return planes
    return _sum(t, node, "Add", left, right, alpha)


def _subtract(t: Translation, node: fx.Node, left: Operand, right: Operand, *, alpha: float = 1) -> Value:
    return _sum(t, node, "Sub", left, right, alpha)


def _reversed_subtract(
    t: Translation, node: fx.Node, subtrahend: Operand, minuend: Operand, alpha: float = 1
) -> Value:
    return _sum(t, node, "Sub", minuend, subtrahend, alpha)


def _sum(t: Translation, node: fx.Node, sign: str, left: Operand, right: Operand, alpha: float) -> Value:
    dtype = dtype_of(node)
    if dtype == torch.bool:
        raise refused(node)
    times = right if alpha == 1 else t.elementwise("Mul", right, alpha, dtype=dtype)
    return t.elementwise(sign, left, times, dtype=dtype)


def _scaled_planes(t: Translation, scaled: fx.Node, shift: fx.Node) -> Value | None:
    """x·gate + v with gate and v one number per plane, as in the gradient of squeeze-and-excite: one pass, not two."""
    shape = shape_of(scaled)
    if scaled.target is not aten.mul.Tensor or len(shape) != 4 or dtype_of(scaled) != torch.float32:
        return None
    x, gate = scaled.args
    if not isinstance(x, fx.Node) or not isinstance(gate, fx.Node):
        return None
    planes = (*shape[:2], 1, 1)
    if t.compact(gate).shape != planes or t.compact(shift).shape != planes or t.compact(x).shape != shape:
        return None
    if {dtype_of(x), dtype_of(gate), dtype_of(shift)} != {torch.float32}:
        return None
    scale, offset = t.compact(gate).name, t.compact(shift).name
    return Value(scale_planes(t.graph, t.full(x), scale, offset, shape), shape)


def _divide(t: Translation, node: fx.Node, dividend: Operand, divisor: Operand) -> Value:
    if isinstance(divisor, fx.Node) or divisor == 0:
        return t.elementwise("Div", dividend, divisor, dtype=dtype_of(node))
    return t.elementwise("Mul", dividend, 1 / divisor, dtype=dtype_of(node))


def _divide_rounding(
    t: Translation, node: fx.Node, dividend: Operand, divisor: Operand, *, rounding_mode: str | None
) -> Value:
    dtype = dtype_of(node)
    if rounding_mode is None:
        return _divide(t, node, dividend, divisor)
    if rounding_mode == "floor":
        return _floor_divide(t, node, dividend, divisor)
    quotient = t.elementwise("Div", dividend, divisor, dtype=dtype)
    if not dtype.is_floating_point:
        return quotient
    sign, size = t.elementwise("Sign", quotient), t.elementwise("Floor", t.elementwise("Abs", quotient))
    return t.elementwise("Mul", sign, size)


def _floor_divide(t: Translation, node: fx.Node, dividend: Operand, divisor: Operand) -> Value:
    dtype = dtype_of(node)
    if dtype.is_floating_point:
        return t.elementwise("Floor", t.elementwise("Div", dividend, divisor))
    # ONNX divides integers towards zero, and its Mod has the sign of the divisor.
    whole = t.elementwise("Sub", dividend, t.elementwise("Mod", dividend, divisor, dtype=dtype), dtype=dtype)
    return t.elementwise("Div", whole, divisor, dtype=dtype)


def _remainder(t: Translation, node: fx.Node, dividend: Operand, divisor: Operand) -> Value:
    dtype = dtype_of(node)
    if not dtype.is_floating_point:
        return t.elementwise("Mod", dividend, divisor, dtype=dtype)
    whole = t.elementwise("Floor", t.elementwise("Div", dividend, divisor))
    return t.elementwise("Sub", dividend, t.elementwise("Mul", whole, divisor))


def _power(t: Translation, node: fx.Node, base: Operand, exponent: Operand) -> Value:
    """The exponents that people write, without a logarithm."""
    dtype = dtype_of(node)
    if isinstance(exponent, fx.Node):
        return t.elementwise("Pow", base, exponent, dtype=dtype)
    if exponent == 1:
        return t.operand(base, dtype)
    if exponent == 2:
        return t.elementwise("Mul", base, base, dtype=dtype)
    if exponent == 0.5:
        return t.elementwise("Sqrt", base)
    if exponent == -0.5:
        return t.elementwise("Reciprocal", t.elementwise("Sqrt", base))
    if exponent == -1:
        return t.elementwise("Reciprocal", base)
    return t.elementwise("Pow", base, exponent, dtype=dtype)


def _square(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return _power(t, node, x, 2)


def _reciprocal_root(t: Translation, _: fx.Node, x: fx.Node) -> Value:
    return t.elementwise("Reciprocal", t.elementwise("Sqrt", x))


def _exponential_minus_one(t: Translation, _: fx.Node, x: fx.Node) -> Value:
    """tanh(x/2)·(exp(x) + 1), which keeps its digits near 0."""
    half = t.elementwise("Tanh", t.elementwise("Mul", x, 0.5))
    return t.elementwise("Mul", half, t.elementwise("Add", t.elementwise("Exp", x), 1))


def _log_one_plus(t: Translation, _: fx.Node, x: fx.Node) -> Value:
    """2·artanh(x/(2 + x)), which keeps its digits near 0."""
    ratio = t.elementwise("Div", x, t.elementwise("Add", x, 2))
    return t.elementwise("Mul", t.elementwise("Atanh", ratio), 2)


def _log_to(base: float) -> Formulation:
    def formulation(t: Translation, _: fx.Node, x: fx.Node) -> Value:
        return t.elementwise("Mul", t.elementwise("Log", x), 1 / math.log(base))

    return formulation


def _truncate(t: Translation, _: fx.Node, x: fx.Node) -> Value:
    return t.elementwise("Mul", t.elementwise("Sign", x), t.elementwise("Floor", t.elementwise("Abs", x)))


def _clamp(
    t: Translation, node: fx.Node, x: Operand, min: Operand | None = None, max: Operand | None = None
) -> Value:
    """The bounds are named as ATen names them."""
    dtype = dtype_of(node)
    value = t.operand(x, dtype)
    if min is not None:
        value = t.elementwise("Max", value, min, dtype=dtype)
    return value if max is None else t.elementwise("Min", value, max, dtype=dtype)


def _clamp_max(t: Translation, node: fx.Node, x: Operand, most: Operand) -> Value:
    return _clamp(t, node, x, None, most)


def _where(t: Translation, node: fx.Node, condition: fx.Node, left: Operand, right: Operand) -> Value:
    dtype = dtype_of(node)
    chosen = (t.operand(condition, torch.bool), t.operand(left, dtype), t.operand(right, dtype))
    return t.choose(*chosen, dtype)


def _masked_fill(t: Translation, node: fx.Node, x: fx.Node, mask: fx.Node, value: Operand) -> Value:
    return _where(t, node, mask, value, x)


def _add_product(
    t: Translation, node: fx.Node, x: fx.Node, left: fx.Node, right: fx.Node, *, value: float = 1
) -> Value:
    product = t.elementwise("Mul", left, right, dtype=dtype_of(node))
    scaled = product if value == 1 else t.elementwise("Mul", product, value, dtype=dtype_of(node))
    return t.elementwise("Add", x, scaled, dtype=dtype_of(node))


def _add_quotient(
    t: Translation, _: fx.Node, x: fx.Node, left: fx.Node, right: fx.Node, *, value: float = 1
) -> Value:
    quotient = t.elementwise("Div", left, right)
    return t.elementwise("Add", x, quotient if value == 1 else t.elementwise("Mul", quotient, value))


def _cast(
    t: Translation, node: fx.Node, x: fx.Node, *_dtype: torch.dtype, dtype: torch.dtype | None = None
) -> Value:
    """To the type of the result; `dtype` says the same."""
    del dtype
    return t.operand(x, dtype_of(node))


def _is(operator_name: str) -> Formulation:
    def formulation(t: Translation, _: fx.Node, x: fx.Node) -> Value:
        return t.elementwise(operator_name, t.operand(x, torch.float32))

    return formulation


def _is_finite(t: Translation, _: fx.Node, x: fx.Node) -> Value:
    odd = t.elementwise("Or", t.elementwise("IsNaN", x), t.elementwise("IsInf", x))
    return t.elementwise("Not", odd)


_ONE_OPERAND = {
    "neg": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "sgn": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "erf": "Erf",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
}
_COMPARISONS = {"eq": "Equal", "lt": "Less", "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual"}


FORMULATIONS: dict[object, Formulation] = {
    **{getattr(aten, name).default: _arithmetic(onnx_name, 1) for name, onnx_name in _ONE_OPERAND.items()},
    **{
        overload: _comparison(onnx_name)
        for name, onnx_name in _COMPARISONS.items()
        for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
    },
    aten.ne.Tensor: _comparison("Equal", negated=True),
    aten.ne.Scalar: _comparison("Equal", negated=True),
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _subtract,
    aten.sub.Scalar: _subtract,
    aten.rsub.Tensor: _reversed_subtract,
    aten.rsub.Scalar: _reversed_subtract,
    aten.mul.Tensor: _arithmetic("Mul", 2),
    aten.mul.Scalar: _arithmetic("Mul", 2),
    aten.div.Tensor: _divide,
    aten.div.Scalar: _divide,
    aten.div.Tensor_mode: _divide_rounding,
    aten.div.Scalar_mode: _divide_rounding,
    aten.floor_divide.default: _floor_divide,
    aten.remainder.Tensor: _remainder,
    aten.remainder.Scalar: _remainder,
    aten.maximum.default: _arithmetic("Max", 2),
    aten.minimum.default: _arithmetic("Min", 2),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Scalar: _power,
    aten.square.default: _square,
    aten.rsqrt.default: _reciprocal_root,
    aten.expm1.default: _exponential_minus_one,
    aten.log1p.default: _log_one_plus,
    aten.log2.default: _log_to(2),
    aten.log10.default: _log_to(10),
    aten.trunc.default: _truncate,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_min.Tensor: _clamp,
    aten.clamp_max.default: _clamp_max,
    aten.clamp_max.Tensor: _clamp_max,
    aten.where.self: _where,
    aten.where.ScalarSelf: _where,
    aten.where.ScalarOther: _where,
    aten.where.Scalar: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.addcmul.default: _add_product,
    aten.addcdiv.default: _add_quotient,
    aten.logical_and.default: _logic("And"),
    aten.logical_or.default: _logic("Or"),
    aten.logical_xor.default: _logic("Xor"),
    aten.logical_not.default: _logic("Not"),
    aten.bitwise_and.Tensor: _logic("And"),
    aten.bitwise_or.Tensor: _logic("Or"),
    aten.bitwise_xor.Tensor: _logic("Xor"),
    aten.bitwise_not.default: _logic("Not"),
    aten.isnan.default: _is("IsNaN"),
    aten.isinf.default: _is("IsInf"),
    aten.isfinite.default: _is_finite,
    aten._to_copy.default: _cast,
    torch.ops.prims.convert_element_type.default: _cast,
}
