import numpy as np
import pytest

from support.converter_runs import check_node, normal, operators_of

WINDOWS = [
    {"kernel_shape": [3, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [0, 0, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(window, include):
    check_node("AveragePool", [normal(2, 3, 8, 7)], opset=19, count_include_pad=include, **window)


@pytest.mark.parametrize("include", [0, 1])
def test_dilated_average_pool(include):
    window = {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}
    check_node("AveragePool", [normal(2, 3, 8, 7)], opset=19, count_include_pad=include, **window)


@pytest.mark.parametrize("window", WINDOWS)
def test_max_pool(window):
    assert operators_of(check_node("MaxPool", [normal(2, 3, 8, 7)], **window)) == ["nn.max_pool2d"]


@pytest.mark.parametrize(
    "window", [*WINDOWS, {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": [1, 0, 0, 1]}]
)
@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_with_indices(window, order):
    check_node("MaxPool", [normal(2, 3, 8, 7)], outputs=2, storage_order=order, **window)


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("shape", [(1, 2, 9), (1, 2, 5, 6, 7)])
def test_pools_of_other_ranks(operator, shape):
    rank = len(shape) - 2
    check_node(operator, [normal(*shape)], kernel_shape=[3] * rank, strides=[2] * rank, pads=[1] * (2 * rank))


def test_max_pool_of_integers():
    check_node("MaxPool", [(normal(1, 2, 6, 6) * 50).astype("int8")], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4)])
def test_global_pools(operator, shape):
    check_node(operator, [normal(*shape)])


@pytest.mark.parametrize("power", [1, 2, 3])
def test_lp_pool(power):
    check_node("LpPool", [np.abs(normal(1, 2, 6, 6))], opset=18, kernel_shape=[3, 3], strides=[2, 2], p=power)
