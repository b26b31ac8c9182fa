"""Questions rules ask about expressions: constants, shapes, products, equality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.ir import GenericConst

from tpo.frontend.canonicalise.engine import Graph, operator

Array = npt.NDArray[Any]


def constant(expr: Any) -> Array | None:
    """The value of a constant tensor."""
    if not isinstance(expr, GenericConst):
        return None
    value: Array = expr.value.numpy()
    return value


def scalar(expr: Any) -> float | None:
    """The value of a constant with one element."""
    value = constant(expr)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def shape(expr: Any) -> tuple[int, ...] | None:
    """Static shape of a tensor expression."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None or not hasattr(ty.shape, "values"):
        return None
    dims = []
    for dim in ty.shape.values:
        try:
            dims.append(int(dim))
        except (TypeError, ValueError):
            return None
    return tuple(dims)


def dtype(expr: Any) -> str:
    """Element type of a tensor expression."""
    return str(expr.ty.dtype)


def is_float(expr: Any) -> bool:
    """Whether the tensor holds floating point numbers."""
    return isinstance(expr.ty, relax.TensorType) and "float" in dtype(expr)


def close(value: float | None, expected: float) -> bool:
    """Whether a constant is the expected one, as exporters round it."""
    return value is not None and math.isclose(value, expected, rel_tol=1e-3)


def tensor(value: Array) -> Any:
    """A constant of exactly this array; `relax.const` alone would make 64 bit types 32 bit ones."""
    return relax.const(value, str(value.dtype))


def like(value: Array, expr: Any) -> Any:
    """A constant with the element type of an expression."""
    return relax.const(np.asarray(value).astype(dtype(expr)), dtype(expr))


def same(left: Any, right: Any, graph: Graph, depth: int = 4) -> bool:
    """Whether two expressions compute the same value, looking through bindings a few levels deep."""
    if left.same_as(right):
        return True
    left, right = graph.value(left), graph.value(right)
    if left.same_as(right):
        return True
    if depth == 0 or operator(left) != operator(right):
        return False
    if isinstance(left, GenericConst) and isinstance(right, GenericConst):
        first, second = left.value.numpy(), right.value.numpy()
        return first.dtype == second.dtype and bool(np.array_equal(first, second))
    return (
        operator(left) != ""
        and len(left.args) == len(right.args)
        and str(left.attrs) == str(right.attrs)
        and all(same(a, b, graph, depth - 1) for a, b in zip(left.args, right.args, strict=True))
    )


def product(expr: Any, graph: Graph) -> tuple[float, list[Any]]:
    """A tree of multiplications as one coefficient and the factors that are not constant scalars."""
    value = scalar(expr)
    if value is not None:
        return value, []
    call = graph.call(expr, "multiply", "divide", "negative")
    if call is None:
        return 1.0, [expr]
    if operator(call) == "negative":
        coefficient, factors = product(call.args[0], graph)
        return -coefficient, factors
    if operator(call) == "divide":
        divisor = scalar(call.args[1])
        if divisor is None or divisor == 0:
            return 1.0, [expr]
        coefficient, factors = product(call.args[0], graph)
        return coefficient / divisor, factors
    left, right = (product(arg, graph) for arg in call.args)
    return left[0] * right[0], left[1] + right[1]


def scaled(expr: Any, coefficient: float, dtype: str) -> Any:
    """The expression times a constant; itself when the constant is one up to exporters' rounding."""
    if math.isclose(coefficient, 1.0, rel_tol=1e-6):
        return expr
    return relax.op.multiply(expr, relax.const(coefficient, dtype))


def axes(call: Any) -> list[int] | None:
    """Non-negative reduction axes of a mean, if its dimensions are kept."""
    if not call.attrs.keepdims or call.attrs.axis is None:
        return None
    rank = call.args[0].ty.ndim
    return sorted(int(axis) % rank for axis in call.attrs.axis)
