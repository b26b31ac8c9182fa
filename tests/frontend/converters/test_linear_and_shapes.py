import numpy as np
import pytest

from support.converter_runs import Const, check_node, constant, integers, normal, operators_of


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("bias", [(5,), (1, 5), (4, 1), (), None])
def test_gemm_with_constant_weights_is_a_matmul_and_an_addition(transposed, bias):
    left = normal(*((3, 4) if transposed[0] else (4, 3)))
    right = constant(*((5, 3) if transposed[1] else (3, 5)))
    inputs = [left, right] + ([] if bias is None else [constant(*bias)])
    attributes = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5, "beta": 2.0}
    names = operators_of(check_node("Gemm", inputs, **attributes))
    expected = ["permute_dims"] * transposed[0] + ["matmul"] + ["add"] * (bias is not None)
    assert names == expected


def test_gemm_of_inputs():
    check_node("Gemm", [normal(3, 4), normal(5, 3), normal(5)], transA=1, transB=1, alpha=0.3, beta=0.7)


@pytest.mark.parametrize(
    "shapes", [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 1, 3, 4), (5, 4, 2))]
)
def test_matmul(shapes):
    check_node("MatMul", [normal(*shapes[0]), normal(*shapes[1])])


def test_matmul_in_half_precision_accumulates_in_single():
    data = [normal(4, 512, dtype="float16"), normal(512, 4, dtype="float16")]
    check_node("MatMul", data, rtol=2e-3, atol=2e-3)


def test_fused_matmul():
    inputs = [normal(2, 4, 3), constant(2, 5, 4)]
    check_node("FusedMatMul", inputs, domain="com.microsoft", transA=1, transB=1, alpha=0.25)


@pytest.mark.parametrize(
    ("operator", "rest", "attributes"),
    [
        ("Reshape", [Const([0, -1], "int64")], {}),
        ("Reshape", [Const([4, 6], "int64")], {}),
        ("Flatten", [], {"axis": 2}),
        ("Flatten", [], {"axis": 0}),
        ("Flatten", [], {"axis": -1}),
        ("Squeeze", [Const([1], "int64")], {}),
        ("Squeeze", [], {}),
        ("Unsqueeze", [Const([0, -1], "int64")], {}),
        ("Transpose", [], {}),
        ("Transpose", [], {"perm": [1, 0, 3, 2]}),
        ("Expand", [Const([5, 2, 3, 4, 1], "int64")], {}),
        ("Shape", [], {"start": 1}),
        ("Size", [], {}),
        ("Split", [Const([1, 3], "int64")], {"axis": 3, "outputs": 2}),
        ("Split", [], {"axis": 2, "outputs": 3}),
        ("SpaceToDepth", [], {"blocksize": 1}),
    ],
)
def test_views(operator, rest, attributes):
    shape = (2, 1, 3, 4) if operator != "Expand" else (2, 3, 1, 1)
    check_node(operator, [normal(*shape), *rest], opset=15, **attributes)


def test_older_forms_with_attributes():
    data = normal(2, 1, 6)
    check_node("Squeeze", [data], opset=7, axes=[1])
    check_node("Unsqueeze", [data], opset=7, axes=[0, 2])
    check_node("Split", [data], opset=7, axis=2, split=[1, 5], outputs=2)
    check_node("Slice", [data], opset=7, axes=[2, 0], starts=[1, -1], ends=[5, 10])
    check_node("Pad", [data], opset=7, pads=[0, 1, 2, 0, 0, 1], value=1.5)
    check_node("TopK", [normal(3, 7)], opset=7, k=2, axis=1, outputs=2)
    check_node("ReduceSum", [data], opset=7, axes=[0, 2], keepdims=0)
    check_node("Dropout", [data], opset=7)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_before_and_after_opset_13(operator, axis, opset):
    check_node(operator, [normal(2, 3, 4)], opset=opset, axis=axis)


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keep", [0, 1])
def test_reduce_extremes(operator, keep):
    data = normal(2, 3, 4)
    data[0, 1] = -np.inf if operator == "ReduceMax" else np.inf
    check_node(operator, [data], axes=[2], keepdims=keep)
    check_node(operator, [integers(-9, 9, 2, 3)], keepdims=keep)


@pytest.mark.parametrize("attributes", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
def test_cumulative_sum(attributes):
    check_node("CumSum", [normal(3, 4), Const(1, "int64")], **attributes)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("values", [Const([0.5, 2.0], "float32"), np.array([1, 7], dtype="int64")])
def test_one_hot(axis, values):
    indices = np.array([[0, 2, -1], [5, 4, 9]])
    check_node("OneHot", [indices, Const(6, "int64"), values], axis=axis)


def test_eye_like():
    check_node("EyeLike", [normal(3, 5)], k=-1, dtype=7)


@pytest.mark.parametrize("axes", [(1, 0), (0, 1)])
def test_reverse_sequence(axes):
    data = normal(4, 3, 2) if axes == (1, 0) else normal(3, 4, 2)
    lengths = Const([4, 1, 2], "int64")
    check_node("ReverseSequence", [data, lengths], batch_axis=axes[0], time_axis=axes[1])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress_with_a_constant_condition(axis):
    attributes = {} if axis is None else {"axis": axis}
    check_node("Compress", [normal(3, 4), Const([False, True, True])], **attributes)


@pytest.mark.parametrize("attributes", [{}, {"onesided": 1}, {"inverse": 1}])
@pytest.mark.parametrize("length", [None, 6, 12])
def test_dft(attributes, length):
    data = normal(2, 9, 3, 1 if "onesided" in attributes else 2)
    given = None if length is None else Const(length, "int64")
    check_node("DFT", [data, given], axis=1, atol=1e-4, **attributes)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided):
    window = Const(np.hanning(16), "float32")
    check_node("STFT", [normal(2, 64, 1), Const(8, "int64"), window], onesided=onesided, atol=1e-4)


@pytest.mark.parametrize(
    "indices",
    [Const(1), Const(-2), Const([2, -1, 0]), Const([[0, 1], [3, -4]]), np.array([3, -1, 0]), np.array(-2)],
)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(indices, axis):
    module = check_node("Gather", [normal(4, 4, 5), indices], axis=axis)
    if isinstance(indices, Const) and indices.array.ndim == 0:
        assert operators_of(module) == ["strided_slice", "squeeze"]


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [[0, 1, 2, 0, 2, 1], [0, -1, 1, 0, 1, -2]])
def test_pad(mode, pads):
    if mode == "wrap" and min(pads) < 0:
        return
    check_node("Pad", [normal(2, 4, 5), Const(pads, "int64")], opset=19, mode=mode)


def test_pad_with_a_value_axes_and_booleans():
    pads = Const([1, 0, 2, 1], "int64")
    axes = Const([-1, 0], "int64")
    check_node("Pad", [normal(2, 4, 5), pads, Const(1.5, "float32"), axes], opset=19)
    check_node("Pad", [normal(2, 4, 5), pads, np.float32(2.5), axes], opset=19)
    check_node("Pad", [integers(0, 9, 3, 3), pads, Const(7, "int64")], opset=19)
    check_node("Pad", [normal(3, 3) > 0, pads, Const(True)], opset=19)
