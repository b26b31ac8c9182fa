"""Quantised operators, computed in the integers and with the roundings that ONNX specifies."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tpo.frontend.converters.convolution import convolve
from tpo.frontend.converters.elementwise import clamp, onnx_dtype
from tpo.frontend.converters.normalisation import per_channel
from tpo.frontend.converters.registry import (
    Array,
    Expr,
    Node,
    Shape,
    Unsupported,
    cast,
    constant,
    converter,
    dtype_of,
    normalise_axis,
    rank_of,
    shape_of,
    value_of,
)

_RANGES = {name: np.iinfo(name) for name in ("int8", "uint8", "int16", "uint16")}


def round_and_saturate(node: Node, data: Expr, zero_point: Expr | None, dtype: str) -> Expr:
    """Round float data half to even, shift by the zero point and saturate to an integer dtype."""
    if dtype not in _RANGES:
        raise Unsupported(f"quantisation to {dtype} is not supported")
    data = node.emit(relax.op.round(data))
    if zero_point is not None and not _is_zero(zero_point):
        data = node.emit(relax.op.add(data, cast(node, zero_point, dtype_of(data))))
    limits = _RANGES[dtype]
    return node.emit(relax.op.astype(clamp(node, data, limits.min, limits.max), dtype))


def quantise(node: Node, data: Expr, scale: Expr, zero_point: Expr | None, dtype: str) -> Expr:
    """`saturate(round(data / scale) + zero_point)` for a scale that broadcasts."""
    divided = node.emit(relax.op.divide(data, cast(node, scale, dtype_of(data))))
    return round_and_saturate(node, divided, zero_point, dtype)


def dequantise(node: Node, data: Expr, scale: Expr, zero_point: Expr | None) -> Expr:
    """`(data - zero_point) * scale` for a scale that broadcasts; of constants, now."""
    dtype = dtype_of(scale)
    known = [value_of(data), value_of(scale), None if zero_point is None else value_of(zero_point)]
    if known[0] is not None and known[1] is not None and (zero_point is None or known[2] is not None):
        shifted = known[0].astype(np.float32)
        if known[2] is not None:
            shifted = shifted - known[2].astype(np.float32)
        return constant(shifted * known[1].astype(np.float32), dtype)
    return node.emit(
        relax.op.multiply(cast(node, shifted_integer(node, data, zero_point, "int32"), dtype), scale)
    )


def shifted_integer(node: Node, data: Expr, zero_point: Expr | None, dtype: str) -> Expr:
    """`data - zero_point` in a wider integer type; of constants, now."""
    known = value_of(data)
    zero = None if zero_point is None else value_of(zero_point)
    if known is not None and (zero_point is None or zero is not None):
        shift = 0 if zero is None else zero.astype(dtype)
        return constant(known.astype(dtype) - shift)
    wide = cast(node, data, dtype)
    if zero_point is None or _is_zero(zero_point):
        return wide
    return node.emit(relax.op.subtract(wide, cast(node, zero_point, dtype)))


def _is_zero(value: Expr) -> bool:
    known = value_of(value)
    return known is not None and not known.astype(np.float32).any()


def spread(node: Node, value: Expr | None, data: Expr) -> Expr | None:
    """A scale or zero point of (De)QuantizeLinear in a shape that broadcasts with `data`.

    A scalar stays one, a vector lies along `axis`, and with `block_size` each element is repeated.
    """
    if value is None:
        return None
    shape, target = shape_of(value), shape_of(data)
    if int(np.prod(shape)) == 1 and not node.attribute("block_size", 0):
        return view(node, value, ())
    axis = normalise_axis(node.attribute("axis", 1), len(target))
    if len(shape) == 1 and not node.attribute("block_size", 0):
        return view(node, value, tuple(shape[0] if i == axis else 1 for i in range(len(target))))
    block = node.attribute("block_size", 0)
    if len(shape) != len(target) or not block:
        raise Unsupported(f"a scale of shape {list(shape)} for data of shape {list(target)} is not supported")
    known = value_of(value)
    if known is not None:
        repeated = np.repeat(known, block, axis)
        return constant(np.ascontiguousarray(repeated.take(range(target[axis]), axis)))
    longer = node.emit(relax.op.repeat(value, block, axis))
    return node.emit(relax.op.strided_slice(longer, axes=[axis], begin=[0], end=[target[axis]]))


def view(node: Node, value: Expr, shape: Shape) -> Expr:
    """`value` with another shape; of a constant, now."""
    known = value_of(value)
    if known is not None:
        return constant(known.reshape(shape))
    return value if shape_of(value) == shape else node.emit(relax.op.reshape(value, shape))


@converter("QuantizeLinear", since=10)
@converter("QuantizeLinear", domain="com.microsoft")
def _quantize_linear(node: Node) -> Expr:
    data, zero_point = node.input(0), node.optional(2)
    wanted = node.attribute("output_dtype", 0)
    dtype = onnx_dtype(wanted) if wanted else "uint8" if zero_point is None else dtype_of(zero_point)
    if dtype_of(data) == "int32":
        data = cast(node, data, "float32")
    scale = spread(node, node.input(1), data)
    return quantise(node, data, scale, spread(node, zero_point, data), dtype)


@converter("DequantizeLinear", since=10)
@converter("DequantizeLinear", domain="com.microsoft")
def _dequantize_linear(node: Node) -> Expr:
    data = node.input(0)
    if dtype_of(data) not in (*_RANGES, "int32") and value_of(data) is None:
        raise Unsupported(f"{dtype_of(data)} data that is not constant is not supported")
    scale, zero_point = (spread(node, node.optional(index), data) for index in (1, 2))
    result = dequantise(node, data, scale, zero_point)
    wanted = node.attribute("output_dtype", 0)
    return cast(node, result, onnx_dtype(wanted)) if wanted else result


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node) -> tuple[Expr, ...]:
    """Input 0 as uint8 over its own range, the scale and the zero point."""
    data = node.input(0)
    zero, one = constant(0, "float32"), constant(1, "float32")
    low = node.emit(relax.op.minimum(node.emit(relax.op.min(data)), zero))
    high = node.emit(relax.op.maximum(node.emit(relax.op.max(data)), zero))
    width = node.emit(relax.op.divide(node.emit(relax.op.subtract(high, low)), constant(255, "float32")))
    scale = node.emit(relax.op.where(node.emit(relax.op.equal(width, zero)), one, width))
    start = node.emit(relax.op.divide(node.emit(relax.op.negative(low)), scale))
    zero_point = round_and_saturate(node, start, None, "uint8")
    return quantise(node, data, scale, zero_point, "uint8"), scale, zero_point


def rows(node: Node, value: Expr | None) -> Expr | None:
    """A per-row vector of the left operand of a product as a column; scalars stay."""
    if value is None or int(np.prod(shape_of(value))) == 1:
        return None if value is None else view(node, value, ())
    return view(node, value, (*shape_of(value), 1)) if rank_of(value) == 1 else value


def columns(node: Node, value: Expr | None) -> Expr | None:
    """A per-column vector of the right operand of a product broadcasts as it is; scalars lose their axis."""
    if value is None or int(np.prod(shape_of(value))) == 1:
        return None if value is None else view(node, value, ())
    return value


def _byte_weights(weight: Expr, zero_point: Expr | None) -> Array | None:
    """Constant weights less their zero point, if they fit int8."""
    known = value_of(weight)
    zero = np.zeros((), np.int16) if zero_point is None else value_of(zero_point)
    if known is None or zero is None:
        return None
    shifted = known.astype(np.int16) - zero.astype(np.int16)
    limits = _RANGES["int8"]
    fits = shifted.size and limits.min <= shifted.min() and shifted.max() <= limits.max
    return shifted.astype(np.int8) if fits else None


def _unsigned_bytes(node: Node, data: Expr, zero_point: Expr | None) -> tuple[Expr, Expr]:
    """8-bit data as uint8, and its zero point as int32: int8 is uint8 less 128."""
    zero = constant(0, "int32") if zero_point is None else cast(node, zero_point, "int32")
    if dtype_of(data) == "uint8":
        return data, zero
    raised = node.emit(relax.op.add(cast(node, data, "int16"), constant(128, "int16")))
    known = value_of(zero)
    shifted = (
        constant(known + 128, "int32")
        if known is not None
        else node.emit(relax.op.add(zero, constant(128, "int32")))
    )
    return cast(node, raised, "uint8"), shifted


def _without_zero_point(node: Node, total: Expr, zero_point: Expr, weight_sums: Array) -> Expr:
    """The sum over w (x - z), given the sum over w x: z times the sum of w is taken off, of constants now."""
    known = value_of(zero_point)
    if known is None:
        sums = node.emit(relax.op.multiply(zero_point, constant(weight_sums, "int32")))
    else:
        offsets = known.astype(np.int32) * weight_sums
        if not offsets.any():
            return total
        sums = constant(offsets, "int32")
    return node.emit(relax.op.subtract(total, sums))


def integer_matmul(
    node: Node, left: Expr, left_zero: Expr | None, right: Expr, right_zero: Expr | None
) -> Expr:
    """The int32 product of two integer matrices after their zero points are taken off.

    Constant weights stay bytes, which CPUs multiply four at a time: what the zero point of the data adds
    is taken off afterwards.
    """
    weights = _byte_weights(right, columns(node, right_zero))
    if weights is not None and weights.ndim > 1 and rank_of(left) > 1:
        data, zero = _unsigned_bytes(node, left, rows(node, left_zero))
        total = node.emit(relax.op.matmul(data, constant(weights, "int8"), out_dtype="int32"))
        return _without_zero_point(node, total, zero, weights.astype(np.int32).sum(-2, keepdims=True))
    a = shifted_integer(node, left, rows(node, left_zero), "int16")
    b = shifted_integer(node, right, columns(node, right_zero), "int16")
    return node.emit(relax.op.matmul(a, b, out_dtype="int32"))


@converter("MatMulInteger", since=10)
def _matmul_integer(node: Node) -> Expr:
    return integer_matmul(node, node.input(0), node.optional(2), node.input(1), node.optional(3))


def requantise(node: Node, total: Expr, factors: list[Expr], output_scale: Expr, zero_point: Expr) -> Expr:
    """int32 sums to the output's scale; the factor is computed in float32, as ONNX Runtime does."""
    factor = factors[0]
    for operation, value in ((relax.op.multiply, factors[1]), (relax.op.divide, output_scale)):
        known = value_of(factor), value_of(value)
        if known[0] is not None and known[1] is not None:
            combined: Array = known[0] * known[1] if operation is relax.op.multiply else known[0] / known[1]
            factor = constant(combined.astype(np.float32))
        else:
            factor = node.emit(operation(factor, value))
    scaled = node.emit(relax.op.multiply(cast(node, total, "float32"), factor))
    return round_and_saturate(node, scaled, zero_point, dtype_of(zero_point))


@converter("QLinearMatMul", since=10)
def _qlinear_matmul(node: Node) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    total = integer_matmul(node, a, a_zero, b, b_zero)
    factors = [cast(node, rows(node, a_scale), "float32"), cast(node, columns(node, b_scale), "float32")]
    scale = cast(node, rows(node, y_scale), "float32")
    return requantise(node, total, factors, scale, rows(node, y_zero))


def _per_output(node: Node, value: Expr | None, rank: int) -> Expr | None:
    """A weight's scalar or per-output-channel value, as [O, 1, 1...]."""
    if value is None or int(np.prod(shape_of(value))) == 1:
        return None if value is None else view(node, value, ())
    return view(node, value, (shape_of(value)[0], *[1] * (rank - 1)))


def _integer_convolution(
    node: Node, data: Expr, data_zero: Expr | None, weight: Expr, weight_zero: Expr | None
) -> Expr:
    """Convolution of the shifted integers: padding is zero after the shift, as ONNX wants.

    Constant weights stay bytes, as in `integer_matmul`, unless every channel is on its own.
    """
    zero = None if data_zero is None else view(node, data_zero, ())
    known_zero = np.zeros(()) if zero is None else value_of(zero)
    weights = _byte_weights(weight, _per_output(node, weight_zero, rank_of(weight)))
    if weights is not None and weights.shape[1] > 1 and known_zero is not None:
        data, zero = _unsigned_bytes(node, data, zero)
        padding = value_of(zero)
        assert padding is not None  # a constant zero point stays one
        total = convolve(node, data, constant(weights, "int8"), "int32", float(padding))
        sums = weights.astype(np.int32).sum(axis=tuple(range(1, weights.ndim)))
        return _without_zero_point(node, total, zero, sums.reshape(-1, *[1] * (weights.ndim - 2)))
    x = shifted_integer(node, data, zero, "int16")
    w = shifted_integer(node, weight, _per_output(node, weight_zero, rank_of(weight)), "int16")
    return convolve(node, x, w, out_dtype="int32")


@converter("ConvInteger", since=10)
def _conv_integer(node: Node) -> Expr:
    return _integer_convolution(node, node.input(0), node.optional(2), node.input(1), node.optional(3))


@converter("QLinearConv", since=10)
def _qlinear_conv(node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    total = _integer_convolution(node, x, x_zero, w, w_zero)
    rank, bias = rank_of(x), node.optional(8)
    if bias is not None:
        total = node.emit(relax.op.add(total, per_channel(node, bias, rank)))
    weight_scale = (
        view(node, w_scale, ()) if shape_of(w_scale) in ((), (1,)) else per_channel(node, w_scale, rank)
    )
    factors = [view(node, x_scale, ()), weight_scale]
    return requantise(node, total, factors, view(node, y_scale, ()), view(node, y_zero, ()))
