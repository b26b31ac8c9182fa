"""Resize and Upsample in all of ONNX's coordinate modes.

Interpolation is separable: along each axis, output = weights @ input with a constant matrix, or a
gather for nearest. That is the reference here; the common two-dimensional cases become
relax.image.resize2d, through which layouts pass, where it computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    is_float,
    normalise_axis,
    rank_of,
    shape_of,
)

_TVM_MODES = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


@dataclass(frozen=True)
class _Axis:
    """One resized axis: sizes before and after, ONNX's scale, and its region of interest."""

    index: int
    size: int
    target: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class _Rules:
    """How coordinates map and values are interpolated: the attributes of Resize."""

    mode: str
    coordinates: str
    nearest: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


@converter("Upsample", since=9)
@converter("Resize", since=10)
def _resize_by_scales(node: Node) -> Expr:
    scales = node.required_constant(1, "scales").tolist()
    rules = _Rules(node.attribute("mode", "nearest"), "asymmetric", "simple", -0.75, False, False, 0.0)
    return _resize(node, node.input(0), _axes_by_scales(shape_of(node.input(0)), scales), rules)


@converter("Upsample")
def _upsample_by_attribute(node: Node) -> Expr:
    rules = _Rules(node.attribute("mode", "nearest"), "asymmetric", "simple", -0.75, False, False, 0.0)
    axes = _axes_by_scales(shape_of(node.input(0)), node.attribute("scales"))
    return _resize(node, node.input(0), axes, rules)


@converter("Resize", since=11)
def _resize_by_any(node: Node) -> Expr:
    data = node.input(0)
    rules = _Rules(
        mode=node.attribute("mode", "nearest"),
        coordinates=node.attribute("coordinate_transformation_mode", "half_pixel"),
        nearest=node.attribute("nearest_mode", "round_prefer_floor"),
        cubic_a=node.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attribute("exclude_outside", 0)),
        antialias=bool(node.attribute("antialias", 0)),
        extrapolation=node.attribute("extrapolation_value", 0.0),
    )
    return _resize(node, data, _axes_of(node, shape_of(data), rules), rules)


def _axes_by_scales(shape: Shape, scales: list[float]) -> list[_Axis]:
    scales = np.asarray(scales, dtype=np.float32).tolist()
    return [
        _Axis(index, size, int(np.floor(np.float32(size) * np.float32(scale))), scale)
        for index, (size, scale) in enumerate(zip(shape, scales, strict=True))
    ]


def _axes_of(node: Node, shape: Shape, rules: _Rules) -> list[_Axis]:
    """The axes to resize, from `axes`, `scales` or `sizes`, `roi` and the aspect-ratio policy."""
    rank = len(shape)
    chosen = [normalise_axis(axis, rank) for axis in node.attribute("axes", range(rank))]
    roi = [0.0] * rank + [1.0] * rank
    if rules.coordinates == "tf_crop_and_resize":
        given = node.required_constant(1, "roi").tolist()
        for position, axis in enumerate(chosen):
            roi[axis], roi[rank + axis] = given[position], given[len(chosen) + position]
    scales, sizes = node.constant(2), node.constant(3)
    if scales is not None and scales.size:
        full = dict(zip(chosen, scales.tolist(), strict=True))
        axes = _axes_by_scales(shape, [full.get(axis, 1.0) for axis in range(rank)])
    elif sizes is not None and sizes.size:
        axes = _axes_by_sizes(node, shape, chosen, sizes.tolist())
    else:
        raise Unsupported("its scales or sizes must be constants")
    return [replace(axis, roi=(roi[axis.index], roi[rank + axis.index])) for axis in axes]


def _axes_by_sizes(node: Node, shape: Shape, chosen: list[int], sizes: list[int]) -> list[_Axis]:
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    wanted = dict(zip(chosen, sizes, strict=True))
    if policy == "stretch":
        return [
            _Axis(i, size, wanted.get(i, size), float(np.float32(wanted.get(i, size)) / np.float32(size)))
            for i, size in enumerate(shape)
        ]
    pick = min if policy == "not_larger" else max
    scale = pick(np.float32(wanted[axis]) / np.float32(shape[axis]) for axis in chosen)
    return [
        _Axis(i, size, int(np.floor(scale * size + 0.5)), float(scale))
        if i in wanted
        else _Axis(i, size, size, 1.0)
        for i, size in enumerate(shape)
    ]


def _resize(node: Node, data: Expr, axes: list[_Axis], rules: _Rules) -> Expr:
    whole = rules.coordinates == "tf_crop_and_resize"
    changed = [axis for axis in axes if axis.size != axis.target or axis.scale != 1.0 or whole]
    if not changed:
        return data
    if rank_of(data) == 4 and [axis.index for axis in changed] == [2, 3] and _fits_tvm(data, changed, rules):
        return relax.op.image.resize2d(
            data,
            size=tuple(axis.target for axis in changed),
            method=_TVM_MODES[rules.mode],
            coordinate_transformation_mode=rules.coordinates,
            rounding_method="" if rules.mode != "nearest" else _tvm_rounding(rules),
            cubic_alpha=rules.cubic_a,
        )
    dtype = dtype_of(data)
    if rules.mode == "nearest":
        for axis in changed:
            index = _nearest(_coordinates(axis, rules), axis, rules)
            data = node.emit(relax.op.take(data, constant(index), axis=axis.index, mode="clip"))
    else:
        data = data if is_float(dtype) else cast(node, data, "float32")
        for axis in changed:
            data = _interpolate(node, data, axis, _weights(axis, rules))
    return cast(node, _extrapolate(node, data, changed, rules), dtype)


def _coordinates(axis: _Axis, rules: _Rules) -> Array:
    """Where each output element lies in the input, in float32 as ONNX Runtime computes it."""
    out: Array = np.arange(axis.target, dtype=np.float32)
    scale, half = np.float32(axis.scale), np.float32(0.5)
    mode = rules.coordinates
    position: Array
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and axis.target > 1):
        position = (out + half) / scale - half
    elif mode == "pytorch_half_pixel":
        position = np.zeros_like(out)
    elif mode == "half_pixel_symmetric":
        adjustment = np.float32(axis.target) / (scale * np.float32(axis.size))
        center = np.float32(axis.size) / 2
        position = center * (1 - adjustment) + (out + half) / scale - half
    elif mode == "align_corners":
        position = out * np.float32(axis.size - 1) / np.float32(max(axis.target - 1, 1))
    elif mode == "asymmetric":
        position = out / scale
    elif mode == "tf_half_pixel_for_nn":
        position = (out + half) / scale
    elif mode == "tf_crop_and_resize":
        start, end = (np.float32(edge) for edge in axis.roi)
        last = np.float32(axis.size - 1)
        if axis.target == 1:
            position = np.full(1, half * (start + end) * last, dtype=np.float32)
        else:
            position = start * last + out * (end - start) * last / np.float32(axis.target - 1)
    else:
        raise Unsupported(f"coordinate_transformation_mode {mode!r} is not supported")
    return position


def _nearest(position: Array, axis: _Axis, rules: _Rules) -> Array:
    mode = rules.nearest
    if mode == "simple":  # opset 10: cut when growing, round up when shrinking
        index = np.ceil(position) if axis.scale < 1 else np.trunc(position)
    elif mode == "round_prefer_floor":
        index = np.ceil(position - np.float32(0.5))
    elif mode == "round_prefer_ceil":
        index = np.floor(position + np.float32(0.5))
    elif mode == "floor":
        index = np.floor(position)
    elif mode == "ceil":
        index = np.ceil(position)
    else:
        raise Unsupported(f"nearest_mode {mode!r} is not supported")
    return np.clip(index, 0, axis.size - 1).astype(np.int64)


def _weights(axis: _Axis, rules: _Rules) -> Array:
    """The [target, size] matrix that interpolates along an axis."""
    position = _coordinates(axis, rules).astype(np.float64)
    if rules.mode == "linear" and not rules.antialias:
        position = np.clip(position, 0, axis.size - 1)
    stretch = min(axis.scale, 1.0) if rules.antialias else 1.0
    reach = {"linear": 1, "cubic": 2}[rules.mode] / stretch
    first = np.floor(position).astype(int) - int(np.ceil(reach)) + 1
    taps = first[:, None] + np.arange(2 * int(np.ceil(reach)))
    distance = np.abs(taps - position[:, None]) * stretch
    values = np.clip(1 - distance, 0, None) if rules.mode == "linear" else _cubic(distance, rules.cubic_a)
    if rules.exclude_outside:
        values = np.where((taps >= 0) & (taps < axis.size), values, 0.0)
    values = values / values.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.target, axis.size))
    rows = np.broadcast_to(np.arange(axis.target)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, axis.size - 1)), values)
    return matrix


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _interpolate(node: Node, data: Expr, axis: _Axis, matrix: Array) -> Expr:
    rank, dtype = rank_of(data), dtype_of(data)
    if axis.index == rank - 1:
        return node.emit(relax.op.matmul(data, constant(np.ascontiguousarray(matrix.T), dtype)))
    if axis.index == rank - 2:
        return node.emit(relax.op.matmul(constant(matrix, dtype), data))
    order = [index for index in range(rank) if index != axis.index]
    order.insert(rank - 2, axis.index)
    moved = node.emit(relax.op.permute_dims(data, order))
    product = node.emit(relax.op.matmul(constant(matrix, dtype), moved))
    return node.emit(relax.op.permute_dims(product, [order.index(index) for index in range(rank)]))


def _extrapolate(node: Node, data: Expr, axes: list[_Axis], rules: _Rules) -> Expr:
    """Outside the image, tf_crop_and_resize gives a fixed value."""
    if rules.coordinates != "tf_crop_and_resize":
        return data
    rank = rank_of(data)
    inside: Array = np.ones((1,) * rank, dtype=bool)
    for axis in axes:
        position = _coordinates(axis, rules)
        within = (position >= 0) & (position <= axis.size - 1)
        inside = inside & within.reshape([-1 if index == axis.index else 1 for index in range(rank)])
    if inside.all():
        return data
    return node.emit(relax.op.where(constant(inside), data, constant(rules.extrapolation, dtype_of(data))))


def _fits_tvm(data: Expr, axes: list[_Axis], rules: _Rules) -> bool:
    """Whether relax.image.resize2d computes exactly what ONNX asks for."""
    if dtype_of(data) != "float32" or rules.antialias or rules.exclude_outside:
        return False
    if rules.coordinates not in ("half_pixel", "align_corners", "asymmetric"):
        return False
    if any(axis.scale * axis.size != axis.target for axis in axes):
        return False
    if rules.mode != "nearest":
        return rules.coordinates != "align_corners" or all(axis.target > 1 for axis in axes)
    return all(
        np.array_equal(_nearest(_coordinates(axis, rules), axis, rules), _tvm_nearest(axis, rules))
        for axis in axes
    )


def _tvm_rounding(rules: _Rules) -> str:
    return "floor" if rules.nearest == "simple" else rules.nearest


def _tvm_nearest(axis: _Axis, rules: _Rules) -> Array:
    """The indices topi.image.resize2d gathers for nearest neighbours."""
    out = np.arange(axis.target, dtype=np.float32)
    ratio = np.float32(axis.size) / np.float32(axis.target)
    if rules.coordinates == "half_pixel":
        position = (out + np.float32(0.5)) * ratio - np.float32(0.5)
    elif rules.coordinates == "align_corners":
        position = out * (np.float32(axis.size - 1) / np.float32(max(axis.target - 1, 1)))
    else:
        position = out * ratio
    epsilon, half = np.float32(1e-5), np.float32(0.5)
    roundings: dict[str, Array] = {
        "floor": np.floor(position + epsilon),
        "ceil": np.ceil(position - epsilon),
        "round_prefer_floor": np.ceil(position - half),
        "round_prefer_ceil": np.floor(position + half),
    }
    return np.clip(roundings[_tvm_rounding(rules)], 0, axis.size - 1).astype(np.int64)
