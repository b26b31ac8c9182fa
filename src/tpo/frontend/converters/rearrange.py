"""Moving data about: splits, one-hot, constants of a pattern, shuffles, sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tpo.frontend.converters.elementwise import onnx_dtype
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
)


@converter("Split")
def _split(node: Node) -> tuple[Expr, ...]:
    data = node.input(0)
    axis = normalise_axis(node.attribute("axis", 0), rank_of(data))
    sizes = _split_sizes(node, shape_of(data)[axis])
    if len(sizes) == 1:
        return (data,)
    ends = np.cumsum(sizes).tolist()
    if min(sizes) == 0:
        return tuple(_slice(node, data, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))
    parts = node.emit(relax.op.split(data, ends[:-1], axis))
    return tuple(node.emit(relax.TupleGetItem(parts, index)) for index in range(len(sizes)))


def _slice(node: Node, data: Expr, axis: int, begin: int, end: int) -> Expr:
    if begin == end:
        shape = [0 if index == axis else size for index, size in enumerate(shape_of(data))]
        return constant(np.zeros(shape), dtype_of(data))
    return node.emit(relax.op.strided_slice(data, axes=[axis], begin=[begin], end=[end]))


def _split_sizes(node: Node, total: int) -> list[int]:
    """Sizes from the `split` attribute or input, else as even as they go, the last one smaller."""
    sizes = node.attribute("split")
    if sizes is None and node.optional(1) is not None:
        sizes = node.required_constant(1, "split").tolist()
    if sizes is not None:
        if sum(sizes) != total:
            raise Unsupported(f"sizes {list(sizes)} do not add up to {total}")
        return list(sizes)
    count = node.attribute("num_outputs", len(node.outputs))
    chunk = -(-total // count)
    return [max(min(chunk, total - index * chunk), 0) for index in range(count)]


@converter("OneHot", since=9)
def _one_hot(node: Node) -> Expr:
    indices, depth = node.input(0), int(node.required_constant(1, "depth").reshape(()))
    values = node.input(2)
    axis = node.attribute("axis", -1) % (rank_of(indices) + 1)
    whole = indices
    if dtype_of(indices).startswith("float"):
        whole = cast(node, indices, "int64")
    dtype = dtype_of(whole)
    if dtype.startswith("int"):  # negative indices count from the end
        below = node.emit(relax.op.less(whole, constant(0, dtype)))
        wrapped = node.emit(relax.op.add(whole, constant(depth, dtype)))
        whole = node.emit(relax.op.where(below, wrapped, whole))
    places = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(rank_of(indices) + 1)])
    hit = node.emit(relax.op.equal(node.emit(relax.op.expand_dims(whole, axis)), constant(places, dtype)))
    off, on = (_element(node, values, index) for index in (0, 1))
    return relax.op.where(hit, on, off)


def _element(node: Node, vector: Expr, index: int) -> Expr:
    known = node.constant(2)
    if known is not None:
        return constant(known[index])
    part = node.emit(relax.op.strided_slice(vector, axes=[0], begin=[index], end=[index + 1]))
    return node.emit(relax.op.reshape(part, ()))


@converter("EyeLike", since=9)
def _eye_like(node: Node) -> Expr:
    rows, columns = shape_of(node.input(0))
    wanted = node.attribute("dtype")
    dtype = dtype_of(node.input(0)) if wanted is None else onnx_dtype(wanted)
    return constant(np.eye(rows, columns, node.attribute("k", 0)), dtype)


@converter("SpaceToDepth")
def _space_to_depth(node: Node) -> Expr:
    batch, channels, height, width = shape_of(node.input(0))
    block = node.attribute("blocksize")
    apart = (batch, channels, height // block, block, width // block, block)
    blocks = node.emit(relax.op.reshape(node.input(0), apart))
    order = [0, 1, 3, 5, 2, 4] if node.attribute("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = node.emit(relax.op.permute_dims(blocks, order))
    return relax.op.reshape(moved, (batch, channels * block * block, height // block, width // block))


@converter("ReverseSequence", since=10)
def _reverse_sequence(node: Node) -> Expr:
    """A gather: position t of batch b comes from length[b] - 1 - t inside the sequence, else from t."""
    data = node.input(0)
    lengths = node.required_constant(1, "sequence lengths")
    batch, time = node.attribute("batch_axis", 1), node.attribute("time_axis", 0)
    steps = np.arange(shape_of(data)[time])
    index = np.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)  # [batch, time]
    if batch > time:
        index = index.T
    shape = [size if axis in (batch, time) else 1 for axis, size in enumerate(shape_of(data))]
    full = np.ascontiguousarray(np.broadcast_to(index.reshape(shape), shape_of(data)))
    return relax.op.gather_elements(data, constant(full, "int64"), axis=time)


@converter("Compress", since=9)
def _compress(node: Node) -> Expr:
    keep = np.flatnonzero(node.required_constant(1, "condition"))
    data, axis = node.input(0), node.attribute("axis")
    if axis is None:
        data, axis = node.emit(relax.op.reshape(data, (-1,))), 0
    return relax.op.take(data, constant(keep, "int64"), axis=axis, mode="clip")


@converter("Slice")
def _slice_by_attributes(node: Node) -> Expr:
    starts, ends = node.attribute("starts"), node.attribute("ends")
    axes = node.attribute("axes", tuple(range(len(starts))))
    return _sliced(node, starts, ends, axes, (1,) * len(starts))


@converter("Slice", since=10)
def _slice_by_inputs(node: Node) -> Expr:
    starts = node.required_constant(1, "starts").tolist()
    ends = node.required_constant(2, "ends").tolist()
    axes = list(range(len(starts)))
    if node.optional(3) is not None:
        axes = node.required_constant(3, "axes").tolist()
    steps = [1] * len(starts)
    if node.optional(4) is not None:
        steps = node.required_constant(4, "steps").tolist()
    return _sliced(node, starts, ends, axes, steps)


def _sliced(
    node: Node, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> Expr:
    """Python's slices along `axes`; those that keep everything are left out."""
    data = node.input(0)
    shape = shape_of(data)
    chosen: list[tuple[int, int, int, int]] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = normalise_axis(axis, len(shape))
        picked = range(*slice(start, end, step).indices(shape[axis]))
        if len(picked) == 0:
            empty = [0 if index == axis else size for index, size in enumerate(shape)]
            return constant(np.zeros(empty), dtype_of(data))
        if picked != range(shape[axis]):
            # Past the first element going backwards is "-1", which TVM would read as the last one.
            stop = picked.stop if picked.stop >= 0 else -shape[axis] - 1
            chosen.append((axis, picked.start, stop, step))
    if not chosen:
        return data
    where, begin, stop_at, by = (list(column) for column in zip(*chosen, strict=True))
    return relax.op.strided_slice(data, axes=where, begin=begin, end=stop_at, strides=by)


@converter("Gather")
def _gather(node: Node) -> Expr:
    data, indices = node.input(0), node.input(1)
    axis = normalise_axis(node.attribute("axis", 0), rank_of(data))
    size, dtype = shape_of(data)[axis], dtype_of(indices)
    known = node.constant(1)
    if known is not None:
        if known.size and (known.min() < -size or known.max() >= size):
            raise Unsupported(f"an index is outside axis {axis} of size {size}")
        known = np.where(known < 0, known + size, known)
        if known.ndim == 0:
            part = _slice(node, data, axis, int(known), int(known) + 1)
            return relax.op.squeeze(part, [axis])
        indices = constant(known, dtype)
    elif dtype.startswith("int"):  # negative indices count from the end
        below = node.emit(relax.op.less(indices, constant(0, dtype)))
        wrapped = node.emit(relax.op.add(indices, constant(size, dtype)))
        indices = node.emit(relax.op.where(below, wrapped, indices))
    # Clipped, because an index outside would otherwise read memory that is not the tensor's.
    return relax.op.take(data, indices, axis=axis, mode="clip")
