"""Simplifying removes everything but computation and changes no number."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support.onnx_runs import run_onnx
from support.zoo import SMALL, assert_same_results, fixed_model
from tpo.frontend.shapes import fix_shapes
from tpo.frontend.simplify import simplify
from tpo.testing import models

NOT_COMPUTATION = {"Shape", "Size", "Range", "ConstantOfShape", "Constant", "Identity", "Dropout", "If"}


def operators(model):
    return [node.op_type for node in model.graph.node]


def parsed(body, opset=17):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{body}')
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("name", SMALL)
def test_models_compute_the_same_with_the_same_signature(name):
    model = fixed_model(name)
    before = model.SerializeToString()
    simple = simplify(model)
    assert [v.name for v in simple.graph.input] == [v.name for v in model.graph.input]
    assert [v.name for v in simple.graph.output] == [v.name for v in model.graph.output]
    assert_same_results(simple, model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("name", sorted(set(SMALL) - {"loop_constant"}))
def test_only_computation_is_left(name):
    assert not NOT_COMPUTATION & set(operators(simplify(fixed_model(name))))


@pytest.mark.parametrize("name", ["light_squeezenet", "light_densenet121"])
def test_real_architectures_compute_the_same(name):
    model = fix_shapes(models.make(name), name, {})
    simple = simplify(model)
    assert_same_results(simple, model)
    assert not {"Dropout", "Unsqueeze"} & set(operators(simple))


def test_every_value_has_a_static_type():
    simple = simplify(fixed_model("bert"))
    known = {v.name: v.type.tensor_type for v in [*simple.graph.value_info, *simple.graph.output]}
    for node in simple.graph.node:
        assert all(dim.HasField("dim_value") for dim in known[node.output[0]].shape.dim)


def test_shape_arithmetic_of_attention_is_gone():
    kinds = operators(simplify(fixed_model("bert")))
    assert kinds.count("Reshape") == 8 and kinds.count("Concat") == 0
    assert kinds.count("Gather") == 2  # the word embedding and the first token, both of data


def test_outputs_that_are_inputs_constants_or_equal_keep_their_names():
    model = parsed("""g (float[2] x, float[3] unused) => (float[2] a, float[2] b, float[2] c, int64[1] d) {
        a = Identity(x)
        y = Relu(x)
        b = Identity(y)
        c = Identity(y)
        d = Shape(x)
    }""")
    simple = simplify(model)
    assert_same_results(simple, model)
    assert [v.name for v in simple.graph.input] == ["x", "unused"]


def test_dropout_is_removed_unless_it_trains():
    kept = parsed("""g (float[64] x) => (float[64] y, bool[64] mask) {
        ratio = Constant <value_float = 0.5> ()
        y, mask = Dropout(x, ratio)
    }""")
    outputs = run_onnx(simplify(kept), {"x": np.ones(64, np.float32)})
    assert outputs["mask"].all() and outputs["y"].all()
    training = parsed("""g (float[64] x) => (float[64] y) {
        ratio = Constant <value_float = 0.5> ()
        train = Constant <value = bool {1}> ()
        y = Dropout(x, ratio, train)
    }""")
    assert operators(simplify(training)) == ["Dropout"]
    inference = parsed("""g (float[64] x) => (float[64] y) {
        ratio = Constant <value_float = 0.5> ()
        train = Constant <value = bool {0}> ()
        h, mask = Dropout(x, ratio, train)
        r = Relu(h)
        y = Dropout(r)
    }""")
    assert operators(simplify(inference)) == ["Relu"]


def test_dead_nodes_are_removed():
    model = parsed("g (float[2] x) => (float[2] y) { dead = Exp(x)\n deader = Exp(dead)\n y = Neg(x) }")
    assert operators(simplify(model)) == ["Neg"]


def test_quantisation_is_kept():
    kinds = operators(simplify(fixed_model("quantised_qdq")))
    assert kinds.count("DequantizeLinear") > kinds.count("QuantizeLinear") > 5


def test_large_fill_stays_a_node():
    model = parsed("""g (float[1] x) => (float[4096, 4096] y) {
        shape = Constant <value_ints = [4096, 4096]> ()
        zeros = ConstantOfShape(shape)
        y = Add(zeros, x)
    }""")
    assert simplify(model).ByteSize() < 10_000


def test_a_model_the_optimizer_fails_on_is_handed_on(caplog):
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 6])
    split = helper.make_tensor_value_info("split", TensorProto.INT64, [])
    node = helper.make_node("SplitToSequence", ["x", "split"], ["y"], axis=1)
    graph = helper.make_graph([node], "g", [x, split], [sequence])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with caplog.at_level(logging.WARNING):
        simple = simplify(model)
    assert operators(simple) == ["SplitToSequence"]
    assert "g was not simplified" in caplog.text
