"""Shape operators: with static shapes they are views, or constants."""

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
    constant,
    converter,
    normalise_axis,
    rank_of,
    shape_of,
    value_of,
)


@converter("Constant")
def _constant(node: Node) -> Expr:
    dtypes = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for name, value in node.attributes.items():
        if name == "value":
            return constant(value)
        if name in dtypes:
            return constant(np.asarray(value, dtype=dtypes[name]))
    raise Unsupported("only tensors, floats and integers are supported as constants")


@converter("ConstantOfShape", since=9)
def _constant_of_shape(node: Node) -> Expr:
    fill = np.asarray(node.attribute("value", np.zeros(1, np.float32)))
    shape = node.required_constant(0, "shape")
    return constant(np.full(tuple(shape.tolist()), fill.reshape(()), dtype=fill.dtype))


@converter("Shape")
def _shape(node: Node) -> Expr:
    shape = shape_of(node.input(0))
    return constant(np.array(shape[slice(node.attribute("start", 0), node.attribute("end"))], dtype=np.int64))


@converter("Size")
def _size(node: Node) -> Expr:
    return constant(np.array(prod(shape_of(node.input(0))), dtype=np.int64))


def reshaped(node: Node, data: Expr, shape: Shape) -> Expr:
    """`data` with another shape; nothing when it has it, and at once for constants."""
    known = value_of(data)
    if known is not None:
        return constant(known.reshape(shape))
    return data if shape_of(data) == shape else node.emit(relax.op.reshape(data, shape))


@converter("Reshape")
def _reshape_by_attribute(node: Node) -> Expr:
    return reshaped(node, node.input(0), _target(shape_of(node.input(0)), node.attribute("shape"), True))


@converter("Reshape", since=5)
def _reshape(node: Node) -> Expr:
    target = node.required_constant(1, "shape").tolist()
    copies_zero = not node.attribute("allowzero", 0)
    return reshaped(node, node.input(0), _target(shape_of(node.input(0)), target, copies_zero))


def _target(shape: Shape, target: list[int], copies_zero: bool) -> Shape:
    """The target shape with its zeros (copied dimensions) and its -1 (the rest) worked out."""
    sizes = [shape[axis] if size == 0 and copies_zero else size for axis, size in enumerate(target)]
    if -1 in sizes:
        known = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = prod(shape) // known if known else 0
    if prod(sizes) != prod(shape):
        raise Unsupported(f"shape {list(shape)} cannot become {list(target)}")
    return tuple(sizes)


@converter("Flatten")
def _flatten(node: Node) -> Expr:
    shape = shape_of(node.input(0))
    axis = node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return reshaped(node, node.input(0), (prod(shape[:axis]), prod(shape[axis:])))


def _axes(node: Node, index: int) -> list[int] | None:
    """The `axes` attribute, or the input that replaced it in opset 13."""
    attribute = node.attribute("axes")
    if attribute is not None:
        return list(attribute)
    if node.optional(index) is None:
        return None
    return [int(axis) for axis in node.required_constant(index, "axes").reshape(-1)]


@converter("Squeeze")
def _squeeze(node: Node) -> Expr:
    data, axes = node.input(0), _axes(node, 1)
    shape = shape_of(data)
    if axes is None:
        axes = [axis for axis, size in enumerate(shape) if size == 1]
    axes = [normalise_axis(axis, len(shape)) for axis in axes]
    if value_of(data) is not None:
        return reshaped(node, data, tuple(size for axis, size in enumerate(shape) if axis not in axes))
    return relax.op.squeeze(data, axes) if axes else data


@converter("Unsqueeze")
def _unsqueeze(node: Node) -> Expr:
    data, axes = node.input(0), _axes(node, 1) or []
    rank = rank_of(data) + len(axes)
    axes = sorted(normalise_axis(axis, rank) for axis in axes)
    known: Array | None = value_of(data)
    if known is not None:
        return constant(np.expand_dims(known, tuple(axes)))
    return relax.op.expand_dims(data, axes) if axes else data


@converter("Transpose")
def _transpose(node: Node) -> Expr:
    data = node.input(0)
    order = tuple(node.attribute("perm", tuple(reversed(range(rank_of(data))))))
    known = value_of(data)
    if known is not None:
        return constant(np.ascontiguousarray(known.transpose(order)))
    return data if order == tuple(range(len(order))) else relax.op.permute_dims(data, list(order))


@converter("Expand", since=8)
def _expand(node: Node) -> Expr:
    data = node.input(0)
    target = np.broadcast_shapes(shape_of(data), tuple(node.required_constant(1, "shape").tolist()))
    return data if target == shape_of(data) else relax.op.broadcast_to(data, target)
