"""Pooling with ONNX's rules for padding, ceil_mode and which elements an average counts."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

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
    rank_of,
    shape_of,
)
from tpo.frontend.converters.windows import Window, window_of

_AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
_MAXIMUM = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}


@converter("GlobalAveragePool")
def _global_average_pool(node: Node) -> Expr:
    return relax.op.mean(node.input(0), axis=list(range(2, rank_of(node.input(0)))), keepdims=True)


@converter("GlobalMaxPool")
def _global_max_pool(node: Node) -> Expr:
    return relax.op.max(node.input(0), axis=list(range(2, rank_of(node.input(0)))), keepdims=True)


@converter("GlobalLpPool", since=2)
def _global_lp_pool(node: Node) -> Expr:
    data, power = node.input(0), float(node.attribute("p", 2))
    raised = _raise(node, data, power)
    total = node.emit(relax.op.sum(raised, axis=list(range(2, rank_of(data))), keepdims=True))
    return relax.op.power(total, constant(1.0 / power, dtype_of(data)))


def _pool_window(node: Node, data: Expr) -> tuple[Window, Shape, Window]:
    """The window as written, the output size, and the window with its end padding fit to that size.

    TVM's own ceil_mode lets a window start in the end padding, which ONNX forbids; so the output
    size is computed here and the end padding extended to give exactly it.
    """
    spatial = shape_of(data)[2:]
    if len(spatial) not in _AVERAGE:
        raise Unsupported(f"pooling over {len(spatial)} spatial dimensions is not supported")
    window = window_of(node, spatial, tuple(node.attribute("kernel_shape")))
    ceil = bool(node.attribute("ceil_mode", 0)) and node.attribute("auto_pad", "NOTSET") == "NOTSET"
    sizes, ends = [], []
    for axis, size in enumerate(spatial):
        stride, extent, begin = window.strides[axis], window.extent[axis], window.begin[axis]
        room = size + begin + window.end[axis] - extent
        floor_count = room // stride + 1
        count = -(-room // stride) + 1 if ceil else floor_count
        if ceil and (count - 1) * stride >= size + begin:
            count -= 1
        sizes.append(count)
        needed = (count - 1) * stride + extent - size - begin
        ends.append(window.end[axis] if count == floor_count else needed)
    fitted = Window(window.kernel, window.strides, window.dilations, window.begin, tuple(ends))
    return window, tuple(sizes), fitted


def _average(data: Expr, window: Window, count_include_pad: bool) -> Expr:
    return _AVERAGE[len(window.kernel)](
        data,
        pool_size=window.kernel,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilations,
        count_include_pad=count_include_pad,
    )


@converter("AveragePool")
def _average_pool(node: Node) -> Expr:
    data = node.input(0)
    window, sizes, fitted = _pool_window(node, data)
    include = bool(node.attribute("count_include_pad", 0))
    dilated = any(dilation != 1 for dilation in window.dilations)
    if not any(fitted.padding) or (include and fitted == window):
        return _average(data, fitted, True)
    if not include and fitted == window and not dilated:
        return _average(data, fitted, False)
    # TVM would divide by another count here: take its average over whole windows and correct it.
    counts = _counts(window, sizes, shape_of(data)[2:], include)
    correction = prod(window.kernel) / counts.reshape(1, 1, *sizes)
    mean = node.emit(_average(data, fitted, True))
    return relax.op.multiply(mean, constant(correction, dtype_of(data)))


def _counts(window: Window, sizes: Shape, spatial: Shape, include_padding: bool) -> Array:
    """How many elements each window averages: inside the data, or inside data and padding."""
    result: Array = np.ones(())
    for axis, size in enumerate(sizes):
        first = np.arange(size) * window.strides[axis] - window.begin[axis]
        taps = first[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        low = -window.begin[axis] if include_padding else 0
        high = spatial[axis] + (window.end[axis] if include_padding else 0)
        result = np.multiply.outer(result, ((taps >= low) & (taps < high)).sum(axis=1))
    return result


@converter("LpPool", since=2)
def _lp_pool(node: Node) -> Expr:
    data, power = node.input(0), float(node.attribute("p", 2))
    window, _, fitted = _pool_window(node, data)
    mean = node.emit(_average(_raise(node, data, power), fitted, True))
    total = node.emit(relax.op.multiply(mean, constant(prod(window.kernel), dtype_of(data))))
    return relax.op.power(total, constant(1.0 / power, dtype_of(data)))


def _raise(node: Node, data: Expr, power: float) -> Expr:
    """|data| ** power."""
    if power == 2.0:
        return node.emit(relax.op.multiply(data, data))
    return node.emit(relax.op.power(node.emit(relax.op.abs(data)), constant(power, dtype_of(data))))


@converter("MaxPool")
def _max_pool(node: Node) -> Expr | tuple[Expr, ...]:
    data = node.input(0)
    _, sizes, fitted = _pool_window(node, data)
    if node.wants(1):
        return _max_pool_with_indices(node, data, sizes, fitted)
    return _MAXIMUM[len(sizes)](
        data,
        pool_size=fitted.kernel,
        strides=fitted.strides,
        padding=fitted.padding,
        dilation=fitted.dilations,
    )


def _max_pool_with_indices(node: Node, data: Expr, sizes: Shape, window: Window) -> tuple[Expr, ...]:
    """Every window laid out along a last axis by a constant gather; then max and argmax over it."""
    shape, dtype = shape_of(data), dtype_of(data)
    spatial = shape[2:]
    total = prod(spatial)
    inside: Array = np.ones((), dtype=bool)
    position: Array = np.zeros((), dtype=np.int64)  # of each tap, in the flattened spatial axes
    for axis, size in enumerate(sizes):
        first = np.arange(size) * window.strides[axis] - window.begin[axis]
        taps = first[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        inside = np.multiply.outer(inside, (taps >= 0) & (taps < spatial[axis]))
        position = np.add.outer(position * spatial[axis], np.clip(taps, 0, spatial[axis] - 1))
    # Axes alternate output, kernel, output, kernel, ...: bring the outputs in front.
    order = [*range(0, 2 * len(sizes), 2), *range(1, 2 * len(sizes), 2)]
    layout = (prod(sizes), prod(window.kernel))
    inside, position = inside.transpose(order).reshape(layout), position.transpose(order).reshape(layout)
    flat = node.emit(relax.op.reshape(data, (shape[0] * shape[1], total)))
    taps_of = node.emit(relax.op.take(flat, constant(position), axis=1, mode="clip"))
    lowest = constant(-np.inf if dtype.startswith("float") else np.iinfo(dtype).min, dtype)
    masked = node.emit(relax.op.where(constant(inside), taps_of, lowest))
    best = node.emit(relax.op.max(masked, axis=[-1]))
    tap = node.emit(relax.op.argmax(masked, axis=-1))
    chosen = node.emit(
        relax.op.equal(node.emit(relax.op.expand_dims(tap, -1)), constant(np.arange(layout[1])))
    )
    index = node.emit(
        relax.op.sum(node.emit(relax.op.where(chosen, constant(position), constant(0, "int64"))), axis=[-1])
    )
    if node.attribute("storage_order", 0) == 1:
        index = _column_major(node, index, spatial)
    base = constant(np.arange(shape[0] * shape[1], dtype=np.int64)[:, None] * total)
    index = cast(node, node.emit(relax.op.add(index, base)), "int64")
    output = (shape[0], shape[1], *sizes)
    return node.emit(relax.op.reshape(best, output)), node.emit(relax.op.reshape(index, output))


def _column_major(node: Node, index: Expr, spatial: Shape) -> Expr:
    """The same positions counted with the first spatial axis fastest."""
    table = np.arange(prod(spatial)).reshape(spatial[::-1]).transpose().reshape(-1)
    return node.emit(relax.op.take(constant(table), index, axis=0, mode="clip"))
