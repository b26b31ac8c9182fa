"""LayerNorm and RMSNorm written out as means, subtractions and roots."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import axes, close, is_float, like, same, scalar, shape


def normalisation(call: Any, graph: Graph) -> Any:
    """Y / sqrt(mean(y^2) + eps): a LayerNorm if y is x - mean(x), an RMSNorm otherwise.

    Scale and shift that follow are absorbed by the affine rules.
    """
    found = _divided_by_root(call, graph)
    if found is None or not is_float(call):
        return None
    y, inside = found
    add = graph.call(inside, "add")
    epsilon, mean = (0.0, inside) if add is None else _epsilon(add)
    mean_call = graph.call(mean, "mean")
    if epsilon is None or mean_call is None or not _is_square_of(mean_call.args[0], y, graph):
        return None
    over = axes(mean_call)
    dims = shape(y)
    if over is None or dims is None or shape(call) != dims or over != list(range(over[0], len(dims))):
        return None
    if over[0] == 0:
        return None  # TVM's norms keep at least one axis
    kept = [dims[axis] for axis in over]
    ones = like(np.ones(kept), y)
    centred = _centred(y, over, graph)
    if centred is None:
        return relax.op.nn.rms_norm(y, ones, over, epsilon)
    return relax.op.nn.layer_norm(centred, ones, like(np.zeros(kept), y), over, epsilon)


def _divided_by_root(call: Any, graph: Graph) -> tuple[Any, Any] | None:
    """Y and v of y / sqrt(v), y * rsqrt(v) or y * (1 / sqrt(v))."""
    if operator(call) == "divide":
        root = graph.call(call.args[1], "sqrt")
        return None if root is None else (call.args[0], root.args[0])
    if operator(call) != "multiply":
        return None
    for y, inverse in (call.args, list(call.args)[::-1]):
        rsqrt = graph.call(inverse, "rsqrt")
        if rsqrt is not None:
            return y, rsqrt.args[0]
        reciprocal = graph.call(inverse, "divide")
        if reciprocal is not None and close(scalar(reciprocal.args[0]), 1.0):
            root = graph.call(reciprocal.args[1], "sqrt")
            if root is not None:
                return y, root.args[0]
    return None


def _epsilon(add: Any) -> tuple[float | None, Any]:
    for constant, other in (add.args, list(add.args)[::-1]):
        value = scalar(constant)
        if value is not None:
            return value, other
    return None, None


def _is_square_of(expr: Any, y: Any, graph: Graph) -> bool:
    call = graph.call(expr, "multiply", "power", "square")
    if call is None or not same(call.args[0], y, graph):
        return False
    if operator(call) == "power":
        return close(scalar(call.args[1]), 2.0)
    return operator(call) == "square" or same(call.args[1], y, graph)


def _centred(y: Any, over: list[int], graph: Graph) -> Any:
    """X of x - mean(x)."""
    subtract = graph.call(y, "subtract")
    mean = None if subtract is None else graph.call(subtract.args[1], "mean")
    if mean is None or axes(mean) != over or not same(mean.args[0], subtract.args[0], graph):
        return None
    return subtract.args[0]


RULES: tuple[Rule, ...] = (normalisation,)
