"""Graphs that are special in form: control flow, functions, input types, the newest opset, size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tpo.testing.models.build import Builder


def if_constant(seed: int) -> onnx.ModelProto:
    """Two Ifs whose conditions become constant once the input shape is known; the second is nested."""
    b = Builder("if_constant", seed)
    x = b.input("x", ["batch", 8, 1])
    channels = b.op("Gather", b.op("Shape", x), b.const(2, np.int64), axis=0)
    is_one = b.op("Equal", channels, b.const(1, np.int64))
    squeezed = b.op(
        "If",
        is_one,
        then_branch=_branch([helper.make_node("Squeeze", [x, "axis"], ["then"])], "then", [("axis", [2])]),
        else_branch=_branch([helper.make_node("Identity", [x], ["else"])], "else"),
    )
    hidden = b.linear(squeezed, 8, 16)
    batch = b.op("Gather", b.op("Shape", hidden), b.const(0, np.int64), axis=0)
    is_large = b.op("Greater", batch, b.const(1000, np.int64))
    inner = helper.make_node(
        "If",
        [is_one],
        ["picked"],
        name="inner_if",
        then_branch=_branch([helper.make_node("Tanh", [hidden], ["tanh"])], "tanh"),
        else_branch=_branch([helper.make_node("Relu", [hidden], ["relu"])], "relu"),
    )
    chosen = b.op(
        "If",
        is_large,
        then_branch=_branch([helper.make_node("Neg", [hidden], ["negated"])], "negated"),
        else_branch=_branch([inner, helper.make_node("Add", ["picked", hidden], ["sum"])], "sum"),
    )
    b.output(b.linear(chosen, 16, 4), "y", ["batch", 4])
    return b.build()


def _branch(
    nodes: list[onnx.NodeProto], output: str, constants: list[tuple[str, list[int]]] | None = None
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants or []]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, f"{output}_branch", [], [result], tensors)


def loop_constant(seed: int) -> onnx.ModelProto:
    """A Loop of five steps with carried state, two scan outputs, captures, and a Scan behind it."""
    steps, size = 5, 12
    b = Builder("loop_constant", seed)
    x = b.input("x", ["batch", steps, size])
    weight, bias = b.weight(size, size, gain=1.0), b.offset(size)
    batch = b.op("Gather", b.op("Shape", x), b.ints(0), axis=0)
    state = b.op("ConstantOfShape", b.op("Concat", batch, b.ints(size), axis=0))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still_going"]),
            helper.make_node("Gather", [x, "step"], ["item"], axis=1),
            helper.make_node("MatMul", ["state", weight], ["product"]),
            helper.make_node("Add", ["product", "item"], ["sum"]),
            helper.make_node("Add", ["sum", bias], ["shifted"]),
            helper.make_node("Tanh", ["shifted"], ["next_state"]),
            helper.make_node("Cast", ["step"], ["step_float"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["count", "step_float"], ["next_count"]),
            helper.make_node("Mul", ["next_state", "next_count"], ["scaled"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [None, size]),
            helper.make_tensor_value_info("count", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("still_going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_state", TensorProto.FLOAT, [None, size]),
            helper.make_tensor_value_info("next_count", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("scaled", TensorProto.FLOAT, [None, size]),
            helper.make_tensor_value_info("step_float", TensorProto.FLOAT, []),
        ],
    )
    trips = b.op("Gather", b.op("Shape", x), b.const(1, np.int64), axis=0)
    state, count, history, numbers = b.ops(
        "Loop", trips, b.const(True, np.bool_), state, b.const(1.0), count=4, body=body
    )
    scan_body = helper.make_graph(
        [
            helper.make_node("Add", ["total", "item"], ["next_total"]),
            helper.make_node("Relu", ["next_total"], ["positive"]),
        ],
        "scan_body",
        [
            helper.make_tensor_value_info("total", TensorProto.FLOAT, [None, size]),
            helper.make_tensor_value_info("item", TensorProto.FLOAT, [None, size]),
        ],
        [
            helper.make_tensor_value_info("next_total", TensorProto.FLOAT, [None, size]),
            helper.make_tensor_value_info("positive", TensorProto.FLOAT, [None, size]),
        ],
    )
    total, running = b.ops(
        "Scan", state, history, count=2, body=scan_body, num_scan_inputs=1, scan_input_directions=[1],
        scan_output_axes=[1],
    )  # fmt: skip
    y = b.op("Add", b.op("Mul", total, count), b.op("ReduceSum", numbers, keepdims=0))
    b.output(y, "y", ["batch", size])
    b.output(running, "running", ["batch", steps, size])
    return b.build()


def functions(seed: int) -> onnx.ModelProto:
    """Model-local functions: one calls another, attributes are passed on, one is called twice."""
    b = Builder("functions", seed)
    domain, opsets = "tpo.test", [helper.make_opsetid("", 17), helper.make_opsetid("tpo.test", 1)]
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"])
    leaky.attribute.append(_passed_on("alpha", "slope"))
    block = helper.make_node("Activate", ["shifted"], ["y"], domain=domain)
    block.attribute.append(_passed_on("slope", "slope"))
    b.functions = [
        helper.make_function(domain, "Activate", ["x"], ["y"], [leaky], opsets, ["slope"]),
        helper.make_function(
            domain,
            "Dense",
            ["x", "w", "b"],
            ["y"],
            [
                helper.make_node("MatMul", ["x", "w"], ["product"]),
                helper.make_node("Add", ["product", "b"], ["shifted"]),
                block,
            ],
            opsets,
            ["slope"],
        ),
    ]
    x = b.input("x", ["batch", 8])
    x = b.op("Dense", x, b.weight(8, 16), b.offset(16), domain=domain, slope=0.1)
    x = b.op("Dense", x, b.weight(16, 16), b.offset(16), domain=domain, slope=0.3)
    # MeanVarianceNormalization is defined by a function in the standard itself.
    x = b.op("MeanVarianceNormalization", x, axes=[1])
    b.output(b.op("Activate", b.linear(x, 16, 4), domain=domain, slope=0.5), "y", ["batch", 4])
    return b.build()


def _passed_on(attribute: str, parameter: str) -> onnx.AttributeProto:
    """A float attribute whose value is the function's own attribute `parameter`."""
    return onnx.AttributeProto(
        name=attribute, ref_attr_name=parameter, type=onnx.AttributeProto.AttributeType.FLOAT
    )


def newest(seed: int) -> onnx.ModelProto:
    """The newest opset ONNX Runtime runs (1.31: 26), with the operators that came late."""
    return _late_operators("newest", seed, 26)


def opset24(seed: int) -> onnx.ModelProto:
    """The same at opset 24, the only one at which ONNX Runtime 1.31 runs Swish."""
    return _late_operators("opset24", seed, 24)


def _late_operators(name: str, seed: int, opset: int) -> onnx.ModelProto:
    size = 32
    b = Builder(name, seed, opset=opset, ir_version=11)
    x = b.input("x", ["batch", 6, size])
    y = b.op("LayerNormalization", x, b.positive(size), b.offset(size), axis=-1)
    y = b.op("Gelu", b.linear(y, size, size, gain=2.0), approximate="tanh")
    x = b.op("Add", x, b.op("Gelu", b.linear(y, size, size, gain=2.0)))
    y = b.op("RMSNormalization", x, b.positive(size), axis=-1)
    gate = b.linear(y, size, size, gain=2.0)
    gate = b.op("Swish", gate, alpha=1.0) if opset == 24 else b.op("HardSwish", gate)
    x = b.op("Add", x, gate)
    x = b.op("Mish", b.op("GroupNormalization", x, b.positive(6), b.offset(6), num_groups=3))
    left, right = b.ops("Split", x, count=2, axis=-1, num_outputs=2)
    x = b.op("ReduceMean", b.op("Mul", left, right), b.ints(1), keepdims=0)
    b.output(b.op("ReduceL2", b.linear(x, size // 2, 8), b.ints(-1), keepdims=0), "norm", ["batch"])
    b.output(x, "features", ["batch", size // 2])
    return b.build()


def scalars(seed: int) -> onnx.ModelProto:
    """Inputs of many types, scalars among them, and integer and boolean outputs."""
    b = Builder("scalars", seed)
    image = b.input("image", [1, 8, 8, 3], TensorProto.UINT8, bounds=(0, 256))
    gain = b.input("gain", [], TensorProto.FLOAT)
    mask = b.input("mask", [8, 8], TensorProto.BOOL)
    row = b.input("row", [], TensorProto.INT64, bounds=(0, 8))
    shift = b.input("shift", [3], TensorProto.INT32, bounds=(-5, 6))
    pixels = b.op("Div", b.op("Cast", image, to=TensorProto.FLOAT), b.const(255.0))
    x = b.op("Mul", b.op("Transpose", pixels, perm=[0, 3, 1, 2]), gain)
    x = b.conv(b.op("Where", mask, x, b.const(0.0)), 3, 4)
    b.output(b.op("Gather", x, row, axis=2), "picked", [1, 4, 8])
    integers = b.op("Add", b.op("Cast", image, to=TensorProto.INT32), shift)
    b.output(b.op("Mul", integers, b.const(3, np.int32)), "integers", [1, 8, 8, 3], TensorProto.INT32)
    b.output(b.op("ArgMax", x, axis=1, keepdims=0), "winner", [1, 8, 8], TensorProto.INT64)
    bright = b.op("And", b.op("Greater", b.op("ReduceMean", x, axes=[1], keepdims=0), b.const(0.0)), mask)
    b.output(bright, "bright", [1, 8, 8], TensorProto.BOOL)
    b.output(b.op("ReduceSum", x, keepdims=0), "total", [])
    return b.build()


def large(seed: int) -> onnx.ModelProto:
    """Two matrix products with 134 MB of weights."""
    size = 4096
    b = Builder("large", seed)
    x = b.input("x", ["batch", size])
    x = b.op("Relu", b.op("MatMul", x, b.weight(size, size, fan_in=size)))
    b.output(b.op("MatMul", x, b.weight(size, size, fan_in=size, gain=1.0)), "y", ["batch", size])
    return b.build()


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    maker.__name__: maker
    for maker in (if_constant, loop_constant, functions, newest, opset24, scalars, large)
}
