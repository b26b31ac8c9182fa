"""Input shapes: parsing flags, propagating names, defaults, and every refusal."""

import onnx
import pytest
from onnx import TensorProto, helper

from support.zoo import SMALL, assert_same_results, fixed_model
from tpo.errors import (
    ShapeConflictError,
    ShapeSyntaxError,
    UnknownInputError,
    UnresolvedShapeError,
    UnsupportedInputError,
    UnsupportedModelError,
)
from tpo.frontend.model import TensorSpec
from tpo.frontend.shapes import fix_shapes, infer_shapes, parse_shapes, signature
from tpo.testing import models

FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])


def model_with(**inputs):
    """Identity on each input; shapes are lists of sizes and names, None is an unknown rank."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    outputs = [helper.make_tensor_value_info(f"{n}_out", TensorProto.FLOAT, d) for n, d in inputs.items()]
    return helper.make_model(helper.make_graph(nodes, "g", values, outputs))


def shapes_of(model):
    return {spec.name: spec.shape for spec in signature(model)[0]}


# Flags


def test_flags_become_shapes():
    assert parse_shapes(["x=1,3, 224,224", "a=b:0=7", "s=scalar"]) == {
        "x": (1, 3, 224, 224),
        "a=b:0": (7,),
        "s": (),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "no NAME="),
        ("=1,2", "no NAME="),
        ("x=", "'' is not a whole number"),
        ("x=1,,2", "'' is not a whole number"),
        ("x=1x3", "'1x3' is not a whole number"),
        ("x=1.5", "'1.5' is not a whole number"),
        ("x=batch,3", "'batch' is not a whole number"),
        ("x=1,0", "size 0 is not positive"),
        ("x=-1,3", "size -1 is not positive"),
        ("x=99999999999999999999", "is too large"),
    ],
)
def test_bad_flags_are_refused(text, why):
    with pytest.raises(ShapeSyntaxError) as caught:
        parse_shapes([text])
    assert why in str(caught.value) and "--shape NAME=1,3,224,224" in str(caught.value)


def test_an_input_given_twice_is_refused():
    with pytest.raises(ShapeSyntaxError, match="'x' was already given"):
        parse_shapes(["x=1", "x=1"])


# Fixing


def test_static_model_needs_nothing():
    assert shapes_of(fix_shapes(model_with(x=[2, 3]), "m", {})) == {"x": (2, 3)}


def test_leading_dynamic_dimension_defaults_to_one():
    model = model_with(x=["batch", 3], y=["N", 4], z=[None, 5])
    assert shapes_of(fix_shapes(model, "m", {})) == {"x": (1, 3), "y": (1, 4), "z": (1, 5)}


def test_the_default_batch_holds_wherever_its_name_occurs():
    model = model_with(state=[2, "batch", 8], x=["batch", 5])
    assert shapes_of(fix_shapes(model, "m", {})) == {"state": (2, 1, 8), "x": (1, 5)}
    assert shapes_of(fix_shapes(model, "m", {"state": (2, 6, 8)})) == {"state": (2, 6, 8), "x": (6, 5)}


def test_a_size_given_for_one_input_holds_for_all_of_that_name():
    model = model_with(ids=["batch", "sequence"], mask=["batch", "sequence"], past=["batch", 2, "sequence"])
    assert shapes_of(fix_shapes(model, "m", {"mask": (4, 16)})) == {
        "ids": (4, 16),
        "mask": (4, 16),
        "past": (4, 2, 16),
    }


def test_outputs_follow_the_inputs():
    fixed = fix_shapes(model_with(x=["batch", 3]), "m", {"x": (5, 3)})
    assert signature(fixed)[1] == (TensorSpec("x_out", (5, 3), "float32"),)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_of_zero_and_minus_one_are_dynamic(size):
    assert shapes_of(fix_shapes(model_with(x=[size, 3]), "m", {})) == {"x": (1, 3)}


def test_the_argument_is_left_alone():
    model = model_with(x=["batch", 3])
    before = model.SerializeToString()
    fix_shapes(model, "m", {})
    assert model.SerializeToString() == before


def test_unresolved_dimensions_name_the_inputs_and_the_flags():
    model = model_with(ids=["batch", "sequence"], mask=["batch", "sequence"], x=["batch", 3, None], ok=[1])
    with pytest.raises(UnresolvedShapeError) as caught:
        fix_shapes(model, "m.onnx", {})
    assert str(caught.value) == (
        "m.onnx has dynamic input dimensions: ids[batch,sequence], mask[batch,sequence], x[batch,3,?]; "
        "fix them with --shape ids=1,SEQUENCE --shape x=1,3,N"
    )


@pytest.mark.parametrize("name", ["sequence", "seq_len", "time", "num_tokens", "height", "T"])
def test_a_leading_dimension_that_is_no_batch_is_not_guessed(name):
    with pytest.raises(UnresolvedShapeError, match="--shape x="):
        fix_shapes(model_with(x=[name, 3]), "m", {})


def test_a_leading_name_used_elsewhere_is_not_a_batch():
    with pytest.raises(UnresolvedShapeError):
        fix_shapes(model_with(x=["n", "n"]), "m", {})


def test_unknown_rank_needs_a_flag():
    with pytest.raises(UnresolvedShapeError, match=r"x\[of unknown rank\].*--shape x=SIZES"):
        fix_shapes(model_with(x=None), "m", {})
    assert shapes_of(fix_shapes(model_with(x=None), "m", {"x": (2, 2)})) == {"x": (2, 2)}


def test_unknown_input_is_refused_with_the_inputs_there_are():
    with pytest.raises(UnknownInputError, match=r"no input 'image'; its inputs are x\[batch,3\]"):
        fix_shapes(model_with(x=["batch", 3]), "m", {"image": (1, 3)})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"x": (1, 3)}, "it has 2 dimensions and the input has 3"),
        ({"x": (1, 4, 9)}, "dimension 1 is 3 in the model"),
        ({"x": (2, 3, 9), "y": (4, 9)}, "dimension 'batch' is 2 in input 'x'"),
        ({"y": (3, 5), "x": (3, 3, 6)}, "dimension 'length' is 5 in input 'y'"),
    ],
)
def test_contradictory_shapes_are_refused(given, why):
    with pytest.raises(ShapeConflictError) as caught:
        fix_shapes(model_with(x=["batch", 3, "length"], y=["batch", "length"]), "m", given)
    assert why in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 3), (-2, 3)])
def test_sizes_from_python_are_checked_too(shape):
    with pytest.raises(ShapeSyntaxError, match="is not positive"):
        fix_shapes(model_with(x=["batch", 3]), "m", {"x": shape})


def test_initializers_declared_as_inputs_are_not_inputs():
    fixed = fix_shapes(models.make("opset7"), "m", {})
    assert shapes_of(fixed) == {"data": (1, 3, 32, 32)}
    assert [value.name for value in fixed.graph.input] == ["data"]
    onnx.checker.check_model(fixed)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (helper.make_tensor_type_proto(TensorProto.STRING, [1]), "a tensor of strings"),
        (
            helper.make_sequence_type_proto(FLOATS),
            "not a tensor but of kind 'sequence'",
        ),
        (
            helper.make_optional_type_proto(FLOATS),
            "not a tensor but of kind 'optional'",
        ),
        (
            helper.make_map_type_proto(TensorProto.INT64, FLOATS),
            "not a tensor but of kind 'map'",
        ),
    ],
)
def test_inputs_that_are_not_numbers_are_refused(kind, said):
    model = model_with(x=[1])
    model.graph.input[0].type.CopyFrom(kind)
    with pytest.raises(UnsupportedInputError, match=f"input 'x' is {said}"):
        fix_shapes(model, "m", {})


# Inference


@pytest.mark.parametrize("name", SMALL)
def test_fixed_model_computes_the_same(name):
    model = models.make(name)
    fixed = fixed_model(name)
    assert_same_results(model, fixed)  # inputs are drawn for the second: the fixed shapes


def test_signature_of_many_types():
    inputs, outputs = signature(fixed_model("scalars"))
    assert [str(spec) for spec in inputs] == [
        "image=1,8,8,3:uint8", "gain=scalar:float32", "mask=8,8:bool", "row=scalar:int64", "shift=3:int32"
    ]  # fmt: skip
    assert [spec.dtype for spec in outputs] == ["float32", "int32", "int64", "bool", "float32"]


def test_inferred_output_shape_replaces_a_wrong_declaration():
    model = model_with(x=["batch", 3])
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("x_out", TensorProto.FLOAT, [1, 3]))
    assert signature(fix_shapes(model, "m", {"x": (7, 3)}))[1][0].shape == (7, 3)


def test_output_shape_that_depends_on_data_is_refused_with_its_node():
    model = model_with(x=[4])
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.append(helper.make_node("NonZero", ["x"], ["where"], "find"))
    model.graph.output.append(helper.make_tensor_value_info("where", TensorProto.INT64, None))
    with pytest.raises(UnsupportedModelError, match=r"NonZero node 'find'.*output 'where' is not known"):
        signature(fix_shapes(model, "m", {}))


def test_inference_keeps_large_weights():
    model = fixed_model("mobilenet_v2")
    inferred = infer_shapes(model)
    assert list(inferred.graph.initializer) == list(model.graph.initializer)
    assert len(inferred.graph.value_info) >= len(model.graph.node) - 1
