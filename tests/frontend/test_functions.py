"""Functions are expanded to the operators they stand for, and compute the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.onnx_runs import run_onnx
from support.zoo import SMALL, assert_same_results, fixed_model
from tpo.frontend.functions import expand_functions

EVERYTHING = {schema.name for schema in onnx.defs.get_all_schemas()}


def operators(model):
    return {node.op_type for node in model.graph.node}


def unary(op_type, opset, extra_inputs=(), **attributes):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4, 3]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(v, f"c{i}") for i, v in enumerate(extra_inputs) if v is not None]
    inputs = ["x"] + [f"c{i}" if v is not None else "" for i, v in enumerate(extra_inputs)]
    node = helper.make_node(op_type, inputs, ["y"], **attributes)
    graph = helper.make_graph([node], "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("name", SMALL)
def test_models_compute_the_same(name):
    model = fixed_model(name)
    expanded = expand_functions(model, EVERYTHING)
    assert not expanded.functions
    assert_same_results(expanded, model)


def test_nested_local_functions_are_inlined():
    expanded = expand_functions(fixed_model("functions"), EVERYTHING)
    assert operators(expanded) == {"MatMul", "Add", "LeakyRelu", "MeanVarianceNormalization"}
    slopes = [n.attribute[0].f for n in expanded.graph.node if n.op_type == "LeakyRelu"]
    np.testing.assert_allclose(slopes, [0.1, 0.3, 0.5], rtol=1e-6)


def test_standard_functions_are_expanded_only_when_unsupported():
    model = unary("HardSwish", 17)
    assert operators(expand_functions(model, {"HardSwish"})) == {"HardSwish"}
    assert operators(expand_functions(model, {"HardSigmoid", "Mul"})) == {"HardSigmoid", "Mul"}


@pytest.mark.parametrize(
    "model",
    [
        unary("HardSwish", 17),
        unary("Celu", 17, alpha=0.7),
        unary("Celu", 17),
        unary("Clip", 17, [np.float32(-0.5)]),
        unary("Clip", 17, [None, np.float32(0.5)]),
        unary("Softmax", 17, axis=1),
        unary("LayerNormalization", 17, [np.ones(3, np.float32)]),
        unary("MeanVarianceNormalization", 17, axes=[1, 2]),
        unary("Gelu", 20, approximate="tanh"),
        unary("GroupNormalization", 21, [np.ones(4, np.float32), np.ones(4, np.float32)], num_groups=2),
        unary("Selu", 22),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_expanded_operators_compute_the_same(model):
    own = model.graph.node[0].op_type
    expanded = expand_functions(model, EVERYTHING - {own})
    assert own not in operators(expanded)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)}
    np.testing.assert_allclose(
        run_onnx(expanded, feeds)["y"], run_onnx(model, feeds)["y"], rtol=1e-4, atol=1e-6
    )


def test_bodies_made_of_functions_are_expanded_too():
    expanded = expand_functions(unary("HardSwish", 22), EVERYTHING - {"HardSwish", "HardSigmoid"})
    assert not operators(expanded) & {"HardSwish", "HardSigmoid"}


def test_operators_without_a_body_stay():
    model = unary("Det", 17)
    assert operators(expand_functions(model, set())) == {"Det"}
    custom = unary("Relu", 17, domain="com.x")
    custom.opset_import.append(helper.make_opsetid("com.x", 1))
    assert custom.graph.node[0] == expand_functions(custom, set()).graph.node[0]


def test_function_for_another_opset_whose_operators_did_not_change():
    model = fixed_model("functions")
    older = onnx.ModelProto()
    older.CopyFrom(model)
    for function in older.functions:
        next(entry for entry in function.opset_import if entry.domain == "").version = 13
    expanded = expand_functions(older, EVERYTHING)
    assert not any(node.domain for node in expanded.graph.node)
    assert_same_results(expanded, model)


def test_function_for_another_opset_whose_operators_changed_is_converted():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2, 3] x) => (float[3, 1] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { y = local.F(x, w) }
        <domain: "local", opset_import: ["": 11]>
        F (a, b) => (c) {
            s = Mul(a, b)
            r = ReduceSum <axes = [0], keepdims = 0> (s)
            c = Unsqueeze <axes = [1]> (r)
        }""")
    expanded = expand_functions(model, EVERYTHING)
    assert {"ReduceSum", "Unsqueeze"} <= operators(expanded)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = (x * np.arange(1, 7).reshape(2, 3)).sum(0)[:, None]
    np.testing.assert_allclose(run_onnx(expanded, {"x": x})["y"], expected)


def test_the_argument_is_left_alone():
    model = unary("HardSwish", 17)
    before = model.SerializeToString()
    expand_functions(model, set())
    assert model.SerializeToString() == before
