"""Operators as models of one node: what kernels are compared with ONNX Runtime on, and checked with.

Each goes through the real frontend, so that the function is the one a user's model would give. Sizes are
those of ResNet-50, VGG, MobileNet-v2, BERT and ViT at batch 1; `small` ones are reduced, for checking.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tvm.ir import GenericConst

from tpo.frontend.load import load_onnx
from tpo.frontend.lower import find_calls
from tpo.frontend.model import Model
from tpo.tasks import operators_of
from tpo.testing.models.build import Builder

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
# Adds the operator's nodes behind a value, and gives the value they end in.
Nodes = Callable[[Builder, str], str]

PEAK, WINOGRAD, OTHER = "peak", "winograd", "other"
_AROUND = 16  # channels outside the convolutions that give a pooling its layout

# Rows x columns x depth.
_MATMULS = ((192, 768, 768), (128, 3072, 768), (3136, 64, 576))
# Width of the square input, channels in and out, stride.
_CONV_1X1 = (
    *((56, 64, 64, 1), (56, 64, 256, 1), (56, 256, 64, 1), (28, 512, 128, 1), (28, 128, 512, 1)),
    *((14, 1024, 256, 1), (14, 256, 1024, 1), (7, 2048, 512, 1), (7, 512, 2048, 1)),
    *((56, 256, 512, 2), (28, 512, 1024, 2), (14, 1024, 2048, 2)),
)
_RESNET_3X3 = ((56, 64, 64, 1), (28, 128, 128, 1), (14, 256, 256, 1), (7, 512, 512, 1))
_STRIDED_3X3 = ((56, 128, 128, 2), (28, 256, 256, 2), (14, 512, 512, 2))
_VGG_3X3 = ((224, 64, 64, 1), (112, 128, 128, 1), (28, 512, 512, 1), (14, 512, 512, 1))
# Width, channels, stride.
_DEPTHWISE = ((112, 32, 1), (56, 144, 1), (28, 192, 1), (14, 384, 1), (7, 960, 1), (56, 144, 2))
_SOFTMAX = ((12, 128, 128), (1, 1000), (12, 197, 197))
_LAYER_NORM = ((128, 768), (197, 768))
_GELU = ((128, 3072),)
_TRANSPOSE = (((1, 128, 12, 64), (0, 2, 1, 3)), ((1, 56, 56, 64), (0, 3, 1, 2)), ((1536, 1024), (1, 0)))


@dataclass(frozen=True)
class Operator:
    """One operator: `function` is what tpo calls it, `multiplications` those of its textbook algorithm.

    `images` have channels second in ONNX, and last in tpo's function. An operator that `follows` a
    convolution in models gets its layout from there, and is not itself without.
    """

    name: str
    function: str
    input: Shape
    output: Shape
    nodes: Nodes
    multiplications: int = 0
    images: bool = False
    follows: bool = False

    @property
    def flops(self) -> int:
        """A multiplication and an addition each; 0 where arithmetic is not what takes the time."""
        return 2 * self.multiplications

    def model(self, seed: int = 0) -> onnx.ModelProto:
        """The operator alone."""
        builder = Builder("operator", seed)
        builder.output(self.nodes(builder, builder.input("x", self.input)), "y", self.output)
        return builder.build()

    def model_in_place(self, seed: int = 0) -> onnx.ModelProto:
        """The operator between convolutions, if that is where models have it."""
        if not self.follows:
            return self.model(seed)
        builder = Builder("operator", seed)
        outer = (self.input[0], _AROUND, *self.input[2:])
        before = builder.conv(builder.input("x", outer), _AROUND, self.input[1], 1)
        after = builder.conv(self.nodes(builder, before), self.output[1], _AROUND, 1)
        builder.output(after, "y", (self.output[0], _AROUND, *self.output[2:]))
        return builder.build()


@dataclass(frozen=True)
class Imported:
    """An operator as tpo's frontend makes it: its function, and the model's constants among its arguments."""

    operator: Operator
    model: Model
    func: Any
    constants: dict[int, Array]

    @property
    def weight_bytes(self) -> int:
        """Bytes of its constants."""
        return sum(array.nbytes for array in self.constants.values())

    @property
    def activation_bytes(self) -> int:
        """Bytes it reads and writes besides."""
        return 4 * (math.prod(self.operator.input) + math.prod(self.operator.output))


def operators(small: bool = False) -> dict[str, list[Operator]]:
    """All operators by group, in the order they are reported; `small` ones without duplicates."""

    def most(size: int, limit: int) -> int:
        return min(size, limit) if small else size

    def conv(kernel: int, *sizes: tuple[int, int, int, int]) -> list[Operator]:
        return [_conv(kernel, most(w, 14), most(c, 128), most(f, 128), s) for w, c, f, s in sizes]

    matmuls = [_matmul(most(m, 64), most(n, 192), most(k, 576)) for m, n, k in _MATMULS]
    found = {
        PEAK: [*matmuls, *conv(1, *_CONV_1X1), *conv(3, *_RESNET_3X3), *conv(3, *_STRIDED_3X3)],
        WINOGRAD: conv(3, *_RESNET_3X3, *_VGG_3X3),
        OTHER: [
            *(_depthwise(most(width, 28), channels, stride) for width, channels, stride in _DEPTHWISE),
            *(_rowwise("softmax", shape, _softmax) for shape in _SOFTMAX),
            *(_rowwise("layer_norm", shape, _layer_norm) for shape in _LAYER_NORM),
            _pool("max_pool2d", "MaxPool", most(112, 28), 64, 2),
            _pool("avg_pool2d", "AveragePool", 28, 256, 1),
            _global_average(7, 2048),
            *(_rowwise("gelu", shape, _gelu) for shape in _GELU),
            *(_transpose(shape, axes) for shape, axes in _TRANSPOSE),
        ],
    }
    return {group: list({item.name: item for item in items}.values()) for group, items in found.items()}


def imported(operator: Operator, seed: int = 0) -> Imported:
    """Take an operator through the frontend, as `tpo compile` does."""
    with tempfile.TemporaryDirectory(prefix="tpo-operator-") as folder:
        path = Path(folder) / "operator.onnx"
        onnx.save(operator.model_in_place(seed), path)
        model = load_onnx(path)
    calls = [
        call
        for call in find_calls(model.module)
        if operator.function in operators_of(model.module, call.args[0].name_hint)
    ]
    if len(calls) != 1:
        raise ValueError(f"{operator.name} has become {len(calls)} functions")
    constants = {
        position: argument.value.numpy()
        for position, argument in enumerate(calls[0].args[1].fields)
        if isinstance(argument, GenericConst)
    }
    return Imported(operator, model, model.module[calls[0].args[0]], constants)


def channels_last(array: Array) -> Array:
    """An image as tpo's functions have it."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _matmul(rows: int, columns: int, depth: int) -> Operator:
    def nodes(builder: Builder, x: str) -> str:
        return builder.op("Relu", builder.linear(x, depth, columns))

    name = f"matmul {rows}x{columns}x{depth}"
    return Operator(name, "matmul", (rows, depth), (rows, columns), nodes, rows * columns * depth)


def _conv(kernel: int, width: int, channels: int, filters: int, stride: int) -> Operator:
    def nodes(builder: Builder, x: str) -> str:
        return builder.op("Relu", builder.conv(x, channels, filters, kernel, stride=stride))

    out = width // stride
    strided = f" s{stride}" if stride > 1 else ""
    return Operator(
        f"conv{kernel}x{kernel} {width}x{width} {channels}->{filters}{strided}",
        "conv2d",
        (1, channels, width, width),
        (1, filters, out, out),
        nodes,
        out * out * filters * channels * kernel * kernel,
        images=True,
    )


def _depthwise(width: int, channels: int, stride: int) -> Operator:
    def nodes(builder: Builder, x: str) -> str:
        conv = builder.conv(x, channels, channels, 3, stride=stride, group=channels)
        return builder.op("Clip", conv, builder.const(0.0), builder.const(6.0))

    out = width // stride
    strided = f" s{stride}" if stride > 1 else ""
    name = f"depthwise3x3 {width}x{width}x{channels}{strided}"
    shapes = ((1, channels, width, width), (1, channels, out, out))
    return Operator(name, "conv2d", *shapes, nodes, images=True)


def _pool(function: str, kind: str, width: int, channels: int, stride: int) -> Operator:
    def nodes(builder: Builder, x: str) -> str:
        return builder.op(kind, x, kernel_shape=[3, 3], strides=[stride, stride], pads=[1] * 4)

    out = width // stride
    name = f"{kind} 3x3 {width}x{width}x{channels}" + (f" s{stride}" if stride > 1 else "")
    shapes = ((1, channels, width, width), (1, channels, out, out))
    return Operator(name, function, *shapes, nodes, images=True, follows=True)


def _global_average(width: int, channels: int) -> Operator:
    def nodes(builder: Builder, x: str) -> str:
        return builder.op("GlobalAveragePool", x)

    shapes = ((1, channels, width, width), (1, channels, 1, 1))
    name = f"GlobalAveragePool {width}x{width}x{channels}"
    return Operator(name, "mean", *shapes, nodes, images=True, follows=True)


def _rowwise(function: str, shape: Shape, nodes: Nodes) -> Operator:
    return Operator(f"{function} {'x'.join(map(str, shape))}", function, shape, shape, nodes)


def _softmax(builder: Builder, x: str) -> str:
    return builder.op("Softmax", x, axis=-1)


def _layer_norm(builder: Builder, x: str) -> str:
    size = int(builder.inputs[0].type.tensor_type.shape.dim[-1].dim_value)
    return builder.op("LayerNormalization", x, builder.positive(size), builder.offset(size), axis=-1)


def _gelu(builder: Builder, x: str) -> str:
    """With erf, as torch exports it."""
    erf = builder.op("Erf", builder.op("Div", x, builder.const(math.sqrt(2))))
    twice = builder.op("Mul", x, builder.op("Add", erf, builder.const(1.0)))
    return builder.op("Mul", twice, builder.const(0.5))


def _transpose(shape: Shape, axes: tuple[int, ...]) -> Operator:
    def nodes(builder: Builder, x: str) -> str:
        return builder.op("Transpose", x, perm=list(axes))

    name = f"transpose {'x'.join(map(str, shape))} {''.join(map(str, axes))}"
    return Operator(name, "transpose", shape, tuple(shape[axis] for axis in axes), nodes)
