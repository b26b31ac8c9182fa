"""Fourier transforms as products with constant matrices, and the frames of a short-time transform."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tpo.frontend.converters.registry import (
    Array,
    Expr,
    Node,
    cast,
    constant,
    converter,
    dtype_of,
    normalise_axis,
    rank_of,
    shape_of,
)


def _fourier(length: int, bins: int, inverse: bool) -> tuple[Array, Array]:
    """Real and imaginary part of the [length, bins] matrix of the transform."""
    angle = 2 * np.pi * np.outer(np.arange(length), np.arange(bins)) / length
    matrix = np.exp(1j * angle) / length if inverse else np.exp(-1j * angle)
    return matrix.real, matrix.imag


def _transform(node: Node, data: Expr, length: int, bins: int, inverse: bool) -> Expr:
    """Transform [..., length, 1 or 2] along its second last axis to [..., bins, 2]."""
    dtype = dtype_of(data)
    cosine, sine = (constant(part, dtype) for part in _fourier(length, bins, inverse))
    parts = shape_of(data)[-1]
    rank = rank_of(data)
    if parts == 1:
        real = node.emit(relax.op.squeeze(data, [rank - 1]))
        results = [node.emit(relax.op.matmul(real, cosine)), node.emit(relax.op.matmul(real, sine))]
    else:
        pair = node.emit(relax.op.split(data, 2, rank - 1))
        real, imaginary = (
            node.emit(relax.op.squeeze(node.emit(relax.TupleGetItem(pair, i)), [rank - 1])) for i in (0, 1)
        )
        rr, ii, ri, ir = (
            node.emit(relax.op.matmul(left, right))
            for left, right in ((real, cosine), (imaginary, sine), (real, sine), (imaginary, cosine))
        )
        results = [node.emit(relax.op.subtract(rr, ii)), node.emit(relax.op.add(ri, ir))]
    return node.emit(
        relax.op.concat([node.emit(relax.op.expand_dims(one, rank - 1)) for one in results], rank - 1)
    )


def _real_signal(node: Node, data: Expr, length: int) -> Expr:
    """The real signal, [..., length, 1], of the half spectrum [..., length // 2 + 1, 2].

    The missing half is the conjugate of the given one, so that all bins but the first, and for an
    even length the last, count twice.
    """
    bins = length // 2 + 1
    weight = np.full((bins, 1), 2.0)
    weight[0] = 1
    if length % 2 == 0:
        weight[-1] = 1
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(length)) / length
    both = np.stack([np.cos(angle) * weight, -np.sin(angle) * weight], axis=1) / length  # [bins, 2, length]
    flat = node.emit(relax.op.reshape(data, (*shape_of(data)[:-2], 2 * bins)))
    matrix = constant(both.reshape(2 * bins, length), dtype_of(data))
    return node.emit(relax.op.expand_dims(node.emit(relax.op.matmul(flat, matrix)), -1))


@converter("DFT", since=17)
def _dft_by_attribute(node: Node) -> Expr:
    return _dft(node, node.attribute("axis", 1))


@converter("DFT", since=20)
def _dft_by_input(node: Node) -> Expr:
    given = None if node.optional(2) is None else node.required_constant(2, "axis")
    return _dft(node, -2 if given is None else int(given.reshape(())))


def _dft(node: Node, axis: int) -> Expr:
    data = node.input(0)
    rank = rank_of(data)
    axis = normalise_axis(axis, rank)
    given = None if node.optional(1) is None else node.required_constant(1, "dft_length")
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    half = inverse and onesided
    bins = shape_of(data)[axis]
    natural = 2 * (bins - 1) if half else bins
    length = natural if given is None else int(given.reshape(()))
    # In float64: the sums cancel, and what should be zero would be as large as the rounding of the rest.
    data = _fit(node, cast(node, data, "float64"), axis, length // 2 + 1 if half else length)
    order = [i for i in range(rank) if i not in (axis, rank - 1)] + [axis, rank - 1]
    moved = data if order == list(range(rank)) else node.emit(relax.op.permute_dims(data, order))
    if half:
        result = _real_signal(node, moved, length)
    else:
        result = _transform(node, moved, length, length // 2 + 1 if onesided else length, inverse)
    result = cast(node, result, dtype_of(node.input(0)))
    return result if moved is data else relax.op.permute_dims(result, [order.index(i) for i in range(rank)])


def _fit(node: Node, data: Expr, axis: int, length: int) -> Expr:
    """Cut `data` along an axis, or fill it with zeros."""
    have = shape_of(data)[axis]
    if have > length:
        return node.emit(relax.op.strided_slice(data, axes=[axis], begin=[0], end=[length]))
    if have < length:
        widths = [0] * (2 * rank_of(data))
        widths[2 * axis + 1] = length - have
        return node.emit(relax.op.nn.pad(data, widths))
    return data


@converter("STFT", since=17)
def _stft(node: Node) -> Expr:
    signal, window = node.input(0), node.optional(2)
    step = int(node.required_constant(1, "frame step").reshape(()))
    if window is not None:
        length = shape_of(window)[0]
    else:
        length = int(node.required_constant(3, "frame length").reshape(()))
    count = (shape_of(signal)[1] - length) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = node.emit(relax.op.take(signal, constant(places, "int64"), axis=1, mode="clip"))
    if window is not None:
        frames = node.emit(relax.op.multiply(frames, node.emit(relax.op.reshape(window, (length, 1)))))
    bins = length // 2 + 1 if node.attribute("onesided", 1) else length
    return _transform(node, frames, length, bins, inverse=False)
