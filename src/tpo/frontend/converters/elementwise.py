"""Arithmetic without surprises: n-ary operators as chains, clipping, casts and no-ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import onnx
from tvm import relax

from tpo.frontend.converters.registry import (
    Expr,
    Node,
    Unsupported,
    cast,
    constant,
    converter,
    dtype_of,
    is_float,
    shape_of,
    value_of,
)


def clamp(node: Node, data: Expr, low: float | int | None, high: float | int | None) -> Expr:
    """`min(max(data, low), high)`.

    Not relax.clip: ConvertLayout knows how to push layouts through maximum and minimum with scalars,
    but not through clip. The bound comes first because TVM's max(a, b) is `a > b ? a : b`, which
    lets a NaN in `data` through, as ONNX Runtime does.
    """
    dtype = dtype_of(data)
    if low is not None:
        data = node.emit(relax.op.maximum(constant(low, dtype), data))
    if high is not None:
        data = node.emit(relax.op.minimum(constant(high, dtype), data))
    return data


def _chain(operation: Callable[[Expr, Expr], Expr], node: Node) -> Expr:
    operands = [node.input(index) for index in range(len(node.inputs))]
    return reduce(lambda left, right: node.emit(operation(left, right)), operands)


@converter("Sum")
def _sum(node: Node) -> Expr:
    return _chain(relax.op.add, node)


@converter("Max")
def _max(node: Node) -> Expr:
    return _chain(relax.op.maximum, node)


@converter("Min")
def _min(node: Node) -> Expr:
    return _chain(relax.op.minimum, node)


@converter("Mean")
def _mean(node: Node) -> Expr:
    total = _chain(relax.op.add, node)
    count = len(node.inputs)
    return total if count == 1 else relax.op.multiply(total, constant(1.0 / count, dtype_of(total)))


@converter("Clip")
def _clip_by_attributes(node: Node) -> Expr:
    return clamp(node, node.input(0), node.attribute("min"), node.attribute("max"))


@converter("Clip", since=11)
def _clip(node: Node) -> Expr:
    data = node.input(0)
    for operation, index in ((relax.op.maximum, 1), (relax.op.minimum, 2)):
        bound = node.optional(index)
        if bound is None:
            continue
        value = value_of(bound)
        if value is not None:
            bound = constant(value.reshape(()))
        elif shape_of(bound):
            bound = node.emit(relax.op.reshape(bound, ()))
        data = node.emit(operation(bound, data))
    return data


@converter("Identity", "Dropout")
def _identity(node: Node) -> tuple[Expr, ...]:
    data = node.input(0)
    if node.operator == "Dropout" and node.attribute("is_test", 1) == 0:
        raise Unsupported("only inference is supported, and it is in training mode")
    mask = constant(np.ones(shape_of(data), dtype=bool)) if node.wants(1) else None
    return data, mask


@converter("Dropout", since=12)
def _dropout(node: Node) -> tuple[Expr, ...]:
    training = node.optional(2)
    if training is not None:
        ratio = node.constant(1)
        off = ratio is not None and float(ratio) == 0.0
        if bool(node.required_constant(2, "training mode")) and not off:
            raise Unsupported("only inference is supported, and it is in training mode")
    return _identity(node)


@converter("Cast")
def _cast(node: Node) -> Expr:
    return convert_type(node, node.input(0), onnx_dtype(node.attribute("to")))


@converter("CastLike", since=15)
def _cast_like(node: Node) -> Expr:
    return convert_type(node, node.input(0), dtype_of(node.input(1)))


def onnx_dtype(element_type: int) -> str:
    """Relax's name of an ONNX element type."""
    if element_type == onnx.TensorProto.STRING:
        raise Unsupported("strings are not supported")
    return str(onnx.helper.tensor_dtype_to_np_dtype(element_type))


def convert_type(node: Node, data: Expr, dtype: str) -> Expr:
    """`data` as `dtype` with ONNX's rules: non-zero (NaN too) is true; floats are cut towards zero."""
    source = dtype_of(data)
    if dtype == "bool" and source != "bool":
        return relax.op.not_equal(data, constant(0, source))
    if any(
        name.startswith(("float8", "float4", "int4", "uint4", "int2", "uint2")) for name in (dtype, source)
    ):
        raise Unsupported(f"casts between {source} and {dtype} are not supported")
    if is_float(source) and dtype in ("int8", "uint8", "int16", "uint16"):
        # A direct cast saturates in LLVM; through int32 it wraps, as ONNX Runtime's does.
        data = cast(node, data, "int32")
    return cast(node, data, dtype)


@converter("Pow", since=7)
def _pow(node: Node) -> Expr:
    base, exponent = node.input(0), node.input(1)
    value = value_of(exponent)
    if value is not None and value.size == 1:
        power = float(value.reshape(()))
        if power == 1.0 and not value.ndim:
            return base
        if power == 2.0:
            return relax.op.multiply(base, base)
        if power == 0.5 and is_float(dtype_of(base)):
            return relax.op.sqrt(base)
    dtype = dtype_of(base)
    if is_float(dtype):
        return relax.op.power(base, cast(node, exponent, dtype))
    # Integer powers through float64, exact up to 2**53.
    power_of = relax.op.power(cast(node, base, "float64"), cast(node, exponent, "float64"))
    return relax.op.astype(node.emit(power_of), dtype)
