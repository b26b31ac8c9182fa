"""QDQ models are computed in integers, exactly as ONNX Runtime computes them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.converter_runs import run_module
from support.onnx_runs import run_onnx
from tpo.frontend.integers import use_integers
from tpo.frontend.pipeline import stages
from tpo.frontend.shapes import infer_shapes

RNG = np.random.default_rng(3)


def qdq(
    operator,
    shape,
    weight,
    *,
    axis,
    data="uint8",
    zero=117,
    out_zero=120,
    relu=False,
    bias=None,
    **attributes,
):
    """`operator` between DequantizeLinear and QuantizeLinear, with weights of one scale per output."""
    outputs = weight.shape[axis]
    constants = {
        "xs": np.float32(0.02),
        "xz": np.array(zero, data),
        "w": weight,
        "ws": RNG.uniform(0.005, 0.01, outputs).astype("float32"),
        "wz": np.zeros(outputs, weight.dtype),
        "ys": np.float32(0.05),
        "yz": np.array(out_zero, "uint8"),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=axis),
    ]
    inputs = ["xf", "wf"]
    if bias is not None:
        constants |= {"b": bias, "bs": constants["xs"] * constants["ws"], "bz": np.zeros(outputs, "int32")}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0))
        inputs.append("bf")
    nodes.append(helper.make_node(operator, inputs, ["yf"], **attributes))
    if relu:
        nodes.append(helper.make_node("Relu", ["yf"], ["yr"]))
    nodes.append(helper.make_node("QuantizeLinear", ["yr" if relu else "yf", "ys", "yz"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "qdq",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(data)), shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return infer_shapes(model)


def weights(*shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def biases(count):
    return RNG.integers(-5000, 5000, count).astype("int32")


MODELS = {
    "conv": qdq("Conv", (1, 8, 9, 9), weights(12, 8, 3, 3), axis=0, bias=biases(12), pads=[1, 1, 1, 1]),
    "signed": qdq("Conv", (1, 8, 9, 9), weights(9, 8, 3, 3), axis=0, data="int8", zero=-7, pads=[1] * 4),
    "conv, relu": qdq("Conv", (1, 8, 5, 5), weights(16, 8, 1, 1), axis=0, out_zero=0, relu=True),
    "three channels": qdq("Conv", (1, 3, 9, 9), weights(16, 3, 3, 3), axis=0, strides=[2, 2], pads=[1] * 4),
    "depthwise": qdq("Conv", (1, 8, 9, 9), weights(8, 1, 3, 3), axis=0, group=8, pads=[1] * 4),
    "unsigned weights": qdq("Conv", (1, 8, 5, 5), weights(8, 8, 1, 1, dtype="uint8"), axis=0),
    "matmul": qdq("MatMul", (5, 33), weights(33, 20), axis=1),
    "matmul of int8": qdq("MatMul", (2, 5, 33), weights(33, 20), axis=1, data="int8", zero=3),
    "gemm": qdq("Gemm", (5, 33), weights(20, 33), axis=0, bias=biases(20), transB=1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bytes_as_onnx_runtime(name):
    model = MODELS[name]
    (spec,) = model.graph.input
    shape = [dim.dim_value for dim in spec.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(spec.type.tensor_type.elem_type)
    limits = np.iinfo(dtype)
    feeds = {"x": RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)}
    done = dict(stages(model, "qdq.onnx", {}))
    kinds = [node.op_type for node in done["integers"].graph.node]
    assert len(kinds) == 1 and kinds[0].startswith("Q")
    (want,) = run_onnx(model, feeds).values()
    (got,) = run_module(done["mark"], feeds)
    np.testing.assert_array_equal(got, want)


def kinds_after(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in use_integers(model).graph.node]


def test_a_relu_that_does_something_keeps_the_model_in_floats():
    model = qdq("Conv", (1, 8, 5, 5), weights(8, 8, 1, 1), axis=0, out_zero=120, relu=True)
    assert "Conv" in kinds_after(model)


def test_a_bias_of_another_scale_keeps_the_model_in_floats():
    model = qdq("Conv", (1, 8, 5, 5), weights(8, 8, 1, 1), axis=0, bias=biases(8))
    for tensor in model.graph.initializer:
        if tensor.name == "bs":
            tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), "bs"))
    assert "Conv" in kinds_after(model)


def test_a_result_that_is_also_used_as_a_float_stays_one():
    model = qdq("MatMul", (5, 33), weights(33, 20), axis=1)
    model.graph.output.append(helper.make_tensor_value_info("yf", TensorProto.FLOAT, (5, 20)))
    assert "MatMul" in kinds_after(model)


def test_scales_along_the_wrong_axis_keep_the_model_in_floats():
    assert "MatMul" in kinds_after(qdq("MatMul", (5, 33), weights(33, 20), axis=0))
