import numpy as np
import pytest

from support.converter_runs import Const, check_node, constant, normal, operators_of


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 5, 4), (1, 3, 2, 3, 4)])
@pytest.mark.parametrize("known", [True, False])
def test_batch_normalization(shape, known):
    statistics = [normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.1]
    inputs = [Const(value) for value in statistics] if known else statistics
    names = operators_of(check_node("BatchNormalization", [normal(*shape), *inputs], epsilon=1e-3))
    if known:
        assert names == ["multiply", "add"]


@pytest.mark.parametrize("opset", [7, 9, 15])
def test_batch_normalization_of_older_opsets(opset):
    inputs = [constant(3), constant(3), constant(3), Const(np.abs(normal(3)) + 0.1)]
    check_node("BatchNormalization", [normal(2, 3, 4, 4), *inputs], opset=opset)


@pytest.mark.parametrize("axis", [-1, 1, 2, 0])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(axis, bias):
    shape = (2, 3, 8)
    weights = [constant(*shape[axis:]), constant(*shape[axis:])][: 2 if bias else 1]
    module = check_node("LayerNormalization", [normal(*shape) + 3, *weights], axis=axis, epsilon=1e-3)
    assert operators_of(module) == ["nn.layer_norm"]


def test_layer_normalization_in_other_types_and_with_statistics():
    check_node("LayerNormalization", [normal(2, 3, 8), constant(8), constant(8)], outputs=3)
    half = [normal(2, 8, dtype="float16"), constant(8, dtype="float16"), constant(8, dtype="float16")]
    check_node("LayerNormalization", half, rtol=2e-3, atol=2e-3)
    double = [normal(2, 8, dtype="float64"), constant(8, dtype="float64")]
    check_node("LayerNormalization", double, rtol=1e-9)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_rms_normalization(axis):
    shape = (2, 3, 8)
    module = check_node("RMSNormalization", [normal(*shape), constant(*shape[axis:])], opset=23, axis=axis)
    assert axis == 0 or operators_of(module) == ["nn.rms_norm"]


def test_normalisations_of_com_microsoft():
    data = [normal(2, 4, 8), normal(2, 4, 8), constant(8), constant(8), constant(8)]
    check_node("SkipLayerNormalization", data, domain="com.microsoft", epsilon=1e-5)
    check_node("SkipLayerNormalization", data[:3], domain="com.microsoft", epsilon=1e-5)
    check_node("SkipSimplifiedLayerNormalization", data[:3], domain="com.microsoft", epsilon=1e-5)
    check_node("SimplifiedLayerNormalization", [data[0], data[2]], epsilon=1e-5)


def test_instance_and_group_normalization():
    check_node("InstanceNormalization", [normal(2, 4, 5, 3), constant(4), constant(4)])
    check_node("GroupNormalization", [normal(2, 4, 5, 3), constant(4), constant(4)], opset=21, num_groups=2)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size):
    module = check_node("LRN", [normal(2, 7, 4, 3) * 5], size=size, alpha=0.01, beta=0.6, bias=1.5)
    assert "reshape" not in operators_of(module)


@pytest.mark.parametrize("order", [1, 2])
def test_lp_normalization(order):
    data = normal(3, 4, 5)
    check_node("LpNormalization", [data], axis=1, p=order)


def test_mean_variance_normalization():
    check_node("MeanVarianceNormalization", [normal(2, 3, 4, 4)], opset=13)
