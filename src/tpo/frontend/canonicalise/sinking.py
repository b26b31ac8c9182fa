"""Transposes move down through other operators, to where they meet another and cancel.

TVM's layout conversion stops at operators it has no layout rule for, and transposes before and
after them; these rules clear up behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import constant, dtype, shape

ELEMENTWISE = frozenset(
    [
        "abs",
        "add",
        "astype",
        "ceil",
        "clip",
        "cos",
        "divide",
        "equal",
        "erf",
        "exp",
        "floor",
        "greater",
        "greater_equal",
        "isnan",
        "less",
        "less_equal",
        "log",
        "logical_and",
        "logical_not",
        "logical_or",
        "maximum",
        "minimum",
        "multiply",
        "negative",
        "not_equal",
        "power",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "sin",
        "sqrt",
        "square",
        "subtract",
        "tan",
        "tanh",
        "trunc",
        "where",
        "nn.gelu",
        "nn.gelu_tanh",
        "nn.leakyrelu",
        "nn.relu",
        "nn.relu6",
        "nn.selu",
        "nn.silu",
        "nn.softplus",
    ]
)


def through_elementwise(call: Any, graph: Graph) -> Any:
    """f(transpose(x), transpose(y), c) is transpose(f(x, y, untransposed c))."""
    if operator(call) not in ELEMENTWISE or shape(call) is None:
        return None
    tensors = [k for k, arg in enumerate(call.args) if isinstance(arg.ty, relax.TensorType)]
    axes = _common_order([call.args[k] for k in tensors], graph)
    if axes is None or len(axes) != len(shape(call) or ()):
        return None
    args = list(call.args)
    for k in tensors:
        args[k] = _before(args[k], axes, graph)
        if args[k] is None:
            return None
    return relax.op.permute_dims(relax.Call(call.op, args, call.attrs, call.ty_args), list(axes))


def through_concat(call: Any, graph: Graph) -> Any:
    """Concatenating transposed tensors is transposing what is concatenated along another axis."""
    if operator(call) != "concat" or not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return None
    parts = list(call.args[0].fields)
    axes = _common_order(parts, graph)
    if axes is None:
        return None
    before = [_before(part, axes, graph) for part in parts]
    if any(part is None for part in before):
        return None
    axis = axes[int(call.attrs.axis) % len(axes)]
    return relax.op.permute_dims(relax.op.concat(before, axis), list(axes))


def through_reduction(call: Any, graph: Graph) -> Any:
    """Reducing a transposed tensor is transposing what is reduced along other axes."""
    if (
        operator(call) not in ("mean", "sum", "max", "min")
        or not call.attrs.keepdims
        or call.attrs.axis is None
    ):
        return None
    permute = graph.call(call.args[0], "permute_dims")
    if permute is None:
        return None
    axes = _axes(permute)
    over = [axes[int(axis) % len(axes)] for axis in call.attrs.axis]
    reduced = getattr(relax.op, operator(call))(permute.args[0], over, keepdims=True)
    return relax.op.permute_dims(reduced, list(axes))


def through_pad(call: Any, graph: Graph) -> Any:
    """Padding a transposed tensor is transposing what is padded along other axes."""
    permute = graph.call(call.args[0], "permute_dims") if operator(call) == "nn.pad" else None
    if permute is None:
        return None
    axes, widths = _axes(permute), [int(width) for width in call.attrs.pad_width]
    before = [widths[2 * k + side] for k in np.argsort(axes) for side in (0, 1)]
    padded = relax.op.nn.pad(permute.args[0], before, call.attrs.pad_mode, float(call.attrs.pad_value))
    return relax.op.permute_dims(padded, list(axes))


def _common_order(args: list[Any], graph: Graph) -> tuple[int, ...] | None:
    """The permutation that all transposed operands share; None if there is none, or several."""
    orders = {_axes(found) for arg in args if (found := graph.call(arg, "permute_dims")) is not None}
    return orders.pop() if len(orders) == 1 else None


def _axes(permute: Any) -> tuple[int, ...]:
    rank = permute.args[0].ty.ndim
    given = permute.attrs.axes
    return tuple(range(rank))[::-1] if given is None else tuple(int(axis) % rank for axis in given)


def _before(arg: Any, axes: tuple[int, ...], graph: Graph) -> Any:
    """The operand as it is before the transpose, or None if that would take a transpose of its own."""
    permute = graph.call(arg, "permute_dims")
    if permute is not None:
        return permute.args[0]
    dims = shape(arg)
    if dims is not None and len(dims) == 0:
        return arg
    if dims is None or len(dims) != len(axes):
        return None
    value = constant(arg)
    if value is not None:
        return relax.const(np.ascontiguousarray(value.transpose(np.argsort(axes))), dtype(arg))
    if sum(size != 1 for size in dims) <= 1:
        return relax.op.reshape(arg, tuple(dims[k] for k in np.argsort(axes)))
    return None


def unclamp(call: Any, graph: Graph) -> Any:
    """Spell clip as max and min, which TVM's layout conversion knows; they become a clip again afterwards."""
    if operator(call) != "clip":
        return None
    low, high = (relax.const(float(bound.value), dtype(call)) for bound in call.args[1:3])
    return relax.op.minimum(relax.op.maximum(call.args[0], low), high)


RULES: tuple[Rule, ...] = (through_elementwise, through_concat, through_reduction, through_pad)
