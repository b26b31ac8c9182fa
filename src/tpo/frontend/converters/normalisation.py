"""Normalisations: single Relax operators where they exist, constants folded in float64."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tpo.frontend.converters.registry import (
    Array,
    Expr,
    Node,
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


def per_channel(node: Node, value: Expr, rank: int) -> Expr:
    """A vector over channels as [1, C, 1, ...], to broadcast over data of `rank` dimensions."""
    shape = (1, shape_of(value)[0], *[1] * (rank - 2)) if rank > 1 else shape_of(value)
    known = value_of(value)
    if known is not None:
        return constant(known.reshape(shape))
    return node.emit(relax.op.reshape(value, shape))


@converter("BatchNormalization")
def _batch_normalization(node: Node) -> Expr | tuple[Expr, ...]:
    if node.attribute("spatial", 1) != 1:
        raise Unsupported("spatial=0 is not supported")
    if node.attribute("training_mode", 0):
        return _train_batch_normalization(node)
    data, epsilon = node.input(0), node.attribute("epsilon", 1e-5)
    dtype, rank = dtype_of(data), rank_of(data)
    statistics = [node.constant(index) for index in range(1, 5)]
    if any(value is None for value in statistics):
        scale, bias, mean, variance = (per_channel(node, node.input(index), rank) for index in range(1, 5))
        return _normalised(node, data, mean, variance, scale, bias, epsilon)
    scale, bias, mean, variance = (value.astype(np.float64) for value in statistics if value is not None)
    factor = scale / np.sqrt(variance + epsilon)
    offset = bias - mean * factor
    product = relax.op.multiply(data, per_channel(node, constant(factor, dtype), rank))
    return relax.op.add(node.emit(product), per_channel(node, constant(offset, dtype), rank))


def _normalised(
    node: Node, data: Expr, mean: Expr, variance: Expr, scale: Expr | None, bias: Expr | None, epsilon: float
) -> Expr:
    """`(data - mean) / sqrt(variance + epsilon) * scale + bias` for statistics not known now."""
    data_dtype, dtype = dtype_of(data), dtype_of(mean)
    deviation = node.emit(relax.op.subtract(cast(node, data, dtype), mean))
    spread = node.emit(relax.op.rsqrt(node.emit(relax.op.add(variance, constant(epsilon, dtype)))))
    result = node.emit(relax.op.multiply(deviation, spread))
    if scale is not None:
        result = node.emit(relax.op.multiply(result, cast(node, scale, dtype)))
    if bias is not None:
        result = node.emit(relax.op.add(result, cast(node, bias, dtype)))
    return cast(node, result, data_dtype)


def _moments(node: Node, data: Expr, axes: list[int]) -> tuple[Expr, Expr]:
    """Mean and variance over `axes`, which stay as ones."""
    mean = node.emit(relax.op.mean(data, axis=axes, keepdims=True))
    deviation = node.emit(relax.op.subtract(data, mean))
    square = node.emit(relax.op.multiply(deviation, deviation))
    return mean, node.emit(relax.op.mean(square, axis=axes, keepdims=True))


def _train_batch_normalization(node: Node) -> tuple[Expr, ...]:
    data, rank = node.input(0), rank_of(node.input(0))
    mean, variance = _moments(node, data, [axis for axis in range(rank) if axis != 1])
    scale, bias = (per_channel(node, node.input(index), rank) for index in (1, 2))
    result = _normalised(node, data, mean, variance, scale, bias, node.attribute("epsilon", 1e-5))
    momentum = node.attribute("momentum", 0.9)

    def running(previous: Expr, current: Expr) -> Expr:
        dtype = dtype_of(previous)
        flat = node.emit(relax.op.reshape(cast(node, current, dtype), shape_of(previous)))
        old = node.emit(relax.op.multiply(previous, constant(momentum, dtype)))
        new = node.emit(relax.op.multiply(flat, constant(1 - momentum, dtype)))
        return node.emit(relax.op.add(old, new))

    return result, running(node.input(3), mean), running(node.input(4), variance)


@converter("LayerNormalization", since=17)
@converter("SimplifiedLayerNormalization")
def _layer_normalization(node: Node) -> Expr | tuple[Expr, ...]:
    data, scale, bias = node.input(0), node.input(1), node.optional(2)
    simplified = node.operator == "SimplifiedLayerNormalization"
    axis = normalise_axis(node.attribute("axis", -1), rank_of(data))
    epsilon = node.attribute("epsilon", 1e-5)
    if simplified:
        return root_mean_square(node, data, scale, axis, epsilon)
    axes = list(range(axis, rank_of(data)))
    dtype = dtype_of(data)
    wide = cast(node, data, "float32") if dtype in ("float16", "bfloat16") else data
    if dtype_of(wide) != "float32" or node.wants(1) or node.wants(2):
        mean, variance = _moments(node, wide, axes)
        inverse = relax.op.rsqrt(node.emit(relax.op.add(variance, constant(epsilon, dtype_of(wide)))))
        result = _normalised(node, wide, mean, variance, scale, bias, epsilon)
        return cast(node, result, dtype), mean, node.emit(inverse)
    shape = shape_of(data)[axis:]
    gamma = _spread(node, scale, shape)
    beta = constant(np.zeros(shape, dtype=np.float32)) if bias is None else _spread(node, bias, shape)
    return cast(node, node.emit(relax.op.nn.layer_norm(wide, gamma, beta, axes, epsilon)), dtype)


def _spread(node: Node, value: Expr, shape: tuple[int, ...]) -> Expr:
    """`value` as float32 of exactly `shape`, as the fused normalisations want their weights."""
    value = cast(node, value, "float32")
    if shape_of(value) == shape:
        return value
    known = value_of(value)
    if known is not None:
        return constant(np.ascontiguousarray(np.broadcast_to(known, shape)))
    return node.emit(relax.op.broadcast_to(value, shape))


@converter("RMSNormalization", since=23)
def _rms_normalization(node: Node) -> Expr:
    data = node.input(0)
    axis = normalise_axis(node.attribute("axis", -1), rank_of(data))
    return root_mean_square(node, data, node.input(1), axis, node.attribute("epsilon", 1e-5))


def root_mean_square(node: Node, data: Expr, scale: Expr, axis: int, epsilon: float) -> Expr:
    """`data / sqrt(mean(data**2) + epsilon) * scale` over the axes from `axis` on."""
    dtype, axes = dtype_of(data), list(range(axis, rank_of(data)))
    wide = cast(node, data, "float32") if dtype in ("float16", "bfloat16") else data
    # topi.rms_norm needs an axis it does not reduce, and computes in float32.
    if axis > 0 and dtype_of(wide) == "float32":
        weight = _spread(node, scale, shape_of(data)[axis:])
        return cast(node, node.emit(relax.op.nn.rms_norm(wide, weight, axes, epsilon)), dtype)
    square = node.emit(relax.op.multiply(wide, wide))
    mean = node.emit(relax.op.mean(square, axis=axes, keepdims=True))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(mean, constant(epsilon, dtype_of(wide))))))
    result = node.emit(relax.op.multiply(wide, inverse))
    result = node.emit(relax.op.multiply(result, cast(node, scale, dtype_of(wide))))
    return cast(node, result, dtype)


@converter("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft")
def _skip_layer_normalization(node: Node) -> tuple[Expr | None, ...]:
    simplified = node.operator.startswith("SkipSimplified")
    total = node.emit(relax.op.add(node.input(0), node.input(1)))
    beta, bias = (None, node.optional(3)) if simplified else (node.optional(3), node.optional(4))
    if bias is not None:
        total = node.emit(relax.op.add(total, bias))
    axis, epsilon = rank_of(total) - 1, node.attribute("epsilon", 1e-12)
    if simplified:
        return root_mean_square(node, total, node.input(2), axis, epsilon), None, None, total
    shape = shape_of(total)[axis:]
    beta = constant(np.zeros(shape, np.float32)) if beta is None else _spread(node, beta, shape)
    wide = cast(node, total, "float32")
    result = node.emit(
        relax.op.nn.layer_norm(wide, _spread(node, node.input(2), shape), beta, [axis], epsilon)
    )
    return cast(node, result, dtype_of(total)), None, None, total


@converter("InstanceNormalization")
def _instance_normalization(node: Node) -> Expr:
    data = node.input(0)
    rank = rank_of(data)
    mean, variance = _moments(node, data, list(range(2, rank)))
    scale, bias = (per_channel(node, node.input(index), rank) for index in (1, 2))
    return _normalised(node, data, mean, variance, scale, bias, node.attribute("epsilon", 1e-5))


@converter("GroupNormalization", since=18)
def _group_normalization(node: Node) -> Expr:
    data, scale, bias = node.input(0), node.input(1), node.input(2)
    shape, groups = shape_of(data), node.attribute("num_groups")
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    grouped = node.emit(relax.op.reshape(data, split))
    mean, variance = _moments(node, grouped, list(range(2, len(split))))
    if shape_of(scale)[0] == groups and groups != shape[1]:  # opset 18: one scale for each group
        scale, bias = (per_channel(node, value, len(split)) for value in (scale, bias))
        result = _normalised(node, grouped, mean, variance, scale, bias, node.attribute("epsilon", 1e-5))
        return relax.op.reshape(result, shape)
    plain = _normalised(node, grouped, mean, variance, None, None, node.attribute("epsilon", 1e-5))
    result = node.emit(relax.op.reshape(plain, shape))
    result = node.emit(relax.op.multiply(result, per_channel(node, scale, len(shape))))
    return relax.op.add(result, per_channel(node, bias, len(shape)))


@converter("MeanVarianceNormalization", since=9)
def _mean_variance_normalization(node: Node) -> Expr:
    data = node.input(0)
    mean, variance = _moments(node, data, list(node.attribute("axes", (0, 2, 3))))
    spread = node.emit(relax.op.add(node.emit(relax.op.sqrt(variance)), constant(1e-9, dtype_of(data))))
    return relax.op.divide(node.emit(relax.op.subtract(data, mean)), spread)


@converter("LRN")
def _local_response_normalization(node: Node) -> Expr:
    """The window sum over channels as a 1x1 convolution with a constant band matrix.

    Slices and additions would be less arithmetic, but a convolution takes part in the layout
    conversion and is scheduled like its neighbours.
    """
    data = node.input(0)
    shape, dtype, size = shape_of(data), dtype_of(data), node.attribute("size")
    square = node.emit(relax.op.multiply(data, data))
    band = _band(shape[1], size)
    if len(shape) == 4:
        window = node.emit(relax.op.nn.conv2d(square, constant(band[:, :, None, None], dtype)))
    else:
        flat = node.emit(relax.op.reshape(square, (shape[0], shape[1], int(np.prod(shape[2:])))))
        window = node.emit(relax.op.reshape(node.emit(relax.op.matmul(constant(band, dtype), flat)), shape))
    alpha, beta = node.attribute("alpha", 1e-4) / size, node.attribute("beta", 0.75)
    scaled = node.emit(relax.op.multiply(window, constant(alpha, dtype)))
    base = node.emit(relax.op.add(scaled, constant(node.attribute("bias", 1.0), dtype)))
    return relax.op.multiply(data, node.emit(relax.op.power(base, constant(-beta, dtype))))


def _band(channels: int, size: int) -> Array:
    """Ones where input channel j is in the window of output channel i."""
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    return (offset >= -((size - 1) // 2)) & (offset <= size // 2)


@converter("LpNormalization")
def _lp_normalization(node: Node) -> Expr:
    data, axis, power = node.input(0), node.attribute("axis", -1), node.attribute("p", 2)
    if power == 1:
        norm = relax.op.sum(node.emit(relax.op.abs(data)), axis=[axis], keepdims=True)
    else:
        square = node.emit(relax.op.multiply(data, data))
        norm = relax.op.sqrt(node.emit(relax.op.sum(square, axis=[axis], keepdims=True)))
    norm = node.emit(norm)
    # A zero vector stays zero instead of becoming NaN.
    zero = constant(0, dtype_of(data))
    safe = node.emit(relax.op.where(relax.op.equal(norm, zero), constant(1, dtype_of(data)), norm))
    return relax.op.divide(data, safe)
