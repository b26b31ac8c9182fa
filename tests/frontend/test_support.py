"""All unsupported operators are named at once, with their nodes."""

import pytest
from onnx import TensorProto, helper

from tpo.errors import UnsupportedOperatorsError
from tpo.frontend.pipeline import stages
from tpo.frontend.support import check_supported


def model_of(*nodes):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    return helper.make_model(helper.make_graph(list(nodes), "g", values[:1], values[1:]))


def test_supported_model_passes():
    check_supported(model_of(helper.make_node("Relu", ["x"], ["y"])), "m.onnx", {"Relu"})


def test_every_operator_is_listed_with_its_nodes_also_in_subgraphs_and_custom_domains():
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1])
    branch = helper.make_graph(
        [helper.make_node("Foo", ["x"], ["inner"], "c", domain="com.x")], "b", [], [output]
    )
    model = model_of(
        helper.make_node("Relu", ["x"], ["r"], "fine"),
        helper.make_node("DeformConv", ["r"], ["d"], "a"),
        helper.make_node("DeformConv", ["d"], ["e"], "b"),
        helper.make_node("If", ["x"], ["f"], "choice", then_branch=branch, else_branch=branch),
        helper.make_node("Det", ["f"], ["y"]),
    )
    with pytest.raises(UnsupportedOperatorsError) as caught:
        check_supported(model, "m.onnx", {"Relu", "If"})
    assert str(caught.value).startswith(
        "m.onnx uses 3 unsupported operator(s): "
        "DeformConv (nodes a, b), com.x::Foo (nodes c, c), Det (node output y);"
    )


def test_a_name_in_another_domain_is_not_the_standard_operator():
    with pytest.raises(UnsupportedOperatorsError, match=r"com\.x::Relu"):
        check_supported(model_of(helper.make_node("Relu", ["x"], ["y"], domain="com.x")), "m", {"Relu"})


def test_many_nodes_are_counted_and_not_all_spelled_out():
    nodes = [helper.make_node("Det", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(40)]
    with pytest.raises(UnsupportedOperatorsError, match=r"Det \(nodes n0, n1, n2, n3, n4 and 35 more\)"):
        check_supported(model_of(*nodes), "m", set())


def test_a_hopeless_model_is_refused_before_its_shapes_are_asked_for():
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in ("x", "y")]
    body = [helper.make_node("Det", ["a"], ["b"], "inside")]
    function = helper.make_function("local", "twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Foo", ["x"], ["f"], "custom", domain="com.x"),
        helper.make_node("twice", ["f"], ["g"], "call", domain="local"),
        helper.make_node("HardSwish", ["g"], ["y"], "fine"),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]),
        functions=[function],
        opset_imports=[helper.make_opsetid(*entry) for entry in (("", 17), ("com.x", 1), ("local", 1))],
    )
    with pytest.raises(UnsupportedOperatorsError) as caught:
        next(stages(model, "m.onnx", {}))
    assert "2 unsupported operator(s): com.x::Foo (node custom), Det (node inside)" in str(caught.value)
