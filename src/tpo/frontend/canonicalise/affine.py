"""Constant scales, shifts and paddings move into the linear operator before or after them.

This folds BatchNorm into convolutions and matmuls, and the scale and shift of a written-out
LayerNorm into the operator, whatever order the exporter put them in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import Array, constant, is_float, like, shape, tensor

CONVS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
TRANSPOSED_CONVS = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
LINEAR = (*CONVS, *TRANSPOSED_CONVS, "matmul")


def scale_after_linear(call: Any, graph: Graph) -> Any:
    """(conv(x, w) + b) * s is conv(x, w * s) + b * s."""
    if operator(call) != "multiply" or not is_float(call):
        return None
    found = _with_constant(call)
    if found is None:
        return None
    inner, scale = found
    shifted = graph.call(inner, "add")
    bias = None
    linear_var = inner
    if shifted is not None and graph.is_used_once(inner):
        with_bias = _with_constant(shifted)
        if with_bias is None:
            return None
        linear_var, bias = with_bias
    linear = graph.call(linear_var, *LINEAR)
    if linear is None or not graph.is_used_once(linear_var) or shape(linear_var) != shape(call):
        return None
    scaled = _scale_weight(linear, scale)
    if scaled is None:
        return None
    return scaled if bias is None else relax.op.add(scaled, like(bias * scale, call))


def zero_padding_before_conv(call: Any, graph: Graph) -> Any:
    """A convolution of a tensor padded with zeros pads by itself."""
    if operator(call) != "nn.conv2d" or call.attrs.data_layout != "NCHW":
        return None
    pad = graph.call(call.args[0], "nn.pad")
    if pad is None or pad.attrs.pad_mode != "constant" or float(pad.attrs.pad_value) != 0.0:
        return None
    batch_and_channels, spatial = pad.attrs.pad_width[:4], [int(width) for width in pad.attrs.pad_width[4:]]
    if any(int(width) for width in batch_and_channels):
        return None
    old, (top, bottom, left, right) = call.attrs, spatial
    padding = [int(a) + b for a, b in zip(old.padding, (top, left, bottom, right), strict=True)]
    return relax.op.nn.conv2d(
        pad.args[0],
        call.args[1],
        strides=[int(stride) for stride in old.strides],
        padding=padding,
        dilation=[int(step) for step in old.dilation],
        groups=int(old.groups),
        data_layout=old.data_layout,
        kernel_layout=old.kernel_layout,
        out_layout=old.out_layout,
        out_dtype=old.out_dtype or None,
    )


def affine_after_affine(call: Any, graph: Graph) -> Any:
    """Constant scales and shifts in a row become one scale, then one shift.

    (y + a) + b is y + (a + b); (y * a) * b is y * (a b); (y + a) * b is y * b + a b.
    """
    if operator(call) not in ("add", "multiply") or not is_float(call):
        return None
    found = _with_constant(call)
    inner = None if found is None else graph.call(found[0], "add", "multiply")
    nested = None if inner is None else _with_constant(inner)
    if found is None or nested is None or not graph.is_used_once(found[0]):
        return None
    (y, first), second = nested, found[1]
    if shape(y) != shape(call):
        return None
    match operator(inner), operator(call):
        case "add", "add":
            return relax.op.add(y, like(first + second, call))
        case "multiply", "multiply":
            return relax.op.multiply(y, like(first * second, call))
        case "add", "multiply":
            return relax.op.add(relax.op.multiply(y, like(second, call)), like(first * second, call))
    return None


def affine_after_norm(call: Any, graph: Graph) -> Any:
    """layer_norm(x) * g + b and rms_norm(x) * g take g and b as their own."""
    if operator(call) not in ("add", "multiply"):
        return None
    found = _with_constant(call)
    norm = None if found is None else graph.call(found[0], "nn.layer_norm", "nn.rms_norm")
    if found is None or norm is None or not graph.is_used_once(found[0]) or shape(found[0]) != shape(call):
        return None
    gamma = constant(norm.args[1])
    value = _as_suffix(found[1], () if gamma is None else gamma.shape)
    if gamma is None or value is None:
        return None
    axes, epsilon = [int(axis) for axis in norm.attrs.axes], float(norm.attrs.epsilon)
    if operator(norm) == "nn.rms_norm":
        if operator(call) == "add":
            return None
        return relax.op.nn.rms_norm(norm.args[0], like(gamma * value, call), axes, epsilon)
    beta = constant(norm.args[2])
    if beta is None:
        return None
    gamma, beta = (gamma, beta + value) if operator(call) == "add" else (gamma * value, beta * value)
    return relax.op.nn.layer_norm(norm.args[0], like(gamma, call), like(beta, call), axes, epsilon)


def _with_constant(call: Any) -> tuple[Any, Array] | None:
    """The variable and the constant operand of a binary call."""
    for variable, other in (call.args, list(call.args)[::-1]):
        value = constant(other)
        if value is not None and constant(variable) is None:
            return variable, value
    return None


def _as_suffix(value: Array, dims: tuple[int, ...]) -> Array | None:
    """The constant with exactly the given trailing dimensions, if it varies along nothing else."""
    lead = value.ndim - len(dims)
    if lead > 0 and any(size != 1 for size in value.shape[:lead]):
        return None
    trailing = value.reshape(value.shape[lead:]) if lead > 0 else value
    try:
        return np.broadcast_to(trailing, dims)
    except ValueError:
        return None


def _scale_weight(linear: Any, scale: Array) -> Any:
    """The linear call with its constant weight scaled per output channel, or None."""
    weight = constant(linear.args[1])
    if weight is None:
        return None
    rank = linear.ty.ndim
    channel = rank - 1 if operator(linear) == "matmul" else 1
    channels = int(linear.ty.shape.values[channel])
    per_channel = _per_channel(scale, channel, rank, channels)
    if per_channel is None:
        return None
    if operator(linear) in CONVS:
        factor = per_channel.reshape(-1, *[1] * (weight.ndim - 1))
    elif operator(linear) == "matmul":
        if weight.ndim < 2:
            return None
        factor = per_channel
    elif linear.attrs.groups == 1:
        factor = per_channel.reshape(1, -1, *[1] * (weight.ndim - 2))
    else:
        return None
    scaled = (weight.astype("float64") * factor).astype(weight.dtype)
    return relax.Call(linear.op, [linear.args[0], tensor(scaled)], linear.attrs, linear.ty_args)


def _per_channel(scale: Array, channel: int, rank: int, channels: int) -> Array | None:
    """The scale as one number per channel, if it varies along no other axis."""
    if scale.ndim > rank:
        return None
    dims = (1,) * (rank - scale.ndim) + scale.shape
    if any(size != 1 for axis, size in enumerate(dims) if axis != channel) or dims[channel] not in (
        1,
        channels,
    ):
        return None
    return np.broadcast_to(scale.reshape(dims[channel]), (channels,)).astype("float64")


RULES: tuple[Rule, ...] = (
    affine_after_norm,
    scale_after_linear,
    zero_padding_before_conv,
    affine_after_affine,
)
