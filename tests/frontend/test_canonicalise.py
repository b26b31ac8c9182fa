"""Each spelling that exporters use becomes the one operator, and computes the same numbers."""

import math
from itertools import pairwise
from math import prod

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from support.converter_runs import operators_of, run_module
from support.onnx_runs import run_onnx
from tpo.deploy.compile import schedule_and_pack
from tpo.frontend.canonicalise import RULES, canonicalise
from tpo.frontend.canonicalise.engine import rewrite
from tpo.frontend.importer import import_model
from tpo.frontend.layout import convert_layout
from tpo.frontend.pipeline import stages
from tpo.targets import resolve

NORMAL = np.random.default_rng(3).standard_normal


class Builder:
    """Writes an ONNX graph node by node; constants are arrays."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, operator: str, *inputs, **attributes) -> str:
        names = [self.constant(value) if not isinstance(value, str) else value for value in inputs]
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def constant(self, value) -> str:
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def model(self, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "test",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def canonical(build: Builder, *outputs: str, tolerance: float = 1e-5):
    """The canonical module, after making sure that it computes what ONNX Runtime does."""
    model = build.model(*outputs)
    feeds = {"x": NORMAL(build.shape).astype("float32")}
    with tvm.target.Target("llvm"):
        module = canonicalise(import_model(model, "test.onnx"))
    for got, want in zip(run_module(module, feeds), run_onnx(model, feeds).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return module


def _gelu_erf(b: Builder, order: int) -> str:
    inner = b("Add", b("Erf", b("Div", "x", math.sqrt(2.0))), 1.0)
    if order == 0:
        return b("Mul", b("Mul", "x", 0.5), inner)
    if order == 1:
        return b("Mul", b("Mul", "x", inner), 0.5)
    if order == 2:
        return b("Mul", 0.5, b("Mul", inner, "x"))
    return b("Div", b("Mul", "x", inner), 2.0)


@pytest.mark.parametrize("order", range(4))
def test_gelu_erf(order):
    b = Builder(2, 8)
    assert operators_of(canonical(b, _gelu_erf(b, order))) == ["nn.gelu"]


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("pow_first", [False, True])
def test_gelu_tanh(factored, pow_first):
    b = Builder(2, 8)
    if factored:
        square = b("Pow", "x", 2.0) if pow_first else b("Mul", "x", "x")
        cubic = b("Mul", "x", b("Add", b("Mul", square, 0.044715), 1.0))
    else:
        cube = b("Pow", "x", 3.0) if pow_first else b("Mul", b("Mul", "x", "x"), "x")
        cubic = b("Add", "x", b("Mul", 0.044715, cube))
    tanh = b("Tanh", b("Mul", cubic, math.sqrt(2 / math.pi)))
    y = b("Mul", b("Mul", 0.5, "x"), b("Add", 1.0, tanh))
    assert operators_of(canonical(b, y)) == ["nn.gelu_tanh"]


@pytest.mark.parametrize("exponent", [0.25, -0.5, 0.75, -0.75, 1.25, -1.75])
def test_powers_of_quarters_are_roots(exponent):
    b = Builder(2, 8)
    found = operators_of(canonical(b, b("Pow", b("Add", b("Abs", "x"), 0.1), exponent)))
    assert "power" not in found and "sqrt" in found


@pytest.mark.parametrize("exponent", [0.3, -2.25, 3.0])
def test_other_powers_stay(exponent):
    b = Builder(2, 8)
    assert "sqrt" not in operators_of(canonical(b, b("Pow", b("Add", b("Abs", "x"), 0.1), exponent)))


def test_an_almost_gelu_stays_as_it_is():
    b = Builder(2, 8)
    y = b("Mul", b("Mul", "x", 0.5), b("Add", b("Erf", b("Div", "x", 1.3)), 1.0))
    assert "nn.gelu" not in operators_of(canonical(b, y))


@pytest.mark.parametrize("swapped", [False, True])
def test_silu(swapped):
    b = Builder(2, 8)
    gate = b("Sigmoid", "x")
    y = b("Mul", gate, "x") if swapped else b("Mul", "x", gate)
    assert operators_of(canonical(b, y)) == ["nn.silu"]


def test_hard_swish_is_arithmetic_and_one_clip():
    b = Builder(2, 8)
    y = b("Div", b("Mul", "x", b("Clip", b("Add", "x", 3.0), 0.0, 6.0)), 6.0)
    assert sorted(operators_of(canonical(b, y))) == ["add", "clip", "multiply", "multiply"]


@pytest.mark.parametrize(
    "spell",
    [
        lambda b: b("Relu", "x"),
        lambda b: b("Clip", "x", 0.0, 6.0),
        lambda b: b("Max", "x", -0.5),
        lambda b: b("Min", "x", 0.5),
        lambda b: b("Min", b("Max", "x", -0.5), 0.5),
        lambda b: b("HardSigmoid", "x"),
        lambda b: b("HardSwish", "x"),
        lambda b: b("LeakyRelu", "x"),
        lambda b: b("Relu", b("Conv", b("Reshape", "x", np.array([1, 2, 4, 4])), NORMAL((16, 2, 1, 1)))),
    ],
)
def test_a_nan_stays_one(spell):
    """Through all stages and the default schedules: a broken sensor must not look like a zero."""
    b = Builder(32)
    model = b.model(spell(b))
    values = NORMAL(32).astype("float32") * 4
    values[::5] = np.nan
    module = dict(stages(model, "test.onnx", {}))["mark"]
    target = resolve("native", 1)
    scheduled, _ = schedule_and_pack(module, target.hardware, target.tvm)
    (got,) = run_module(scheduled, {"x": values})
    (want,) = run_onnx(model, {"x": values}).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_min_of_max_is_one_clip():
    b = Builder(2, 8)
    y = b("Max", b("Min", "x", 0.5), -0.25)
    assert operators_of(canonical(b, y)) == ["clip"]


@pytest.mark.parametrize("root", ["div_sqrt", "mul_reciprocal"])
@pytest.mark.parametrize("square", ["pow", "mul"])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(root, square, affine):
    b = Builder(2, 5, 8)
    centred = b("Sub", "x", b("ReduceMean", "x", axes=[-1]))
    squared = b("Pow", centred, 2.0) if square == "pow" else b("Mul", centred, centred)
    std = b("Sqrt", b("Add", b("ReduceMean", squared, axes=[-1]), 1e-6))
    y = b("Div", centred, std) if root == "div_sqrt" else b("Mul", centred, b("Div", 1.0, std))
    if affine:
        y = b("Add", b("Mul", y, NORMAL(8)), NORMAL(8))
    module = canonical(b, y)
    assert operators_of(module) == ["nn.layer_norm"]
    norm = module["main"].body.blocks[0].bindings[0].value
    assert float(norm.attrs.epsilon) == pytest.approx(1e-6)


def test_rms_norm():
    b = Builder(2, 5, 8)
    root = b("Sqrt", b("Add", b("ReduceMean", b("Pow", "x", 2.0), axes=[-1]), 1e-5))
    y = b("Mul", NORMAL(8), b("Mul", "x", b("Div", 1.0, root)))
    assert operators_of(canonical(b, y)) == ["nn.rms_norm"]


@pytest.mark.parametrize("centre", [False, True])
def test_a_normalisation_over_all_axes_stays_as_it_is(centre):
    b = Builder(4, 8)
    y = b("Sub", "x", b("ReduceMean", "x", axes=[0, 1])) if centre else "x"
    y = b("Div", y, b("Sqrt", b("Add", b("ReduceMean", b("Mul", y, y), axes=[0, 1]), 1e-6)))
    assert not {"nn.layer_norm", "nn.rms_norm"} & set(operators_of(canonical(b, y)))


def test_a_mean_over_other_axes_is_not_a_layer_norm():
    b = Builder(2, 5, 8)
    centred = b("Sub", "x", b("ReduceMean", "x", axes=[1]))
    y = b("Div", centred, b("Sqrt", b("Add", b("ReduceMean", b("Mul", centred, centred), axes=[-1]), 1e-6)))
    assert "nn.layer_norm" not in operators_of(canonical(b, y))


@pytest.mark.parametrize("transposed", [False, True])
def test_batch_norm_folds_into_a_convolution(transposed):
    b = Builder(1, 4, 6, 6)
    y = b("ConvTranspose" if transposed else "Conv", "x", NORMAL((4, 4, 3, 3)), NORMAL(4))
    y = b("BatchNormalization", y, NORMAL(4), NORMAL(4), NORMAL(4), np.abs(NORMAL(4)) + 0.5)
    conv, *rest = operators_of(canonical(b, y, tolerance=1e-4))
    assert conv.startswith("nn.conv2d") and rest == ["add"]


def test_scale_and_shift_fold_into_a_matmul():
    b = Builder(3, 4)
    y = b("Add", b("Mul", b("Add", b("MatMul", "x", NORMAL((4, 5))), NORMAL(5)), NORMAL(5)), NORMAL(5))
    assert operators_of(canonical(b, y)) == ["matmul", "add"]


def test_zero_padding_becomes_the_convolutions_own():
    b = Builder(1, 4, 6, 7)
    padded = b("Pad", "x", np.array([0, 0, 0, 1, 0, 0, 2, 3]))
    y = b("Conv", padded, NORMAL((5, 4, 3, 3)), pads=[1, 0, 0, 1], strides=[2, 1])
    module = canonical(b, y)
    assert operators_of(module) == ["nn.conv2d"]
    conv = module["main"].body.blocks[0].bindings[0].value
    assert [int(pad) for pad in conv.attrs.padding] == [1, 1, 2, 4]


@pytest.mark.parametrize("value, channels", [(1.0, 0), (0.0, 1)])
def test_other_padding_stays_outside_the_convolution(value, channels):
    b = Builder(1, 4, 6, 6)
    padded = b("Pad", "x", np.array([0, 0, 1, 1, 0, channels, 1, 1]), value)
    assert "nn.pad" in operators_of(canonical(b, b("Conv", padded, NORMAL((5, 4 + channels, 3, 3)))))


def test_a_convolution_that_is_read_twice_keeps_its_weights():
    b = Builder(1, 4, 6, 6)
    conv = b("Conv", "x", NORMAL((4, 4, 3, 3)))
    scaled = b("Mul", conv, NORMAL((4, 1, 1)))
    module = canonical(b, b("Add", scaled, b("Relu", conv)))
    assert operators_of(module).count("nn.conv2d") == 1


def test_float64_constants_stay_float64():
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Sub", ["x", "c"], ["d"]), helper.make_node("Div", ["d", "c"], ["y"])],
            "test",
            [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3])],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(np.array([1 / 3, 2 / 3, 1e-9]), "c")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    feeds = {"x": NORMAL(3)}
    module = canonicalise(import_model(model, "test.onnx"))
    assert operators_of(module) == ["multiply", "add"]
    np.testing.assert_allclose(run_module(module, feeds)[0], run_onnx(model, feeds)["y"], rtol=1e-12)


def test_no_ops_are_removed():
    b = Builder(2, 3, 4)
    y = b("Mul", b("Add", b("Identity", "x"), np.zeros((3, 1))), np.ones(4))
    y = b("Cast", b("Reshape", b("Transpose", y, perm=[0, 1, 2]), np.array([2, 3, 4])), to=TensorProto.FLOAT)
    y = b("Concat", b("Slice", y, np.array([0]), np.array([3]), np.array([1])), axis=0)
    assert operators_of(canonical(b, b("Relu", y))) == ["nn.relu"]


def test_an_index_out_of_range_reads_the_edge():
    builder = Builder(3)
    rows = builder("Gather", np.arange(8.0).reshape(4, 2), builder("Cast", "x", to=TensorProto.INT64))
    model = builder.model(rows)
    with tvm.target.Target("llvm"):
        module = canonicalise(import_model(model, "test.onnx"))
    (got,) = run_module(module, {"x": np.array([0, 3, 1e6], "float32")})
    np.testing.assert_array_equal(got, [[0, 1], [6, 7], [6, 7]])


def test_constants_are_folded_without_being_asked():
    b = Builder(2, 3)
    table = b("Transpose", b("Mul", NORMAL((3, 2)), 2.0))
    assert operators_of(canonical(b, b("Add", "x", b("Sqrt", b("Abs", table))))) == ["add"]


def test_transposes_cancel_through_a_chain_of_views():
    b = Builder(2, 3, 4)
    y = b("Transpose", b("Reshape", b("Transpose", "x", perm=[2, 0, 1]), np.array([4, 6])), perm=[1, 0])
    assert operators_of(canonical(b, y)) == ["reshape"]


def test_a_flattened_transpose_moves_into_the_weights():
    b = Builder(2, 3, 4, 5)
    flat = b("Reshape", b("Transpose", "x", perm=[0, 3, 1, 2]), np.array([2, 60]))
    assert operators_of(canonical(b, b("MatMul", flat, NORMAL((60, 7))))) == ["reshape", "matmul"]


@pytest.mark.parametrize(
    "between, expected",
    [
        (lambda b, y: b("Pad", y, np.array([0, 0, 1, 1, 0, 0, 2, 3]), 1.0), "nn.pad"),
        (lambda b, y: b("Clip", y, -0.5, 0.5), "clip"),
        (lambda b, y: b("Concat", b("Relu", y), b("Sigmoid", y), axis=1), "concat"),
        (lambda b, y: b("Mul", y, b("ReduceMean", y, axes=[2, 3])), "mean"),
        (lambda b, y: b("PRelu", y, np.abs(NORMAL((8, 1, 1)))), "nn.relu"),
    ],
)
def test_nothing_is_transposed_between_two_convolutions(between, expected):
    b = Builder(1, 4, 9, 9)
    y = between(b, b("Conv", "x", NORMAL((8, 4, 3, 3))))
    channels = 16 if expected == "concat" else 8
    model = b.model(b("Conv", y, NORMAL((4, channels, 3, 3))))
    with tvm.target.Target("llvm"):
        module = convert_layout(canonicalise(import_model(model, "test.onnx")))
    operators = operators_of(module)
    assert operators.count("permute_dims") == 2  # of the input and of the output
    assert expected in operators
    feeds = {"x": NORMAL((1, 4, 9, 9)).astype("float32")}
    (want,) = run_onnx(model, feeds).values()
    np.testing.assert_allclose(run_module(module, feeds)[0], want, rtol=1e-4, atol=1e-4)


@st.composite
def view_chains(draw):
    """A shape and a chain of reshapes and transposes that fit it."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    chain, current = [], shape
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            axes = draw(st.permutations(range(len(current))))
            chain.append(("permute_dims", axes))
            current = [current[axis] for axis in axes]
        else:
            total = prod(current)
            cuts = draw(
                st.lists(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]), max_size=3)
            )
            edges = [1, *sorted(cuts), total]
            current = [high // low for low, high in pairwise(edges)] if _nested(edges) else [total]
            chain.append(("reshape", current))
    return shape, chain


def _nested(edges: list[int]) -> bool:
    return all(high % low == 0 for low, high in pairwise(edges))


@settings(max_examples=150, deadline=None)
@given(view_chains())
def test_any_chain_of_views_keeps_its_meaning_and_needs_no_more_operators(case):
    shape, chain = case
    values = np.arange(prod(shape), dtype="float32").reshape(shape)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for kind, argument in chain:
                y = builder.emit(getattr(relax.op, kind)(y, argument))
                values = values.transpose(argument) if kind == "permute_dims" else values.reshape(argument)
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    module = relax.transform.DeadCodeElimination()(rewrite(builder.get(), RULES))
    left = operators_of(module)
    assert len(left) <= len(chain)
    assert left.count("permute_dims") <= sum(kind == "permute_dims" for kind, _ in chain)
    got = np.arange(prod(shape), dtype="float32").reshape(shape)
    assert np.array_equal(_interpret(module, got), values)


def _interpret(module, value: np.ndarray) -> np.ndarray:
    """Run a chain of views in numpy: compiling 150 of them would take minutes."""
    for binding in module["main"].body.blocks[0].bindings:
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        if call.op.name == "relax.permute_dims":
            value = value.transpose([int(axis) for axis in call.attrs.axes])
        else:
            value = value.reshape([int(dim) for dim in call.args[1].values])
    return value
