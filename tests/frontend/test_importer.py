import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from support.converter_runs import (
    Const,
    check_model,
    check_node,
    constant,
    normal,
    one_node,
    operators_of,
    run_module,
)
from tpo.errors import UnsupportedInputError, UnsupportedModelError
from tpo.frontend import converters
from tpo.frontend.importer import import_model, supported_operators


def model_of(nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in initializers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_odd_and_clashing_input_names_work_by_position():
    names = ["x.1", "x/1", "x 1", "1x", "ü", "x_1"]
    model = model_of([helper.make_node("Sum", names, ["y"])], [(name, [2]) for name in names], ["y"])
    check_model(model, {name: normal(2) for name in names})


def test_outputs_may_be_inputs_constants_and_repeated():
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", [2, 3])],
        ["y", "x", "c", "y"],
        [("c", normal(4))],
    )
    feeds = {"x": normal(2, 3)}
    y, x, c, again = run_module(import_model(model, "m.onnx"), feeds)
    np.testing.assert_array_equal(y, np.maximum(feeds["x"], 0))
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(x, feeds["x"])
    np.testing.assert_array_equal(c, numpy_helper.to_array(model.graph.initializer[0]))


def test_initializers_listed_as_inputs_are_constants():
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], [("x", [2]), ("w", [2])], ["y"], [("w", normal(2))]
    )
    module = import_model(model, "m.onnx")
    assert len(module["main"].params) == 1


def test_scalar_and_integer_inputs_keep_their_types():
    check_node("Add", [np.array(3, dtype="int64"), np.array([4, 5], dtype="int64")])
    check_node("Not", [np.array([True, False])])
    check_node("Mul", [normal(3, dtype="float64"), constant(3, dtype="float64")], rtol=1e-12)
    check_node("Add", [np.array([2**40], dtype="int64"), Const([2**41], "int64")])


def test_shape_arithmetic_leaves_no_trace():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["first"]),
        helper.make_node("Concat", ["first", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = [("zero", np.array(0)), ("axes", np.array([0])), ("minus", np.array([-1]))]
    module = check_model(model_of(nodes, [("x", [2, 3, 4])], ["y"], constants), {"x": normal(2, 3, 4)})
    assert operators_of(module) == ["reshape"]


def test_unsupported_use_names_operator_node_and_reason_in_one_line():
    model, _ = one_node("Reshape", [normal(2, 3), np.array([3, 2])])
    with pytest.raises(UnsupportedModelError) as caught:
        import_model(model, "net.onnx")
    text = str(caught.value)
    assert "\n" not in text
    assert all(
        part in text for part in ("net.onnx", "Reshape", "the_node", "shape (input 1) must be a constant")
    )


def test_an_operator_without_translation_is_an_error(capfd):
    model, _ = one_node("NonMaxSuppression", [normal(1, 4, 4), normal(1, 1, 4)])
    with pytest.raises(UnsupportedModelError, match="no translation"):
        import_model(model, "net.onnx")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "value",
    [
        helper.make_tensor_value_info("x", TensorProto.STRING, [1]),
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None),
    ],
)
def test_inputs_that_are_no_numbers_are_refused(value):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [value], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(UnsupportedInputError, match="'x'"):
        import_model(model, "net.onnx")


def test_supported_operators_knows_ours_and_those_of_other_domains():
    names = supported_operators()
    assert {"Conv", "LSTM", "GRU", "RNN", "QLinearConv", "Gather", "com.microsoft::QLinearAdd"} <= names
    assert not {"NonMaxSuppression", "SequenceAt", "Attention", "If", "Loop"} & names


def test_a_converter_is_chosen_as_onnx_chooses_versions():
    old = converters.find("", "Clip", 10)
    new = converters.find("", "Clip", 11)
    assert old is not new
    assert converters.find("", "Clip", 13) is new
    assert converters.find("", "HardSwish", 13) is None
    assert converters.find("nowhere", "Clip", 13) is None


def test_import_is_plain_relax_with_one_function():
    module = check_node("Conv", [normal(1, 3, 8, 8), constant(4, 3, 3, 3), constant(4)])
    assert [variable.name_hint for variable in module.get_global_vars()] == ["main"]
    relax.analysis.well_formed(module)  # raises when it is not


def test_the_docs_name_every_supported_operator():
    text = (Path(__file__).parents[2] / "docs" / "onnx-support.md").read_text()
    words = set(re.findall(r"\w+", text))
    assert {name for name in supported_operators() if name.rpartition("::")[2] not in words} == set()
