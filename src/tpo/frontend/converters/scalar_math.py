"""Element-wise functions whose TVM translation loses precision or misses a corner of ONNX."""

from __future__ import annotations

import numpy as np
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
)


@converter("Softplus")
def _softplus(node: Node) -> Expr:
    """`max(x, 0) + log1p(exp(-|x|))`: the same function, finite and precise for every x."""
    data = node.input(0)
    small = node.emit(relax.op.exp(node.emit(relax.op.negative(node.emit(relax.op.abs(data))))))
    return relax.op.add(node.emit(relax.op.maximum(data, constant(0, dtype_of(data)))), _log1p(node, small))


def _log1p(node: Node, small: Expr) -> Expr:
    """log(1 + u) for 0 <= u <= 1, without losing u in the sum: log(w) * u / (w - 1) with w = 1 + u."""
    one = constant(1, dtype_of(small))
    whole = node.emit(relax.op.add(small, one))
    lost = node.emit(relax.op.subtract(whole, one))
    none_left = node.emit(relax.op.equal(whole, one))
    safe = node.emit(relax.op.where(none_left, one, lost))
    ratio = node.emit(relax.op.divide(small, safe))
    precise = node.emit(relax.op.multiply(node.emit(relax.op.log(whole)), ratio))
    return node.emit(relax.op.where(none_left, small, precise))


@converter("Mish", since=18)
def _mish(node: Node) -> Expr:
    """`x * tanh(softplus(x))` as `x * n / (n + 2)` with n = e^x (e^x + 2): no logarithm to lose digits in."""
    data = node.input(0)
    dtype = dtype_of(data)
    # Beyond 20 the factor is 1 in float32, and the square would overflow.
    grown = node.emit(relax.op.exp(node.emit(relax.op.minimum(data, constant(20, dtype)))))
    two = constant(2, dtype)
    n = node.emit(relax.op.multiply(grown, node.emit(relax.op.add(grown, two))))
    factor = node.emit(relax.op.divide(n, node.emit(relax.op.add(n, two))))
    return relax.op.multiply(data, factor)


@converter("IsInf", since=10)
def _is_inf(node: Node) -> Expr:
    data = node.input(0)
    dtype = dtype_of(data)
    signs = [
        node.emit(relax.op.equal(data, constant(value, dtype)))
        for name, value in (("detect_positive", np.inf), ("detect_negative", -np.inf))
        if node.attribute(name, 1)
    ]
    if not signs:
        return constant(np.zeros(shape_of(data), dtype=bool))
    return signs[0] if len(signs) == 1 else relax.op.logical_or(*signs)


@converter("Mod", since=10)
def _mod(node: Node) -> Expr:
    """The remainder with the divisor's sign (Python's), or with the dividend's for fmod=1 (C's)."""
    left, right = node.input(0), node.input(1)
    dtype = dtype_of(left)
    if dtype in ("float16", "bfloat16"):
        wide = _remainder(node, cast(node, left, "float32"), cast(node, right, "float32"))
        return cast(node, wide, dtype)
    return _remainder(node, left, right)


def _remainder(node: Node, left: Expr, right: Expr) -> Expr:
    dtype = dtype_of(left)
    if not is_float(dtype):
        return node.emit((relax.op.mod if node.attribute("fmod", 0) else relax.op.floor_mod)(left, right))
    rest = node.emit(relax.op.mod(left, right))
    if node.attribute("fmod", 0):
        return rest
    zero = constant(0, dtype)
    signs = [node.emit(relax.op.less(value, zero)) for value in (rest, right)]
    differ = node.emit(relax.op.logical_xor(*signs))
    wrong = node.emit(relax.op.logical_and(differ, node.emit(relax.op.not_equal(rest, zero))))
    return node.emit(relax.op.where(wrong, node.emit(relax.op.add(rest, right)), rest))


@converter("BitShift", since=11)
def _bit_shift(node: Node) -> Expr:
    """Shifts by the width or more give what is left of the bits: zero, or the sign."""
    data, amount = node.input(0), node.input(1)
    dtype = dtype_of(data)
    width = np.iinfo(dtype).bits
    left = node.attribute("direction") == "LEFT"
    shift = relax.op.left_shift if left else relax.op.right_shift
    signed = dtype.startswith("int")
    inside = node.emit(relax.op.less(amount, constant(width, dtype)))
    if signed:
        positive = node.emit(relax.op.greater_equal(amount, constant(0, dtype)))
        inside = node.emit(relax.op.logical_and(inside, positive))
    safe = node.emit(relax.op.where(inside, amount, constant(width - 1, dtype)))
    shifted = node.emit(shift(data, safe))
    if signed and not left:
        return shifted  # width - 1 leaves exactly the sign
    return relax.op.where(inside, shifted, constant(0, dtype))


@converter("Reciprocal")
def _reciprocal(node: Node) -> Expr:
    return relax.op.divide(constant(1, dtype_of(node.input(0))), node.input(0))


@converter("RoiAlign", since=10)
def _roi_align(node: Node) -> Expr:
    if node.attribute("mode", "avg") != "avg":
        raise Unsupported("only mode 'avg' is supported")
    return node.by_tvm()


@converter("TopK")
def _top_k(node: Node) -> Expr:
    if dtype_of(node.input(0)) == "uint64":
        raise Unsupported("uint64 data is not supported")
    return node.by_tvm()


@converter("MaxUnpool", since=9)
def _max_unpool(node: Node) -> Expr:
    if node.optional(2) is not None:
        raise Unsupported("output_shape is not supported")
    return node.by_tvm()
