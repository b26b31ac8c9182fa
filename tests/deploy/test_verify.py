import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.artifacts import gather_model, two_output_model
from tpo.deploy import reference as references
from tpo.deploy.artifact import load
from tpo.deploy.manifest import Tensor
from tpo.deploy.reference import Reference, random_inputs
from tpo.deploy.tolerance import TOLERANCES, tolerance_for
from tpo.deploy.verify import compare, verify
from tpo.errors import InputError, MismatchError, ModelFileError, NotOnnxError, UsageError

FLOAT32 = TOLERANCES["float32"]


def changed_weight(change):
    model = two_output_model()
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(change(weight), "w"))
    return model


def test_a_right_library_passes(library):
    with load(library) as artifact:
        report = verify(artifact, library.with_suffix(".onnx"), inputs=[random_inputs(artifact.inputs, 9)])
    assert report.passed
    assert report.same_model
    assert [(item.name, item.elements) for item in report.outputs] == [("y", 4 * 128), ("total", 4)]
    assert all(item.max_rel_error < 1e-5 for item in report.outputs)
    check = report.numeric_check()
    assert check.reference.startswith("onnxruntime ")
    assert check.seeds == (0, 1, 2)
    report.require()


def swap_two_columns(weight):
    weight[:, [3, 4]] = weight[:, [4, 3]]
    return weight


def add_one_percent(weight):
    return weight * (1 + 0.01 * np.random.default_rng(0).standard_normal(weight.shape)).astype("float32")


def change_one_number(weight):
    weight[5, 7] += 0.1
    return weight


@pytest.mark.parametrize("change", [swap_two_columns, add_one_percent, change_one_number])
def test_a_wrong_library_fails(library, change):
    with load(library) as artifact:
        report = verify(artifact, changed_weight(change), seeds=(0,))
    assert not report.outputs[0].passed
    with pytest.raises(MismatchError, match="output 'y' differs in") as caught:
        report.require()
    assert caught.value.exit_code == 3


def test_tolerance_can_be_widened(library):
    with load(library) as artifact:
        assert verify(artifact, changed_weight(add_one_percent), seeds=(0,), atol=0.1).passed


def test_user_inputs_are_checked(library):
    with load(library) as artifact, pytest.raises(InputError, match="it is missing"):
        verify(artifact, library.with_suffix(".onnx"), inputs=[{"x": np.ones((4, 64), "float32")}])


def test_nothing_to_verify_on(library):
    with load(library) as artifact, pytest.raises(UsageError, match="nothing to verify"):
        verify(artifact, library.with_suffix(".onnx"), seeds=())


def test_another_model(library):
    with load(library) as artifact, pytest.raises(UsageError, match="inputs are x, b, the model's are ids"):
        verify(artifact, gather_model())


def test_changed_file_is_noticed(own_library):
    model = two_output_model()
    model.doc_string = "edited"
    onnx.save(model, own_library.with_suffix(".onnx"))
    with load(own_library) as artifact:
        report = verify(artifact, own_library.with_suffix(".onnx"), seeds=(0,))
    assert report.passed
    assert not report.same_model


def array(*values, dtype="float32"):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("got", "expected", "mismatches"),
    [
        (array(1, 2), array(1, 2), 0),
        (array(1, 2.0001), array(1, 2), 0),
        (array(1, 2.02), array(1, 2), 1),
        (array(1e-6, 1), array(0, 1), 0),
        (array(0, 0), array(0, 0), 0),
        (array(1e-6, 0), array(0, 0), 1),
        (array(np.nan, 1), array(np.nan, 1), 0),
        (array(np.nan, 1), array(2, 1), 1),
        (array(2, 1), array(np.nan, 1), 1),
        (array(np.inf, -np.inf, 1), array(np.inf, -np.inf, 1), 0),
        (array(np.inf, 1), array(-np.inf, 1), 1),
        (array(1, 2, dtype="int64"), array(1, 2, dtype="int64"), 0),
        (array(2**60 + 1, 2, dtype="int64"), array(2**60, 2, dtype="int64"), 1),
        (array(0, 255, dtype="uint8"), array(0, 254, dtype="uint8"), 1),
        (array(True, False, dtype="bool"), array(True, True, dtype="bool"), 1),
        (array(1, 2), array(1, 2, dtype="float64"), 2),
        (array(1, 2), np.array([[1, 2]], "float32"), 2),
        (np.zeros((0, 3), "float32"), np.zeros((0, 3), "float32"), 0),
    ],
)
def test_compare(got, expected, mismatches):
    report = compare("y", got, expected, FLOAT32)
    assert report.mismatches == mismatches
    assert report.passed == (mismatches == 0)
    assert mismatches == 0 or report.max_abs_error >= 0


def test_quantised_bytes_may_differ_by_one_step():
    quantised = TOLERANCES["quantised"]
    assert compare("y", array(3, 255, dtype="uint8"), array(4, 254, dtype="uint8"), quantised).passed
    assert not compare("y", array(3, dtype="uint8"), array(5, dtype="uint8"), quantised).passed
    assert not compare("y", array(3, dtype="int32"), array(4, dtype="int32"), quantised).passed


def unary(operator, element_type, **attributes):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", element_type, [2])],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
    )
    return helper.make_model(graph)


@pytest.mark.parametrize(
    ("model", "arithmetic"),
    [
        (unary("Relu", TensorProto.FLOAT), "float32"),
        (unary("Relu", TensorProto.DOUBLE), "float64"),
        (unary("Relu", TensorProto.FLOAT16), "float16"),
        (unary("Cast", TensorProto.FLOAT, to=TensorProto.BFLOAT16), "bfloat16"),
        (unary("DynamicQuantizeLinear", TensorProto.FLOAT), "quantised"),
        (unary("Abs", TensorProto.INT32), "float32"),
    ],
)
def test_tolerance_follows_the_arithmetic(model, arithmetic, tmp_path):
    assert tolerance_for(model).arithmetic == arithmetic
    onnx.save(model, tmp_path / "m.onnx")
    assert tolerance_for(tmp_path / "m.onnx").arithmetic == arithmetic


def test_tolerance_looks_into_subgraphs():
    inner = helper.make_graph([helper.make_node("QuantizeLinear", ["x", "s"], ["q"])], "inner", [], [])
    model = unary("Identity", TensorProto.FLOAT)
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    assert tolerance_for(model).arithmetic == "quantised"


def test_random_inputs_are_reproducible_and_safe():
    specs = [
        Tensor(name="x", shape=(50,), dtype="float32"),
        Tensor(name="ids", shape=(50,), dtype="int64"),
        Tensor(name="pixels", shape=(500,), dtype="uint8"),
        Tensor(name="mask", shape=(50,), dtype="bool"),
        Tensor(name="step", shape=(), dtype="int32"),
    ]
    made = random_inputs(specs, 3)
    again, other = random_inputs(specs, 3), random_inputs(specs, 4)
    for spec in specs:
        assert (made[spec.name].shape, made[spec.name].dtype.name) == (spec.shape, spec.dtype)
        np.testing.assert_array_equal(made[spec.name], again[spec.name])
    assert not np.array_equal(made["x"], other["x"])
    assert set(made["ids"]) == {0, 1}
    assert made["pixels"].max() > 200
    ranged = random_inputs(specs, 3, {"ids": (10, 20), "x": (5, 6)})
    assert set(ranged["ids"]) <= set(range(10, 20))
    assert ranged["x"].min() >= 5


def test_ranges_come_from_the_model():
    model = gather_model()
    helper.set_model_props(model, {"tpo.range.ids": "2,7", "author": "someone"})
    assert Reference(model).ranges == {"ids": (2, 7)}


def test_reference_computes_the_model(gather_library):
    table = numpy_helper.to_array(gather_model().graph.initializer[0])
    for source in (gather_library.with_suffix(".onnx"), gather_model()):
        rows = Reference(source).run({"ids": np.array([1, 0, 4])})["rows"]
        np.testing.assert_array_equal(rows, table[[1, 0, 4]])


def test_models_too_large_for_one_message(monkeypatch):
    model = gather_model()
    before = model.SerializeToString()
    expected = Reference(model).run({"ids": np.array([1, 0, 4])})
    monkeypatch.setattr(references, "PROTOBUF_LIMIT", 10)
    got = Reference(model).run({"ids": np.array([1, 0, 4])})
    np.testing.assert_array_equal(got["rows"], expected["rows"])
    assert model.SerializeToString() == before


def test_reference_refuses_what_is_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="no such file"):
        Reference(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"garbage")
    with pytest.raises(NotOnnxError, match=r"m\.onnx is not a valid ONNX model"):
        Reference(tmp_path / "m.onnx")
