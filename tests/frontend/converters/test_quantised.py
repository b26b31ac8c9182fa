import numpy as np
import pytest

from support.converter_runs import Const, check_node, integers, normal, operators_of


def scale(value: float = 0.05) -> Const:
    return Const(value, "float32")


def zero(value: int, dtype: str) -> Const:
    return Const(value, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_quantize_linear_rounds_half_to_even_and_saturates(dtype):
    limits = np.iinfo(dtype)
    halves = np.arange(-20, 20, dtype="float32") / 2
    data = np.concatenate(
        [halves, np.array([1e6, -1e6, limits.max + 0.5, limits.min - 0.5], dtype="float32")]
    )
    check_node("QuantizeLinear", [data, scale(1.0), zero(3, dtype)], opset=21)
    check_node("QuantizeLinear", [normal(100) * 10, scale(0.07), zero(0, dtype)], opset=21)


def test_quantize_linear_without_zero_point_and_per_axis():
    check_node("QuantizeLinear", [normal(10) * 10, scale()], opset=13)
    scales, zeros = Const([0.1, 0.2, 0.05], "float32"), Const([1, 2, 3], "uint8")
    check_node("QuantizeLinear", [normal(2, 3, 4), scales, zeros], opset=13, axis=1)
    check_node("QuantizeLinear", [normal(2, 4, 3), scales, zeros], opset=13, axis=-1)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_dequantize_linear(dtype):
    data = integers(0, 100, 2, 3, 4, dtype=dtype)
    check_node("DequantizeLinear", [data, scale(), zero(0 if dtype == "int32" else 7, dtype)], opset=13)
    scales = Const([0.1, 0.2, 0.05], "float32")
    check_node("DequantizeLinear", [data, scales], opset=13, axis=1)


def test_dequantize_linear_of_a_constant_leaves_a_constant():
    weight = Const(integers(-100, 100, 4, 3, dtype="int8"))
    scales = Const([0.1, 0.2, 0.3, 0.4], "float32")
    module = check_node("DequantizeLinear", [weight, scales], opset=13, axis=0)
    assert operators_of(module) == []


def test_blocked_dequantize_linear():
    scales, zeros = Const(np.abs(normal(2, 3))), Const(integers(0, 9, 2, 3, dtype="uint8"))
    data = integers(0, 255, 4, 3, dtype="uint8")
    check_node("DequantizeLinear", [data, scales, zeros], opset=21, axis=0, block_size=2)


@pytest.mark.parametrize("data", [normal(3, 4), np.abs(normal(3, 4)), np.zeros((2, 2), dtype="float32")])
def test_dynamic_quantize_linear(data):
    check_node("DynamicQuantizeLinear", [data], opset=13, outputs=3)


@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_matmul_integer(dtypes):
    left, right = integers(0, 100, 2, 4, 300, dtype=dtypes[0]), integers(0, 100, 300, 5, dtype=dtypes[1])
    check_node("MatMulInteger", [left, Const(right), zero(3, dtypes[0]), zero(5, dtypes[1])], opset=13)
    check_node("MatMulInteger", [left, right], opset=13)


def test_matmul_integer_with_a_zero_point_per_column():
    left, right = integers(0, 255, 4, 6, dtype="uint8"), integers(0, 255, 6, 3, dtype="uint8")
    check_node("MatMulInteger", [left, Const(right), zero(9, "uint8"), Const([1, 2, 3], "uint8")], opset=13)


@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, {"group": 2}])
def test_conv_integer(attributes):
    groups = attributes.get("group", 1)
    weight = Const(integers(0, 255, 4, 4 // groups, 3, 3, dtype="uint8"))
    data = integers(0, 255, 1, 4, 7, 6, dtype="uint8")
    check_node("ConvInteger", [data, weight, zero(11, "uint8"), zero(7, "uint8")], opset=13, **attributes)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_qlinear_conv(per_channel, dtype):
    data, weight = integers(0, 120, 2, 4, 7, 6, dtype=dtype), integers(-127, 127, 6, 4, 3, 3, dtype="int8")
    scales = Const(np.linspace(0.001, 0.004, 6), "float32") if per_channel else scale(0.002)
    zeros = Const(np.zeros(6), "int8") if per_channel else zero(0, "int8")
    bias = Const(integers(-5000, 5000, 6, dtype="int32"))
    inputs = [
        data,
        scale(0.03),
        zero(60, dtype),
        Const(weight),
        scales,
        zeros,
        scale(0.02),
        zero(9, dtype),
        bias,
    ]
    check_node("QLinearConv", inputs, opset=13, pads=[1, 1, 1, 1])


def test_qlinear_matmul():
    left, right = integers(0, 255, 4, 64, dtype="uint8"), integers(0, 255, 64, 5, dtype="uint8")
    inputs = [
        left,
        scale(0.01),
        zero(110, "uint8"),
        Const(right),
        scale(0.02),
        zero(120, "uint8"),
        scale(0.07),
    ]
    check_node("QLinearMatMul", [*inputs, zero(128, "uint8")], opset=13)


QUANTISED = [scale(0.04), zero(100, "uint8")]
OUTPUT = [scale(0.05), zero(90, "uint8")]


@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_qlinear_binary_operators(operator):
    data = [
        integers(0, 255, 2, 3, 4, dtype="uint8"),
        *QUANTISED,
        integers(0, 255, 3, 1, dtype="uint8"),
        *QUANTISED,
    ]
    within_one_step(operator, [*data, *OUTPUT])


@pytest.mark.parametrize(
    ("operator", "output", "attributes"),
    [
        ("QLinearSigmoid", [scale(1 / 256), zero(0, "uint8")], {}),
        ("QLinearLeakyRelu", OUTPUT, {"alpha": 0.1}),
        ("QLinearAveragePool", OUTPUT, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("QLinearGlobalAveragePool", OUTPUT, {"channels_last": 0}),
        ("QLinearSoftmax", [scale(1 / 256), zero(0, "uint8")], {"opset": 13, "axis": -1}),
    ],
)
def test_qlinear_unary_operators(operator, output, attributes):
    within_one_step(
        operator, [integers(0, 255, 1, 16, 6, 6, dtype="uint8"), *QUANTISED, *output], **attributes
    )


def test_qlinear_concat():
    parts = [
        integers(0, 255, 2, 3, dtype="uint8"),
        *QUANTISED,
        integers(0, 255, 2, 2, dtype="uint8"),
        *OUTPUT,
    ]
    within_one_step("QLinearConcat", [*OUTPUT, *parts], axis=1)


def test_qgemm():
    weight = Const(integers(0, 255, 5, 32, dtype="uint8"))
    bias = Const(integers(-999, 999, 5, dtype="int32"))
    inputs = [
        integers(0, 255, 4, 32, dtype="uint8"),
        *QUANTISED,
        weight,
        *QUANTISED,
        bias,
        scale(0.5),
        zero(7, "uint8"),
    ]
    within_one_step("QGemm", inputs, transB=1)


def within_one_step(operator: str, inputs: list[object], **attributes: object) -> None:
    """com.microsoft's operators are defined by their float form; ties may round either way."""
    from support.converter_runs import one_node, run_module
    from support.onnx_runs import run_onnx
    from tpo.frontend.importer import import_model

    opset = attributes.pop("opset", None)
    model, feeds = one_node(operator, inputs, domain="com.microsoft", **attributes)
    if opset is not None:  # an attribute of QLinearSoftmax, not the model's opset
        import onnx

        model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
    (expected,) = run_onnx(model, feeds).values()
    (actual,) = run_module(import_model(model, "test.onnx"), feeds)
    assert actual.dtype == expected.dtype
    difference = np.abs(actual.astype("int32") - expected.astype("int32"))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.9
    assert len(np.unique(expected)) >= 3
