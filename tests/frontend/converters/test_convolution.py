import numpy as np
import pytest

from support.converter_runs import Const, check_node, constant, normal, operators_of

CONVOLUTIONS = [
    ((1, 4, 9), (6, 4, 3), {}),
    ((1, 4, 9), (6, 2, 3), {"group": 2, "pads": [1, 2], "strides": [2]}),
    ((2, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "pads": [0, 1, 2, 1]}),
    ((1, 4, 9, 8), (6, 4, 3, 2), {"dilations": [2, 3], "strides": [1, 2]}),
    ((1, 4, 9, 8), (6, 4, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 4, 9, 8), (6, 4, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 4, 9, 8), (6, 4, 3, 2), {"auto_pad": "VALID"}),
    ((1, 2, 5, 6, 7), (4, 2, 2, 3, 3), {"pads": [1, 1, 1, 0, 1, 1]}),
    ((1, 4, 5, 6, 7), (6, 2, 2, 3, 3), {"group": 2, "strides": [1, 2, 2], "dilations": [2, 1, 1]}),
    ((2, 5, 31), (7, 5, 7), {"pads": [9, 9], "dilations": [3]}),
]


@pytest.mark.parametrize(("data", "weight", "attributes"), CONVOLUTIONS)
def test_conv_with_constant_bias_has_no_reshape(data, weight, attributes):
    module = check_node("Conv", [normal(*data), constant(*weight), constant(weight[0])], **attributes)
    assert operators_of(module) == [f"nn.conv{len(data) - 2}d", "add"]


def test_conv_with_weights_as_inputs():
    check_node("Conv", [normal(1, 4, 5, 5), normal(2, 4, 3, 3), normal(2)])


TRANSPOSED = [
    ((5, 6), (4, 6, 3, 3), {"strides": [2, 2]}),
    ((5, 6), (4, 3, 4, 2), {"strides": [2, 3], "group": 2, "pads": [1, 0, 1, 0]}),
    ((5, 6), (4, 6, 3, 3), {"strides": [2, 2], "dilations": [2, 2], "output_padding": [1, 1]}),
    ((5, 6), (4, 6, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((5, 6), (4, 6, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((5, 6), (4, 6, 3, 3), {"strides": [2, 2], "output_shape": [9, 11]}),
    ((5, 6), (4, 6, 2, 2), {"strides": [3, 3]}),
    ((5, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((7,), (4, 3, 3), {"strides": [2], "group": 2, "pads": [1, 0]}),
    ((11,), (4, 5, 4), {"strides": [3], "dilations": [2], "output_padding": [1]}),
    ((9,), (4, 5, 2), {"strides": [4]}),
    ((3, 4, 5), (4, 2, 3, 2, 2), {"strides": [2, 1, 2], "output_padding": [1, 0, 0]}),
    ((3, 4, 2), (4, 3, 2, 3, 4), {"strides": [2, 2, 2], "group": 2, "pads": [0, 1, 1, 0, 1, 1]}),
]


@pytest.mark.parametrize(("size", "weight", "attributes"), TRANSPOSED)
def test_conv_transpose(size, weight, attributes):
    bias = constant(weight[1] * attributes.get("group", 1))
    module = check_node("ConvTranspose", [normal(2, 4, *size), constant(*weight), bias], **attributes)
    assert f"nn.conv{len(size)}d" in operators_of(module)


def test_conv_transpose_with_weights_as_inputs():
    check_node("ConvTranspose", [normal(1, 4, 5, 5), normal(4, 2, 3, 3)], strides=[2, 2], pads=[1, 1, 0, 1])


@pytest.mark.parametrize(
    "attributes", [{}, {"strides": [2, 2]}, {"pads": [1, 0, 1, 2]}, {"dilations": [2, 1], "strides": [1, 2]}]
)
def test_col2im(attributes):
    image, block = np.array([6, 7]), np.array([2, 3])
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    counts = [
        (image[i] + pads[i] + pads[i + 2] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in (0, 1)
    ]
    data = normal(2, 3 * 6, int(np.prod(counts)))
    check_node("Col2Im", [data, Const(image), Const(block)], opset=18, **attributes)
