import numpy as np
import pytest

from support.converter_runs import Const, check_node, constant, integers, normal, operators_of

VALUES = np.array([-np.inf, -30, -3.5, -1, -1e-3, 0, 1e-3, 0.5, 1, 3.5, 30, np.inf], dtype="float32")


@pytest.mark.parametrize("operator", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_n_ary_operators_are_chains(operator, count):
    inputs = [normal(2, 3, 4), normal(3, 1), constant(4), normal(1)][:count]
    names = operators_of(check_node(operator, inputs))
    assert not {"stack", "broadcast_to", "call_tir"} & set(names)
    assert len(names) <= count


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_max_of_integers(operator):
    check_node(operator, [integers(-9, 9, 5), integers(-9, 9, 5)])


@pytest.mark.parametrize(
    "bounds",
    [
        [Const(-1.0, "float32"), Const(1.5, "float32")],
        [None, Const(1.0, "float32")],
        [Const(0.5, "float32")],
        [Const(2.0, "float32"), Const(-1.0, "float32")],  # the maximum wins
        [np.float32(-0.5), np.float32(0.5)],
        [],
    ],
)
def test_clip(bounds):
    names = operators_of(check_node("Clip", [np.append(VALUES[1:-1], np.float32(np.nan)), *bounds], opset=13))
    assert set(names) <= {"maximum", "minimum"}


def test_clip_of_integers_and_by_attributes():
    check_node("Clip", [integers(-9, 9, 20, dtype="int32"), Const(-2, "int32"), Const(3, "int32")], opset=13)
    check_node(
        "Clip", [integers(0, 255, 20, dtype="uint8"), Const(10, "uint8"), Const(99, "uint8")], opset=13
    )
    check_node("Clip", [VALUES[1:-1]], opset=7, min=-0.5, max=2.0)
    check_node("Clip", [VALUES[1:-1]], opset=7)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.4}),
        ("HardSwish", {}),
        ("LeakyRelu", {"alpha": 0.1}),
        ("LeakyRelu", {"alpha": 1.5}),
        ("LeakyRelu", {"alpha": -0.5}),
        ("Elu", {"alpha": 0.7}),
        ("Celu", {"alpha": 2.0}),
        ("Selu", {}),
        ("Selu", {"alpha": 1.2, "gamma": 0.9}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("ThresholdedRelu", {"alpha": 0.5}),
        ("Relu", {}),
    ],
)
def test_activations(operator, attributes):
    finite = VALUES[1:-1]
    names = operators_of(check_node(operator, [finite], rtol=1e-5, atol=1e-6, **attributes))
    assert "call_tir" not in names


def test_mish_is_precise_for_very_negative_numbers():
    check_node("Mish", [np.linspace(-12, 30, 100, dtype="float32")], opset=18, rtol=1e-5, atol=0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_one_operator(approximate):
    module = check_node("Gelu", [normal(3, 50) * 4], opset=20, approximate=approximate)
    assert operators_of(module) == ["nn.gelu" if approximate == "none" else "nn.gelu_tanh"]


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("Gelu", [normal(3, 5)]),
        ("QuickGelu", [normal(3, 5)]),
        ("FastGelu", [normal(3, 5), constant(5)]),
        ("FastGelu", [normal(3, 5)]),
        ("BiasGelu", [normal(3, 5), constant(5)]),
    ],
)
def test_gelus_of_com_microsoft(operator, inputs):
    check_node(operator, inputs, domain="com.microsoft", atol=1e-4)


@pytest.mark.parametrize("to", [1, 2, 3, 6, 7, 9, 10, 11])
@pytest.mark.parametrize("source", ["float32", "int64", "bool", "uint8"])
def test_casts(source, to):
    values = np.array([0, 1, 3, 100, 0.5, 7.9]).astype(source)
    check_node("Cast", [values], to=to)


def test_cast_to_the_same_type_and_no_ops_leave_nothing():
    for operator, attributes in (("Cast", {"to": 1}), ("Identity", {}), ("Dropout", {})):
        assert operators_of(check_node(operator, [normal(2, 3)], opset=13, **attributes)) == []


@pytest.mark.parametrize(
    "exponent",
    [Const(2.0, "float32"), Const(0.5, "float32"), Const([1.0, 3.0], "float32"), Const(3, "int64")],
)
def test_pow(exponent):
    check_node("Pow", [np.abs(normal(4, 2)), exponent], opset=15)


def test_pow_of_integers():
    check_node("Pow", [integers(-5, 5, 7), Const(3, "int64")], opset=15)


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod(fmod):
    left = np.array([7, -7, 7, -7, 5], dtype="float32")
    right = np.array([3, 3, -3, -3, 2.5], dtype="float32")
    if fmod:
        check_node("Mod", [left, right], fmod=1)
    check_node("Mod", [left.astype("int32"), right.astype("int32")], fmod=fmod)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    amounts = np.array([0, 1, 7, 3], dtype="uint8")
    check_node("BitShift", [np.array([1, 255, 255, 17], dtype="uint8"), amounts], direction=direction)


@pytest.mark.parametrize("signs", [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_is_inf(signs):
    check_node("IsInf", [VALUES], detect_negative=signs[0], detect_positive=signs[1], opset=10)
