"""The twelve operators of the MetaSchedule paper, and others to train a cost model with.

The twelve are those of the paper (batch 1, but for NRM), as TVM writes them down for its own tests. Where
TVM's first size would take less than a third of a millisecond on two cores with AVX2, or more than five, they
have another of its sizes, or one that a real network has. The workloads for training have sizes of real
networks; none is one of the twelve. Weights of convolutions and dense layers are constants of a model, and
marked as such: their layout is free. Matrix products of the paper have two computed operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from tvm import te, topi
from tvm.s_tir.meta_schedule.testing import te_workload as paper

from tpo.workload import Workload

Tensors = Sequence[Any]
# What computes an operator, with which sizes, and which parameters are constants of the model.
Spec = tuple[Callable[..., Tensors], tuple[Any, ...], tuple[int, ...]]

_FREE = "layout_free_buffers"
_WEIGHT = (1,)
# Sizes of convolutions are: batch, length or height and width, channels, filters, kernel, stride, padding,
# dilation, groups. Matrix products are batch, rows, columns, depth.
_OPERATORS: dict[str, Spec] = {
    "C1D": (paper.conv1d_nlc, (1, 256, 256, 256, 3, 1, 1), _WEIGHT),
    "C2D": (paper.conv2d_nhwc, (1, 224, 224, 3, 64, 7, 2, 3), _WEIGHT),
    "C3D": (paper.conv3d_ndhwc, (1, 8, 56, 56, 3, 64, 7, 2, 3), _WEIGHT),
    "DEP": (paper.depthwise_conv2d_nhwc, (1, 112, 112, 64, 3, 1, 1), _WEIGHT),
    "DIL": (paper.conv2d_nhwc, (1, 224, 224, 3, 64, 7, 2, 3, 2), _WEIGHT),
    "GMM": (paper.batch_matmul_nkkm, (1, 512, 512, 512), ()),
    "GRP": (paper.conv2d_nhwc, (1, 56, 56, 64, 128, 3, 1, 1, 1, 4), _WEIGHT),
    "T2D": (paper.conv2d_transpose_nhwc, (1, 4, 4, 512, 256, 4, 2, 1), _WEIGHT),
    "CBR": (paper.conv2d_nhwc_bn_relu, (1, 224, 224, 3, 64, 7, 2, 3), _WEIGHT),
    "TBG": (paper.transpose_batch_matmul, (1, 384, 12, 64), ()),
    # Eight at once: the unscheduled function adds one by one, and a sum of more squares is wrong by 2e-4.
    "NRM": (paper.norm_bmn, (8, 512, 512), ()),
    "SFM": (paper.softmax_mn, (1024, 1024), ()),
}


def names() -> tuple[str, ...]:
    """The paper's names of its operators.

    >>> names()[:3]
    ('C1D', 'C2D', 'C3D')
    """
    return tuple(_OPERATORS)


@cache
def workload(name: str) -> Workload:
    """The workload of one of `names()`."""
    return _made(*_OPERATORS[name])


def training_workloads() -> Iterator[tuple[str, Workload]]:
    """Further workloads, by names that say what they are; none is one of the twelve.

    >>> found = {made.key for _, made in training_workloads()}
    >>> len(found), len(found | {workload(name).key for name in names()})
    (71, 83)
    """
    for name, spec in _training().items():
        yield name, _made(*spec)


def _made(maker: Callable[..., Tensors], sizes: tuple[Any, ...], constants: tuple[int, ...]) -> Workload:
    func = te.create_prim_func(list(maker(*sizes)), index_dtype_override="int64")
    # TVM's own operators mark operands as they see fit, even those of products between computed matrices.
    func = func.without_attr(_FREE) if func.attrs and _FREE in func.attrs else func
    return Workload.of(func.with_attr(_FREE, list(constants)) if constants else func)


# Makers ---------------------------------------------------------------------------------------------


def _dense(rows: int, columns: int, depth: int, activation: str = "") -> Tensors:
    """A layer of a network: weights, bias and what follows."""
    left, right = te.placeholder((rows, depth), name="left"), te.placeholder((depth, columns), name="right")
    bias = te.placeholder((columns,), name="bias")
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute((rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="dense")
    added = te.compute((rows, columns), lambda i, j: product[i, j] + bias[j], name="add")
    return [left, right, bias, _ACTIVATIONS[activation](added)]


def _matmul(batch: int, rows: int, columns: int, depth: int, transposed: bool = False) -> Tensors:
    """A product of two computed matrices."""
    left = te.placeholder((batch, rows, depth), name="left")
    right = te.placeholder((batch, columns, depth) if transposed else (batch, depth, columns), name="right")
    return [left, right, topi.nn.batch_matmul(left, right, transpose_b=transposed)]


def _conv_relu(size: int, channels: int, filters: int, kernel: int, stride: int, activation: str) -> Tensors:
    """A convolution with bias and activation."""
    made = paper.conv2d_nhwc(1, size, size, channels, filters, kernel, stride, kernel // 2)
    data, weight, conv = made
    bias = te.placeholder((filters,), name="bias")
    added = te.compute(conv.shape, lambda n, y, x, c: conv[n, y, x, c] + bias[c], name="add")
    return [data, weight, bias, _ACTIVATIONS[activation](added)]


def _pool(kind: str, size: int, channels: int, kernel: int, stride: int, padding: int) -> Tensors:
    data = te.placeholder((1, size, size, channels), name="data")
    around = ((kernel, kernel), (stride, stride), (1, 1), (padding,) * 4)
    return [data, topi.nn.pool2d(data, *around, kind, layout="NHWC", count_include_pad=False)]


def _layer_norm(rows: int, length: int) -> Tensors:
    data = te.placeholder((rows, length), name="data")
    scale, shift = (te.placeholder((length,), name=name) for name in ("scale", "shift"))
    return [data, scale, shift, topi.nn.layer_norm(data, scale, shift, [1], 1e-5)]


def _unary(function: Callable[[Any], Any], *shape: int) -> Tensors:
    data = te.placeholder(shape, name="data")
    return [data, function(data)]


def _add(*shape: int) -> Tensors:
    left, right = (te.placeholder(shape, name=name) for name in ("left", "right"))
    return [left, right, topi.nn.relu(topi.add(left, right))]


def _silu(x: Any) -> Any:
    return topi.multiply(x, topi.sigmoid(x))


def _gelu(x: Any) -> Any:
    half = topi.multiply(x, 0.5)
    return topi.multiply(half, topi.add(topi.erf(topi.multiply(x, 0.7071067811865476)), 1.0))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "relu": topi.nn.relu,
    "silu": _silu,
    "gelu": _gelu,
}

# Workloads for training --------------------------------------------------------------------------------


def _training() -> dict[str, Spec]:
    return {**_products(), **_convolutions(), **_other_convolutions(), **_rows(), **_movements()}


def _products() -> dict[str, Spec]:
    """Dense layers of BERT, ViT, ResNet, MobileNet and VGG, with one row and with many; attention."""
    found: dict[str, Spec] = {}
    for rows, columns, depth, activation in (
        (128, 768, 768, ""),
        (128, 3072, 768, "gelu"),
        (128, 768, 3072, ""),
        (384, 768, 768, ""),
        (197, 384, 384, ""),
        (197, 1152, 384, ""),
        (64, 512, 2048, "relu"),
        (16, 1024, 1024, ""),
        (1, 1000, 2048, ""),
        (1, 1000, 1280, ""),
        (1, 4096, 4096, "relu"),
        (1, 3072, 768, "gelu"),
    ):
        found[f"dense {rows}x{columns}x{depth} {activation}".strip()] = (
            _dense,
            (rows, columns, depth, activation),
            _WEIGHT,
        )
    for batch, rows, columns, depth, transposed in (
        (12, 128, 128, 64, True),
        (12, 128, 64, 128, False),
        (6, 197, 197, 64, True),
        (16, 384, 64, 384, False),
        (1, 256, 256, 256, False),
        (1, 384, 1024, 320, False),
    ):
        mark = "t" if transposed else ""
        found[f"matmul {batch}x{rows}x{columns}x{depth}{mark}"] = (
            _matmul,
            (batch, rows, columns, depth, transposed),
            (),
        )
    return found


def _convolutions() -> dict[str, Spec]:
    """Convolutions in two dimensions of ResNet, VGG, MobileNet, Inception, YOLO and DeepLab."""
    found: dict[str, Spec] = {}
    for size, channels, filters, kernel, stride, dilation, groups in (
        (56, 64, 64, 1, 1, 1, 1),
        (56, 64, 256, 1, 1, 1, 1),
        (28, 512, 128, 1, 1, 1, 1),
        (56, 256, 512, 1, 2, 1, 1),
        (14, 96, 576, 1, 1, 1, 1),
        (7, 320, 1280, 1, 1, 1, 1),
        (56, 64, 64, 3, 1, 1, 1),
        (28, 128, 128, 3, 1, 1, 1),
        (14, 256, 256, 3, 1, 1, 1),
        (7, 512, 512, 3, 1, 1, 1),
        (112, 64, 128, 3, 2, 1, 1),
        (28, 128, 256, 3, 2, 1, 1),
        (35, 48, 64, 5, 1, 1, 1),
        (27, 96, 128, 5, 1, 1, 2),
        (160, 3, 32, 7, 2, 1, 1),
        (28, 128, 128, 3, 1, 2, 1),
        (33, 256, 64, 3, 1, 6, 1),
        (56, 128, 128, 3, 1, 1, 32),
        (14, 512, 512, 3, 1, 1, 32),
        (28, 240, 240, 1, 1, 1, 3),
    ):
        padding = dilation * (kernel // 2)
        sizes = (1, size, size, channels, filters, kernel, stride, padding, dilation, groups)
        extra = "".join((f" dilated {dilation}" * (dilation > 1), f" groups {groups}" * (groups > 1)))
        name = f"conv {size}x{size}x{channels}->{filters} {kernel}x{kernel}/{stride}{extra}"
        found[name] = (paper.conv2d_nhwc, sizes, _WEIGHT)
    for size, channels, filters, kernel, stride, activation in (
        (80, 64, 64, 3, 1, "silu"),
        (40, 128, 256, 3, 2, "silu"),
        (56, 64, 128, 3, 1, "relu"),
        (14, 256, 1024, 1, 1, "relu"),
    ):
        name = f"conv {size}x{size}x{channels}->{filters} {kernel}x{kernel}/{stride} {activation}"
        found[name] = (_conv_relu, (size, channels, filters, kernel, stride, activation), _WEIGHT)
    return found


def _other_convolutions() -> dict[str, Spec]:
    """Depthwise convolutions of MobileNet and ConvNeXt; of one and three dimensions; transposed."""
    found: dict[str, Spec] = {}
    for size, channels, kernel, stride in (
        (112, 32, 3, 1),
        (112, 96, 3, 2),
        (56, 144, 3, 1),
        (28, 240, 5, 1),
        (14, 512, 3, 1),
        (56, 96, 7, 1),
    ):
        name = f"depthwise {size}x{size}x{channels} {kernel}x{kernel}/{stride}"
        around = (channels, kernel, stride, kernel // 2)
        found[name] = (paper.depthwise_conv2d_nhwc, (1, size, size, *around), _WEIGHT)
    for length, channels, filters, kernel, stride in ((512, 80, 384, 3, 1), (1024, 64, 128, 5, 2)):
        name = f"conv1d {length}x{channels}->{filters} {kernel}/{stride}"
        found[name] = (
            paper.conv1d_nlc,
            (1, length, channels, filters, kernel, stride, kernel // 2),
            _WEIGHT,
        )
    for depth, size, channels, filters, kernel, stride in ((8, 28, 32, 64, 3, 1), (4, 14, 256, 128, 1, 1)):
        name = f"conv3d {depth}x{size}x{size}x{channels}->{filters} {kernel}/{stride}"
        sizes = (1, depth, size, size, channels, filters, kernel, stride, kernel // 2)
        found[name] = (paper.conv3d_ndhwc, sizes, _WEIGHT)
    found["transposed conv 16x16x128->64 4x4/2"] = (
        paper.conv2d_transpose_nhwc,
        (1, 16, 16, 128, 64, 4, 2, 1),
        _WEIGHT,
    )
    return found


def _rows() -> dict[str, Spec]:
    """Softmax, norms and other reductions; pooling."""
    return {
        "softmax 1536x128": (_unary, (_softmax, 1536, 128), ()),
        "softmax 2364x197": (_unary, (_softmax, 2364, 197), ()),
        "softmax 1x1000": (_unary, (_softmax, 1, 1000), ()),
        "layer norm 384x768": (_layer_norm, (384, 768), ()),
        "layer norm 197x384": (_layer_norm, (197, 384), ()),
        "norm 1x512x512": (paper.norm_bmn, (1, 512, 512), ()),
        "sum of rows 2048x1024": (_unary, (lambda x: topi.sum(x, axis=1), 2048, 1024), ()),
        "sum of columns 1024x1000": (_unary, (lambda x: topi.sum(x, axis=0), 1024, 1000), ()),
        "global mean 7x7x2048": (_unary, (lambda x: topi.sum(x, axis=(1, 2)) / 49.0, 1, 7, 7, 2048), ()),
        "max pool 112x112x64 3x3/2": (_pool, ("max", 112, 64, 3, 2, 1), ()),
        "mean pool 56x56x128 2x2/2": (_pool, ("avg", 56, 128, 2, 2, 0), ()),
        "max pool 20x20x256 5x5/1": (_pool, ("max", 20, 256, 5, 1, 2), ()),
    }


def _softmax(x: Any) -> Any:
    return topi.nn.softmax(x, axis=-1)


def _movements() -> dict[str, Spec]:
    """One pass over everything: element by element, or turned around."""
    return {
        "add relu 56x56x256": (_add, (1, 56, 56, 256), ()),
        "gelu 384x3072": (_unary, (_gelu, 384, 3072), ()),
        "silu 80x80x128": (_unary, (_silu, 1, 80, 80, 128), ()),
        "transpose 384x12x64": (_unary, (lambda x: topi.transpose(x, (0, 2, 1, 3)), 1, 384, 12, 64), ()),
        "transpose 768x768": (_unary, (topi.transpose, 768, 768), ()),
        "to channels last 64x112x112": (
            _unary,
            (lambda x: topi.transpose(x, (0, 2, 3, 1)), 1, 64, 112, 112),
            (),
        ),
    }
