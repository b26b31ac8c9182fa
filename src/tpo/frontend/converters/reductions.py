"""Reductions and scans whose TVM translations miss a corner: infinities, booleans, directions."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tpo.frontend.converters.registry import (
    Expr,
    Node,
    Shape,
    cast,
    constant,
    converter,
    dtype_of,
    is_float,
    normalise_axis,
    rank_of,
    shape_of,
)


def _reduced_axes(node: Node) -> list[int] | None:
    """The axes to reduce, from attribute or input; None when there is nothing to reduce."""
    rank = rank_of(node.input(0))
    axes = node.attribute("axes")
    if axes is None and node.optional(1) is not None:
        axes = node.required_constant(1, "axes").reshape(-1).tolist()
    if not axes:
        return None if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return [normalise_axis(int(axis), rank) for axis in axes]


def _kept_shape(shape: Shape, axes: list[int], keep: bool) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)


@converter("ReduceMax", "ReduceMin")
def _reduce_extreme(node: Node) -> Expr:
    data, axes, keep = node.input(0), _reduced_axes(node), bool(node.attribute("keepdims", 1))
    if axes is None:
        return data
    dtype, largest = dtype_of(data), node.operator == "ReduceMax"
    infinity = -np.inf if largest else np.inf
    if 0 in shape_of(data):
        return constant(np.full(_kept_shape(shape_of(data), axes, keep), _identity(dtype, largest)), dtype)
    reduce = relax.op.max if largest else relax.op.min
    if dtype == "bool":
        return cast(node, node.emit(reduce(cast(node, data, "int8"), axis=axes, keepdims=keep)), "bool")
    result = node.emit(reduce(data, axis=axes, keepdims=keep))
    if not is_float(dtype):
        return result
    # TVM starts a maximum from the lowest finite number; where that comes out, all was -infinity.
    start = constant(_finite_limit(dtype, largest), dtype)
    return relax.op.where(node.emit(relax.op.equal(result, start)), constant(infinity, dtype), result)


def _finite_limit(dtype: str, largest: bool) -> float:
    limits = {
        "float16": 65504.0,
        "float32": float(np.finfo(np.float32).max),
        "bfloat16": 3.3895313892515355e38,
    }
    limit = limits.get(dtype, float(np.finfo(np.float64).max))
    return -limit if largest else limit


def _identity(dtype: str, largest: bool) -> float | int | bool:
    if dtype == "bool":
        return not largest
    if is_float(dtype):
        return -np.inf if largest else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if largest else limits.max)


@converter("CumSum", since=11)
@converter("CumProd", since=26)
def _cumulative(node: Node) -> Expr:
    data = node.input(0)
    axis = normalise_axis(int(node.required_constant(1, "axis").reshape(())), rank_of(data))
    backwards = bool(node.attribute("reverse", 0))
    scan = relax.op.cumsum if node.operator == "CumSum" else relax.op.cumprod
    if backwards:
        data = node.emit(relax.op.flip(data, axis))
    result = node.emit(
        scan(data, axis=axis, dtype=dtype_of(data), exclusive=bool(node.attribute("exclusive", 0)))
    )
    return node.emit(relax.op.flip(result, axis)) if backwards else result


@converter("Softmax", "LogSoftmax", "Hardmax")
def _softmax_of_matrix(node: Node) -> Expr:
    """Until opset 12 the input is first flattened to a matrix at `axis`."""
    data = node.input(0)
    shape = shape_of(data)
    axis = normalise_axis(node.attribute("axis", 1), len(shape))
    flat = data
    if axis != len(shape) - 1:
        rows = int(np.prod(shape[:axis]))
        flat = node.emit(relax.op.reshape(data, (rows, int(np.prod(shape[axis:])))))
    result = node.emit(_softmax(node, flat, -1))
    return result if flat is data else relax.op.reshape(result, shape)


@converter("Softmax", "LogSoftmax", "Hardmax", since=13)
def _softmax_of_axis(node: Node) -> Expr:
    return _softmax(node, node.input(0), node.attribute("axis", -1))


def _softmax(node: Node, data: Expr, axis: int) -> Expr:
    axis = normalise_axis(axis, rank_of(data))
    if node.operator == "Softmax":
        return relax.op.nn.softmax(data, axis)
    if node.operator == "LogSoftmax":
        return relax.op.nn.log_softmax(data, axis)
    index = node.emit(relax.op.argmax(data, axis=axis, keepdims=True))
    places = np.arange(shape_of(data)[axis]).reshape([-1 if i == axis else 1 for i in range(rank_of(data))])
    return relax.op.astype(
        node.emit(relax.op.equal(index, constant(places, dtype_of(index)))), dtype_of(data)
    )
