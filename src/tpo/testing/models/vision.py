"""Convolutional networks as exporters write them: MobileNets, a YOLO, a U-Net, an old opset."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from tpo.testing.models.build import Builder

# Filters, expansion and stride of an inverted residual.
Residual = tuple[int, int, int]
_SMALL: tuple[Residual, ...] = ((8, 1, 1), (12, 6, 2), (12, 6, 1), (16, 6, 2), (16, 6, 1), (24, 6, 2))


def mobilenet_v2(
    seed: int,
    size: int = 64,
    stem: int = 16,
    blocks: Sequence[Residual] = _SMALL,
    head: int = 96,
    classes: int = 10,
) -> onnx.ModelProto:
    """Inverted residuals, Clip(0, 6) with initializer bounds, dynamic batch."""
    b = Builder("mobilenet_v2", seed)
    low, high = b.const(0.0, name="relu6_min"), b.const(6.0, name="relu6_max")

    def conv_relu6(x: str, channels: int, filters: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        return b.op("Clip", b.conv(x, channels, filters, kernel, stride=stride, group=group), low, high)

    x = conv_relu6(b.input("input", ["batch", 3, size, size]), 3, stem, 3, stride=2)
    channels = stem
    for filters, expansion, stride in blocks:
        hidden = channels * expansion
        y = conv_relu6(x, channels, hidden, 1) if expansion > 1 else x
        y = conv_relu6(y, hidden, hidden, 3, stride=stride, group=hidden)
        y = b.conv(y, hidden, filters, 1)
        x = b.op("Add", x, y) if stride == 1 and filters == channels else y
        channels = filters
    x = conv_relu6(x, channels, head, 1)
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    b.output(b.gemm(x, head, classes, gain=8.0), "output", ["batch", classes])
    return b.build()


def mobilenet_v3(seed: int) -> onnx.ModelProto:
    """Hard-swish and hard-sigmoid as nodes and as chains, squeeze-and-excite blocks."""
    b = Builder("mobilenet_v3", seed)
    three, six = b.const(3.0), b.const(6.0)
    zero = b.const(0.0)

    def hard_sigmoid_chain(x: str) -> str:
        return b.op("Div", b.op("Clip", b.op("Add", x, three), zero, six), six)

    def hard_swish_chain(x: str) -> str:
        return b.op("Div", b.op("Mul", x, b.op("Clip", b.op("Add", x, three), zero, six)), six)

    def squeeze_excite(x: str, channels: int, gate: Callable[[str], str]) -> str:
        y = b.op("GlobalAveragePool", x)
        y = b.op("Relu", b.conv(y, channels, channels // 4, 1))
        return b.op("Mul", gate(b.conv(y, channels // 4, channels, 1)), x)

    def block(
        x: str, channels: int, hidden: int, filters: int, kernel: int, stride: int,
        activation: Callable[[str], str], gate: Callable[[str], str] | None,
    ) -> str:  # fmt: skip
        y = activation(b.batch_norm(b.conv(x, channels, hidden, 1, bias=False), hidden))
        y = b.conv(y, hidden, hidden, kernel, stride=stride, group=hidden, bias=False)
        y = activation(b.batch_norm(y, hidden))
        y = squeeze_excite(y, hidden, gate) if gate else y
        y = b.batch_norm(b.conv(y, hidden, filters, 1, bias=False), filters)
        return b.op("Add", x, y) if stride == 1 and channels == filters else y

    def relu(x: str) -> str:
        return b.op("Relu", x)

    def hard_swish(x: str) -> str:
        return b.op("HardSwish", x)

    def hard_sigmoid(x: str) -> str:
        return b.op("HardSigmoid", x, alpha=1.0 / 6.0)

    x = hard_swish(b.conv(b.input("input", ["batch", 3, 64, 64]), 3, 16, 3, stride=2))
    x = block(x, 16, 16, 16, 3, 2, relu, hard_sigmoid)
    x = block(x, 16, 48, 24, 3, 2, relu, None)
    x = block(x, 24, 64, 24, 5, 1, hard_swish_chain, hard_sigmoid_chain)
    x = block(x, 24, 64, 32, 5, 2, hard_swish, hard_sigmoid)
    x = hard_swish_chain(b.conv(x, 32, 96, 1))
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    x = hard_swish(b.gemm(x, 96, 64))
    b.output(b.gemm(x, 64, 10, gain=8.0), "output", ["batch", 10])
    return b.build()


def yolo(
    seed: int,
    size: int = 64,
    widths: tuple[int, int, int, int] = (8, 16, 32, 48),
    head: int = 32,
    classes: int = 6,
) -> onnx.ModelProto:
    """SiLU everywhere, C2f-like splits, an SPPF block, nearest upsampling and a decoded head."""
    stem, first, second, third = widths
    b = Builder("yolo", seed)

    def conv_silu(x: str, channels: int, filters: int, kernel: int = 3, stride: int = 1) -> str:
        y = b.conv(x, channels, filters, kernel, stride=stride, gain=3.0)
        return b.op("Mul", y, b.op("Sigmoid", y))

    def split_block(x: str, channels: int, filters: int) -> str:
        half = filters // 2
        y = conv_silu(x, channels, filters, 1)
        first, second = b.ops("Split", y, b.ints(half, half), count=2, axis=1)
        third = b.op("Add", second, conv_silu(conv_silu(second, half, half), half, half))
        return conv_silu(b.op("Concat", first, second, third, axis=1), 3 * half, filters, 1)

    def pyramid_pool(x: str, channels: int) -> str:
        pools = [conv_silu(x, channels, channels // 2, 1)]
        for _ in range(3):
            pools.append(b.op("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2], strides=[1, 1]))
        return conv_silu(b.op("Concat", *pools, axis=1), channels * 2, channels, 1)

    x = conv_silu(b.input("images", ["batch", 3, size, size]), 3, stem, stride=2)
    x = split_block(conv_silu(x, stem, first, stride=2), first, first)
    fine = split_block(conv_silu(x, first, second, stride=2), second, second)
    coarse = pyramid_pool(split_block(conv_silu(fine, second, third, stride=2), third, third), third)
    scales = b.const([1.0, 1.0, 2.0, 2.0])
    up = b.op(
        "Resize", coarse, "", scales,
        mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric",
    )  # fmt: skip
    fine = split_block(b.op("Concat", up, fine, axis=1), second + third, second)

    heads, boxes_of = [], {fine: (second, (size // 8) ** 2), coarse: (third, (size // 16) ** 2)}
    for x, (channels, count) in boxes_of.items():
        y = b.conv(conv_silu(x, channels, head), head, 4 + classes, 1, gain=1.0)
        heads.append(b.op("Reshape", y, b.ints(0, 4 + classes, count)))
    total = sum(count for _, count in boxes_of.values())
    joined = b.op("Transpose", b.op("Concat", *heads, axis=2), perm=[0, 2, 1])
    boxes, scores = b.ops("Split", joined, b.ints(4, classes), count=2, axis=2)
    centre = b.op("Slice", boxes, b.ints(0), b.ints(2), b.ints(-1), b.ints(1))
    extent = b.op("Slice", boxes, b.ints(2), b.ints(2**63 - 1), b.ints(-1), b.ints(1))
    grid = b.const(b.rng.uniform(0, 8, (1, total, 2)))
    centre = b.op("Mul", b.op("Add", b.op("Sigmoid", centre), grid), b.const(8.0))
    extent = b.op("Exp", b.op("Clip", extent, b.const(-4.0), b.const(4.0)))
    decoded = b.op("Concat", centre, extent, b.op("Sigmoid", scores), axis=-1)
    b.output(decoded, "output0", ["batch", total, 4 + classes])
    return b.build()


def unet(seed: int) -> onnx.ModelProto:
    """ConvTranspose and Resize with sizes, dilated and grouped convolutions, instance and group norm."""
    b = Builder("unet", seed)

    def instance_norm(x: str, channels: int) -> str:
        return b.op("InstanceNormalization", x, b.positive(channels), b.offset(channels), epsilon=1e-5)

    def group_norm(x: str, channels: int, groups: int) -> str:
        """GroupNorm as torch exports it before opset 18: InstanceNormalization on a reshaped tensor."""
        flat = b.op("Reshape", x, b.ints(0, groups, -1))
        ones, zeros = b.const(np.ones(groups)), b.const(np.zeros(groups))
        y = b.op("InstanceNormalization", flat, ones, zeros, epsilon=1e-5)
        y = b.op("Reshape", y, b.op("Shape", x))
        y = b.op("Mul", y, b.const(b.rng.uniform(0.7, 1.3, (channels, 1, 1))))
        return b.op("Add", y, b.const(0.1 * b.rng.standard_normal((channels, 1, 1))))

    x = b.input("image", ["batch", 3, 48, 48])
    top = b.op("LeakyRelu", instance_norm(b.conv(x, 3, 16), 16), alpha=0.1)
    x = b.op("MaxPool", top, kernel_shape=[2, 2], strides=[2, 2])
    middle = b.op("Relu", group_norm(b.conv(x, 16, 32, dilation=2), 32, 4))
    x = b.op("AveragePool", middle, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Elu", instance_norm(b.conv(x, 32, 48, group=4), 48))
    x = b.op(
        "ConvTranspose",
        x,
        b.weight(48, 32, 2, 2, fan_in=48),
        b.offset(32),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    x = b.op("Relu", group_norm(b.conv(b.op("Concat", x, middle, axis=1), 64, 32), 32, 8))

    spatial = b.op("Slice", b.op("Shape", top), b.ints(2), b.ints(4), b.ints(0))
    leading = b.op("Slice", b.op("Shape", x), b.ints(0), b.ints(2), b.ints(0))
    sizes = b.op("Concat", leading, spatial, axis=0)
    x = b.op("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="pytorch_half_pixel")
    x = b.op("Concat", x, top, axis=1)
    x = b.op("PRelu", b.conv(x, 48, 16), b.const(b.rng.uniform(0.1, 0.3, (16, 1, 1))))
    b.output(b.conv(x, 16, 2, 1), "mask", ["batch", 2, 48, 48])
    return b.build()


def opset7(seed: int) -> onnx.ModelProto:
    """A small net of 2018: Upsample with a scales attribute, Dropout and Pad and Clip by attribute."""
    b = Builder("opset7", seed, opset=7, ir_version=3)
    x = b.op("Relu", b.batch_norm(b.conv(b.input("data", [1, 3, 32, 32]), 3, 8, bias=False), 8))
    x = b.op("Pad", x, mode="reflect", pads=[0, 0, 1, 1, 0, 0, 1, 1])
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Upsample", b.conv(x, 8, 8), mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    x = b.op("Clip", b.op("LRN", x, size=3), min=-1.0, max=1.0)
    x = b.op("Dropout", b.op("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]), ratio=0.3)
    x = b.op("Squeeze", b.op("Unsqueeze", x, axes=[0]), axes=[0])
    x = b.op("Slice", x, axes=[2], starts=[0], ends=[8])
    x = b.op("Reshape", x, b.ints(1, -1))
    x = b.op("Sum", b.gemm(x, 512, 10), b.gemm(x, 512, 10), b.const(b.rng.standard_normal((1, 10))))
    b.output(b.op("Softmax", x), "prob", [1, 10])
    for tensor in b.initializers:  # IR version 3: an initializer must be a graph input too
        b.inputs.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return b.build()


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    maker.__name__: maker for maker in (mobilenet_v2, mobilenet_v3, yolo, unet, opset7)
}
