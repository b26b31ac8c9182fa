"""Constants are computed here and now, in numpy, and have the rank of what they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import Array, constant, dtype, shape

_BINARY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_UNARY: dict[str, Callable[..., Array]] = {"sqrt": np.sqrt, "negative": np.negative, "abs": np.abs}
_VIEWS = ("reshape", "squeeze", "expand_dims", "flatten")


def folded(call: Any, graph: Graph) -> Any:
    """A cheap operator on constants is a constant: TVM would compile a kernel for each of them."""
    name = operator(call)
    values = [constant(arg) for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    known = [value for value in values if value is not None]
    if not values or len(known) != len(values) or shape(call) is None:
        return None
    if name == "permute_dims":
        axes = None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
        result = np.ascontiguousarray(known[0].transpose(axes))
    elif name in _VIEWS:
        result = known[0].reshape(shape(call))
    elif name == "astype":
        result = known[0].astype(dtype(call))
    elif name in _BINARY:
        result = _BINARY[name](*known)
    elif name == "divide" and np.issubdtype(known[0].dtype, np.floating):
        result = np.divide(*known)
    elif name in _UNARY:
        result = _UNARY[name](known[0])
    else:
        return None
    return relax.const(result, dtype(call))


def full_rank(call: Any, graph: Graph) -> Any:
    """A constant operand of lower rank gets leading size-1 axes: layout conversion needs every axis."""
    if operator(call) not in (*_BINARY, "divide", "power") or shape(call) is None:
        return None
    rank = len(shape(call) or ())
    args = list(call.args)
    for position, arg in enumerate(args):
        value = constant(arg)
        if value is not None and 0 < value.ndim < rank and value.size > 1:
            args[position] = relax.const(value.reshape((1,) * (rank - value.ndim) + value.shape), dtype(arg))
            return relax.Call(call.op, args, call.attrs, call.ty_args)
    return None


RULES: tuple[Rule, ...] = (folded, full_rank)
