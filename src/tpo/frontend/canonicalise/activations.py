"""SiLU and GELU, however the exporter associated their products; PReLU as arithmetic."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import (
    close,
    constant,
    dtype,
    is_float,
    like,
    product,
    same,
    scalar,
    scaled,
    shape,
)


def silu(call: Any, graph: Graph) -> Any:
    """X * sigmoid(x)."""
    found = _self_gated(call, graph, "sigmoid")
    if found is None:
        return None
    coefficient, x, gate = found
    return scaled(relax.op.nn.silu(x), coefficient, dtype(x)) if same(gate.args[0], x, graph) else None


def gelu_erf(call: Any, graph: Graph) -> Any:
    """0.5 x (1 + erf(x / sqrt 2))."""
    found = _self_gated(call, graph, "add")
    if found is None:
        return None
    coefficient, x, gate = found
    erf = _one_plus(gate, graph, "erf")
    if erf is None:
        return None
    scale, inner = product(erf.args[0], graph)
    if len(inner) == 1 and same(inner[0], x, graph) and close(scale, math.sqrt(0.5)):
        return scaled(relax.op.nn.gelu(x), 2 * coefficient, dtype(x))
    return None


def gelu_tanh(call: Any, graph: Graph) -> Any:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    found = _self_gated(call, graph, "add")
    if found is None:
        return None
    coefficient, x, gate = found
    tanh = _one_plus(gate, graph, "tanh")
    if tanh is None or not _is_gelu_polynomial(tanh.args[0], x, graph):
        return None
    return scaled(relax.op.nn.gelu_tanh(x), 2 * coefficient, dtype(x))


def prelu(call: Any, graph: Graph) -> Any:
    """As max(x, 0) + slope * min(x, 0) a PReLU needs no axis and follows any layout."""
    slope = constant(call.args[1]) if operator(call) == "nn.prelu" else None
    if slope is None:
        return None
    x, axis, rank = call.args[0], int(call.attrs.axis), call.ty.ndim
    slopes = like(slope.reshape([-1 if k == axis % rank else 1 for k in range(rank)]), x)
    negative = relax.op.minimum(x, relax.const(0, dtype(x)))
    return relax.op.add(relax.op.nn.relu(x), relax.op.multiply(negative, slopes))


def _self_gated(call: Any, graph: Graph, gate: str) -> tuple[float, Any, Any] | None:
    """Coefficient, x and gate call of a product `coefficient * x * gate(...)`."""
    if operator(call) not in ("multiply", "divide") or not is_float(call):
        return None
    coefficient, factors = product(call, graph)
    if len(factors) != 2:
        return None
    for x, other in (factors, factors[::-1]):
        gate_call = graph.call(other, gate)
        if gate_call is not None and shape(x) == shape(call):
            return coefficient, x, gate_call
    return None


def _one_plus(add: Any, graph: Graph, name: str) -> Any:
    """The call `f(...)` in `1 + f(...)`."""
    for one, other in (add.args, list(add.args)[::-1]):
        if close(scalar(one), 1.0):
            return graph.call(other, name)
    return None


def _is_gelu_polynomial(expr: Any, x: Any, graph: Graph) -> bool:
    """sqrt(2/pi) * (x + 0.044715 x^3), also with x taken out: sqrt(2/pi) * x * (1 + 0.044715 x^2)."""
    scale, factors = product(expr, graph)
    if not close(scale, math.sqrt(2 / math.pi)):
        return False
    sums = [graph.call(factor, "add") for factor in factors]
    rest = [factor for factor, add in zip(factors, sums, strict=True) if add is None]
    add = next((add for add in sums if add is not None), None)
    if add is None or any(not same(factor, x, graph) for factor in rest) or len(rest) > 1:
        return False
    for first, second in (add.args, list(add.args)[::-1]):
        plain = close(scalar(first), 1.0) if rest else same(first, x, graph)
        coefficient, power = _power_of(second, x, graph)
        if plain and close(coefficient, 0.044715) and power == 3 - len(rest):
            return True
    return False


def _power_of(expr: Any, x: Any, graph: Graph) -> tuple[float, int]:
    """Coefficient and exponent when the expression is c * x^n; exponent -1 when it is not."""
    coefficient, factors = product(expr, graph)
    exponent = 0
    for factor in factors:
        power = graph.call(factor, "power")
        if same(factor, x, graph):
            exponent += 1
        elif power is not None and same(power.args[0], x, graph) and scalar(power.args[1]) is not None:
            exponent += round(scalar(power.args[1]) or 0)
        else:
            return coefficient, -1
    return coefficient, exponent


RULES: tuple[Rule, ...] = (silu, gelu_erf, gelu_tanh, prelu)
