"""Convolutions, whose constant bias becomes an addition that broadcasts without a reshape."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tpo.frontend.converters.normalisation import per_channel
from tpo.frontend.converters.registry import (
    Array,
    Expr,
    Node,
    Shape,
    Unsupported,
    constant,
    converter,
    dtype_of,
    rank_of,
    shape_of,
    value_of,
)
from tpo.frontend.converters.windows import Window, split_padding, window_of

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}


def _spatial_rank(data: Expr) -> int:
    spatial = rank_of(data) - 2
    if spatial not in _CONVOLUTIONS:
        raise Unsupported(f"convolutions over {spatial} spatial dimensions are not supported")
    return spatial


def convolve(
    node: Node, data: Expr, weight: Expr, out_dtype: str | None = None, pad_value: float = 0.0
) -> Expr:
    """The convolution a node's attributes describe, without bias."""
    spatial = _spatial_rank(data)
    shape = shape_of(data)
    window = window_of(node, shape[2:], shape_of(weight)[2:])
    groups = node.attribute("group", 1)
    if shape[1] != shape_of(weight)[1] * groups:
        raise Unsupported(
            f"{shape[1]} input channels do not fit a weight of shape {shape_of(weight)} in {groups} groups"
        )
    padding = window.padding
    if pad_value and any(padding):
        ends = zip(window.begin, window.end, strict=True)
        widths = [0, 0, 0, 0, *(width for both in ends for width in both)]
        data = node.emit(relax.op.nn.pad(data, widths, pad_value=pad_value))
        padding = (0,) * len(padding)
    convolution = _CONVOLUTIONS[spatial](
        data,
        weight,
        strides=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=groups,
        **({"out_dtype": out_dtype} if out_dtype else {}),
    )
    return node.emit(convolution)


def _add_bias(node: Node, result: Expr, bias: Expr | None) -> Expr:
    return result if bias is None else relax.op.add(result, per_channel(node, bias, rank_of(result)))


@converter("Conv")
def _conv(node: Node) -> Expr:
    return _add_bias(node, convolve(node, node.input(0), node.input(1)), node.optional(2))


@converter("ConvTranspose")
def _conv_transpose(node: Node) -> Expr:
    data, weight = node.input(0), node.input(1)
    spatial = _spatial_rank(data)
    size = shape_of(data)[2:]
    window = window_of(node, size, shape_of(weight)[2:])
    extra = tuple(node.attribute("output_padding", (0,) * spatial))
    full = tuple(
        (n - 1) * stride + extent + out
        for n, stride, extent, out in zip(size, window.strides, window.extent, extra, strict=True)
    )
    begin, end = _transposed_padding(node, full, size, window)
    wanted = tuple(f - b - e for f, b, e in zip(full, begin, end, strict=True))
    whole = _transposed_whole(node, data, weight, window, node.attribute("group", 1))
    return _add_bias(node, _crop(node, whole, begin, wanted), node.optional(2))


@converter("Col2Im", since=18)
def _col2im(node: Node) -> Expr:
    """Sum of blocks into an image: a transposed convolution with one one-hot kernel per block element."""
    data = node.input(0)
    image = tuple(node.required_constant(1, "image shape").tolist())
    block = tuple(node.required_constant(2, "block shape").tolist())
    if len(image) not in _TRANSPOSED:
        raise Unsupported(f"{len(image)} spatial dimensions are not supported")
    window = window_of(node, image, block)
    sizes = tuple(
        (n + b + e - extent) // stride + 1
        for n, b, e, extent, stride in zip(
            image, window.begin, window.end, window.extent, window.strides, strict=True
        )
    )
    batch, rows, _ = shape_of(data)
    elements = int(np.prod(block))
    columns = node.emit(relax.op.reshape(data, (batch, rows, *sizes)))
    weight = np.tile(
        np.eye(elements).reshape(elements, 1, *block), (rows // elements, *[1] * (len(block) + 1))
    )
    whole = _transposed_whole(node, columns, constant(weight, dtype_of(data)), window, rows // elements)
    return _crop(node, whole, window.begin, image)


def _transposed_whole(node: Node, data: Expr, weight: Expr, window: Window, groups: int) -> Expr:
    """The transposed convolution before anything is cut from its output."""
    spatial = len(window.kernel)
    known = value_of(weight)
    if known is not None:
        return _by_phases(node, data, known, window, groups)
    return node.emit(
        _TRANSPOSED[spatial](data, weight, strides=window.strides, dilation=window.dilations, groups=groups)
    )


def _transposed_padding(node: Node, full: Shape, size: Shape, window: Window) -> tuple[Shape, Shape]:
    """What to cut from both ends, so that `output_shape` or `auto_pad` is obeyed; negative: add zeros."""
    mode = node.attribute("auto_pad", "NOTSET")
    wanted = node.attribute("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * stride for n, stride in zip(size, window.strides, strict=True))
    if wanted is None:
        return window.begin, window.end
    totals = [have - want for have, want in zip(full, wanted[-len(full) :], strict=True)]
    begin, end = split_padding([max(total, 0) for total in totals], upper=mode == "SAME_UPPER")
    return begin, tuple(e + min(total, 0) for e, total in zip(end, totals, strict=True))


def _by_phases(node: Node, data: Expr, weight: Array, window: Window, groups: int) -> Expr:
    """A transposed convolution as a plain one that computes all phases of the stride as channels.

    Output position s * j + r only sees the kernel elements s * q + r. So a convolution with s times
    the output channels for every axis, each with its share of the kernel, computes everything without
    multiplying by the zeros that stride would insert; a shuffle then interleaves the phases.
    Unlike relax.nn.conv2d_transpose it exists in every layout and is scheduled like any convolution.
    """
    rank = len(window.kernel)
    inputs, outputs = weight.shape[:2]
    spread = np.zeros((inputs, outputs, *window.extent), dtype=weight.dtype)
    every = (slice(None), slice(None), *(slice(None, None, step) for step in window.dilations))
    spread[every] = weight
    parts = [-(-extent // stride) for extent, stride in zip(window.extent, window.strides, strict=True)]
    missing = [q * s - e for q, s, e in zip(parts, window.strides, window.extent, strict=True)]
    spread = np.pad(spread, [(0, 0), (0, 0), *((0, count) for count in missing)])
    sizes = [size for pair in zip(parts, window.strides, strict=True) for size in pair]
    apart = spread.reshape(groups, inputs // groups, outputs, *sizes)
    part_axes, phase_axes = tuple(range(3, 3 + 2 * rank, 2)), range(4, 4 + 2 * rank, 2)
    kernel = np.flip(apart, part_axes).transpose(0, 2, *phase_axes, 1, *part_axes)
    result = node.emit(
        _CONVOLUTIONS[rank](
            data,
            constant(kernel.reshape(-1, inputs // groups, *parts)),
            padding=[part - 1 for part in parts] * 2,
            groups=groups,
        )
    )
    if math.prod(window.strides) == 1:
        return result
    batch, _, *extents = shape_of(result)
    channels = groups * outputs
    phases = node.emit(relax.op.reshape(result, (batch, channels, *window.strides, *extents)))
    order = [0, 1, *(axis for k in range(rank) for axis in (2 + rank + k, 2 + k))]
    interleaved = node.emit(relax.op.permute_dims(phases, order))
    whole = [extent * stride for extent, stride in zip(extents, window.strides, strict=True)]
    return node.emit(relax.op.reshape(interleaved, (batch, channels, *whole)))


def _crop(node: Node, data: Expr, begin: Shape, size: Shape) -> Expr:
    """`size` elements from `begin` on along each spatial axis, zeros outside the data."""
    have = shape_of(data)[2:]
    before = [max(-b, 0) for b in begin]
    after = [max(b + n - h, 0) for b, n, h in zip(begin, size, have, strict=True)]
    if any(before) or any(after):
        widths = [0, 0, 0, 0, *np.stack([before, after], axis=1).reshape(-1).tolist()]
        data = node.emit(relax.op.nn.pad(data, widths))
    if size == shape_of(data)[2:]:
        return data
    start = [max(b, 0) for b in begin]
    stop = [s + n for s, n in zip(start, size, strict=True)]
    axes = list(range(2, 2 + len(size)))
    return node.emit(relax.op.strided_slice(data, axes=axes, begin=start, end=stop))
