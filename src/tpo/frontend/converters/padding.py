"""Padding in all of ONNX's modes, with negative pads that crop."""

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
    normalise_axis,
    rank_of,
    shape_of,
    value_of,
)

_NUMPY_MODES = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@converter("Pad")
def _pad_by_attributes(node: Node) -> Expr:
    pads = list(node.attribute("pads", node.attribute("paddings", ())))
    value = constant(node.attribute("value", 0.0), dtype_of(node.input(0)))
    return _pad(node, pads, value)


@converter("Pad", since=11)
def _pad_by_inputs(node: Node) -> Expr:
    data, given = node.input(0), node.required_constant(1, "pads").tolist()
    rank = rank_of(data)
    axes = list(range(rank))
    if node.optional(3) is not None:
        axes = [normalise_axis(int(axis), rank) for axis in node.required_constant(3, "axes")]
    pads = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        pads[axis], pads[rank + axis] = given[position], given[len(axes) + position]
    value = node.optional(2)
    return _pad(node, pads, constant(0, dtype_of(data)) if value is None else value)


def _pad(node: Node, pads: list[int], value: Expr) -> Expr:
    """`pads` holds the beginnings of all axes, then the ends."""
    data = node.input(0)
    rank, mode = rank_of(data), node.attribute("mode", "constant")
    begin, end = pads[:rank], pads[rank:]
    if mode != "constant":
        return _repeat(node, data, begin, end, mode)
    data = _crop(node, data, begin, end)
    widths = [max(pad, 0) for pair in zip(begin, end, strict=True) for pad in pair]
    if not any(widths):
        return data
    known = value_of(value)
    if known is not None and dtype_of(data) != "bool":
        return relax.op.nn.pad(data, widths, pad_value=float(known.reshape(())))
    inside = np.pad(np.ones(shape_of(data), dtype=bool), list(zip(widths[::2], widths[1::2], strict=True)))
    narrow = cast(node, data, "int8") if dtype_of(data) == "bool" else data
    padded = cast(node, node.emit(relax.op.nn.pad(narrow, widths)), dtype_of(data))
    filler = value if not shape_of(value) else node.emit(relax.op.reshape(value, ()))
    return relax.op.where(constant(inside), padded, filler)


def _crop(node: Node, data: Expr, begin: list[int], end: list[int]) -> Expr:
    """What negative pads leave of the data."""
    shape = shape_of(data)
    axes = [axis for axis in range(len(shape)) if begin[axis] < 0 or end[axis] < 0]
    if not axes:
        return data
    first = [max(-begin[axis], 0) for axis in axes]
    last = [shape[axis] + min(end[axis], 0) for axis in axes]
    return node.emit(relax.op.strided_slice(data, axes=axes, begin=first, end=last))


def _repeat(node: Node, data: Expr, begin: list[int], end: list[int], mode: str) -> Expr:
    """Modes that repeat data are gathers with constant indices, one axis after the other."""
    if mode not in _NUMPY_MODES:
        raise Unsupported(f"mode {mode!r} is not supported")
    data = _crop(node, data, begin, end)
    for axis, size in enumerate(shape_of(data)):
        before, after = max(begin[axis], 0), max(end[axis], 0)
        if before or after:
            index = np.pad(np.arange(size), (before, after), mode=_NUMPY_MODES[mode])  # type: ignore[call-overload]
            data = node.emit(relax.op.take(data, constant(index, "int64"), axis=axis, mode="clip"))
    return data
