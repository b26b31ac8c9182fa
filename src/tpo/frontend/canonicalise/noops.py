"""Operators that do nothing, that two of make one, or that have a cheaper or safer spelling."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import constant, dtype, is_float, scalar, shape, tensor


def neutral_operand(call: Any, graph: Graph) -> Any:
    """Adding or subtracting 0, multiplying or dividing by 1, raising to the power of 1."""
    name = operator(call)
    if name not in ("add", "subtract", "multiply", "divide", "power"):
        return None
    neutral = 0.0 if name in ("add", "subtract") else 1.0
    left, right = call.args
    if _is_filled_with(right, neutral) and shape(left) == shape(call):
        return left
    if name in ("add", "multiply") and _is_filled_with(left, neutral) and shape(right) == shape(call):
        return right
    return None


def _is_filled_with(expr: Any, value: float) -> bool:
    array = constant(expr)
    return array is not None and bool(np.all(array == value))


def same_type_cast(call: Any, graph: Graph) -> Any:
    """Casting to the type a tensor already has."""
    if operator(call) == "astype" and str(call.args[0].ty.dtype) == str(call.ty.dtype):
        return call.args[0]
    return None


def single_concat(call: Any, graph: Graph) -> Any:
    """Concatenating one tensor."""
    if operator(call) == "concat" and isinstance(call.args[0], relax.Tuple) and len(call.args[0].fields) == 1:
        return call.args[0].fields[0]
    return None


def whole_slice(call: Any, graph: Graph) -> Any:
    """Slicing out everything, or broadcasting to the shape a tensor already has."""
    if operator(call) == "broadcast_to" and shape(call.args[0]) == shape(call):
        return call.args[0]
    if operator(call) != "strided_slice" or shape(call.args[0]) != shape(call) or shape(call) is None:
        return None
    strides = call.args[4].fields if len(call.args) > 4 and isinstance(call.args[4], relax.Tuple) else []
    return call.args[0] if all(int(getattr(step, "value", step)) == 1 for step in strides) else None


def subtraction_of_constant(call: Any, graph: Graph) -> Any:
    """Subtracting c is adding -c, which joins other shifts."""
    value = constant(call.args[1]) if operator(call) == "subtract" and is_float(call) else None
    if value is None or constant(call.args[0]) is not None:
        return None
    return relax.op.add(call.args[0], tensor(-value))


def division_by_constant(call: Any, graph: Graph) -> Any:
    """Dividing by c is multiplying by 1 / c, which is cheaper and joins other products."""
    if operator(call) != "divide" or not is_float(call):
        return None
    divisor = constant(call.args[1])
    if divisor is None or constant(call.args[0]) is not None or not np.all(np.abs(divisor) > 1e-20):
        return None
    return relax.op.multiply(call.args[0], tensor((1.0 / divisor).astype(divisor.dtype)))


def power_by_roots(call: Any, graph: Graph) -> Any:
    """x^(n/4), as LRN has it, is a product of x and its square roots, which there are instructions for."""
    exponent = scalar(call.args[1]) if operator(call) == "power" and is_float(call) else None
    if exponent is None or abs(exponent) >= 2 or shape(call.args[0]) != shape(call):
        return None
    quarters = round(4 * abs(exponent))
    if quarters != 4 * abs(exponent) or quarters % 4 == 0:
        return None
    x = call.args[0]
    root = relax.op.sqrt(x)
    factors = [(4, x), (2, root), (1, relax.op.sqrt(root))]
    found = functools.reduce(relax.op.multiply, (factor for bit, factor in factors if quarters & bit))
    return found if exponent > 0 else relax.op.divide(relax.const(1, dtype(call)), found)


def clamp(call: Any, graph: Graph) -> Any:
    """min(max(x, lo), hi), max(min(x, hi), lo) with constant bounds are one clip."""
    if operator(call) not in ("minimum", "maximum") or not is_float(call):
        return None
    other = "maximum" if operator(call) == "minimum" else "minimum"
    bound, inner = _bounded(call)
    inner_call = None if inner is None else graph.call(inner, other)
    if inner_call is None or bound is None:
        return None
    inner_bound, x = _bounded(inner_call)
    if inner_bound is None or shape(x) != shape(call):
        return None
    low, high = (inner_bound, bound) if other == "maximum" else (bound, inner_bound)
    return relax.op.clip(x, low, high) if low <= high and not math.isnan(low + high) else None


def bound_first(call: Any, graph: Graph) -> Any:
    """In a maximum or minimum the constant comes first: compiled code then keeps a NaN of the other."""
    if operator(call) not in ("minimum", "maximum") or constant(call.args[1]) is None or not is_float(call):
        return None
    if constant(call.args[0]) is not None:
        return None
    return relax.Call(call.op, [call.args[1], call.args[0]], call.attrs, call.ty_args)


def safe_take(call: Any, graph: Graph) -> Any:
    """Gathering by indices that only the user knows must not read foreign memory: clip them."""
    if operator(call) != "take" or call.attrs.mode != "fast":
        return None
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return relax.op.take(call.args[0], call.args[1], axis, mode="clip")


def _bounded(call: Any) -> tuple[float | None, Any]:
    for bound, x in ((call.args[1], call.args[0]), (call.args[0], call.args[1])):
        value = scalar(bound)
        if value is not None:
            return value, x
    return None, None


RULES: tuple[Rule, ...] = (
    neutral_operand,
    same_type_cast,
    single_concat,
    whole_slice,
    subtraction_of_constant,
    division_by_constant,
    power_by_roots,
    clamp,
    bound_first,
    safe_take,
)
