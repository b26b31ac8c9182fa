"""Every default schedule computes what the unscheduled function does, and is what its rule promises."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

from support.converter_runs import run_module
from tpo.deploy.compile import schedule_and_pack
from tpo.frontend import lower
from tpo.frontend.load import load_onnx
from tpo.lang import analysis
from tpo.schedule import UNSCHEDULED, schedule_function, tiles
from tpo.targets import resolve

NATIVE = resolve("native")
RNG = np.random.default_rng(11)


def const(*shape: int):
    return relax.const(RNG.standard_normal(shape).astype("float32"))


def conv(cin, cout, k=3, groups=1, strides=1, padding=1, dilation=1, epilogue=True):
    def build(x):
        y = relax.op.nn.conv2d(
            x,
            const(*(k if isinstance(k, tuple) else (k, k)), cin // groups, cout),
            strides=strides,
            padding=padding,
            dilation=dilation,
            groups=groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        return relax.op.nn.relu(relax.op.add(y, const(1, 1, 1, cout))) if epilogue else y

    return build


def sequence_conv(x):
    """A depthwise convolution of one dimension."""
    weight = const(5, 1, 24)
    y = relax.op.nn.conv1d(x, weight, padding=2, groups=24, data_layout="NWC", kernel_layout="WIO")
    return relax.op.nn.silu(y)


def volume_conv(cin, cout, k=3, strides=1):
    """A convolution of three dimensions."""
    return lambda x: relax.op.nn.conv3d(
        x,
        const(k, k, k, cin, cout),
        strides=strides,
        padding=k // 2,
        data_layout="NDHWC",
        kernel_layout="DHWIO",
    )


def audio_conv(cin, cout, k, dilation=1, groups=1):
    """A convolution of one dimension."""
    weight = const(k, cin // groups, cout)
    return lambda x: relax.op.nn.conv1d(
        x,
        weight,
        padding=dilation * (k // 2),
        dilation=dilation,
        groups=groups,
        data_layout="NWC",
        kernel_layout="WIO",
    )


def scores(x):
    """Products of every two rows, as in attention: nothing in them is constant."""
    return relax.op.matmul(relax.op.nn.relu(x), relax.op.permute_dims(x, [0, 2, 1]))


def gated(x):
    """A convolution of one pixel, spread over the whole map: the epilogue is larger than the conv."""
    gate = conv(16, 16, k=1, padding=0, epilogue=False)(relax.op.mean(x, [1, 2], keepdims=True))
    return relax.op.multiply(x, relax.op.sigmoid(gate))


WORKLOADS = {
    "conv3x3": ((1, 14, 14, 32), conv(32, 64), "winograd"),
    "conv3x3 without epilogue": ((1, 7, 7, 16), conv(16, 32, epilogue=False), "winograd"),
    "conv3x3 without padding, batch 2": ((2, 11, 9, 16), conv(16, 16, padding=0), "winograd"),
    "conv3x3 large": ((1, 56, 56, 64), conv(64, 64), "winograd"),
    "conv3x3 strided": ((1, 16, 16, 32), conv(32, 64, strides=2), "contraction"),
    "conv1x1 strided": ((1, 14, 14, 32), conv(32, 48, k=1, padding=0, strides=2), "contraction"),
    "conv dilated, batch 2": ((2, 9, 9, 8), conv(8, 16, padding=2, dilation=2), "contraction"),
    "conv of 3 channels": ((1, 23, 23, 3), conv(3, 24, k=7, strides=2, padding=3), "contraction"),
    "conv grouped": ((1, 10, 10, 32), conv(32, 64, groups=4), "contraction"),
    "conv grouped, 4 channels each": ((1, 9, 10, 32), conv(32, 32, groups=8), "contraction"),
    "conv grouped, 3 channels each": ((1, 7, 7, 15), conv(15, 30, groups=5, strides=2), "contraction"),
    "conv1x1 grouped": ((1, 14, 14, 60), conv(60, 240, k=1, padding=0, groups=3), "contraction"),
    "conv1x1 grouped, 68 channels each": (
        (1, 7, 9, 136),
        conv(136, 136, k=1, padding=0, groups=2),
        "grouped_contraction",
    ),
    "conv grouped, 35 channels each, batch 2": (
        (2, 9, 8, 70),
        conv(70, 70, groups=2, strides=2),
        "grouped_contraction",
    ),
    "conv grouped, 16 channels each": ((1, 10, 9, 64), conv(64, 64, groups=4), "winograd"),
    "conv of a row": ((1, 9, 14, 16), conv(16, 32, k=(1, 3), padding=(0, 1)), "winograd"),
    "conv of a column": ((2, 13, 6, 16), conv(16, 16, k=(3, 1), padding=(1, 0)), "winograd"),
    "conv of a sequence, 16 channels": ((2, 50, 16), audio_conv(16, 32, 3), "winograd"),
    "conv of a sequence": ((2, 50, 12), audio_conv(12, 24, 3), "contraction"),
    "conv of a sequence, dilated": ((1, 53, 8), audio_conv(8, 16, 7, dilation=3), None),
    "conv of a sequence, grouped": ((1, 40, 16), audio_conv(16, 32, 5, groups=4), "contraction"),
    "conv of a volume": ((1, 4, 6, 6, 3), volume_conv(3, 16), "contraction"),
    "conv of a volume, strided": ((1, 5, 7, 9, 8), volume_conv(8, 24, strides=2), None),
    "conv to 1000 classes": ((1, 13, 13, 16), conv(16, 1000, k=1, padding=0), "padded_contraction"),
    "conv to a prime": ((1, 13, 13, 8), conv(8, 17), "padded_contraction"),
    "depthwise": ((1, 12, 12, 32), conv(32, 32, groups=32), "depthwise"),
    "depthwise 5x5, strided": (
        (1, 23, 23, 24),
        conv(24, 24, k=5, groups=24, strides=2, padding=2),
        "depthwise",
    ),
    "depthwise 7x7, batch 2": ((2, 9, 9, 16), conv(16, 16, k=7, groups=16, padding=3), "depthwise"),
    "depthwise dilated": ((1, 13, 13, 20), conv(20, 20, groups=20, padding=2, dilation=2), "depthwise"),
    "depthwise of 3 channels": ((1, 17, 17, 3), conv(3, 3, groups=3), "depthwise"),
    "depthwise without padding": (
        (1, 19, 19, 32),
        conv(32, 32, groups=32, padding=0, epilogue=False),
        "depthwise",
    ),
    "depthwise, padded on one side": (
        (1, 14, 10, 144),
        conv(144, 144, groups=144, strides=2, padding=(0, 0, 1, 1)),
        "depthwise",
    ),
    "depthwise with a residual": (
        (1, 14, 14, 32),
        lambda x: relax.op.add(conv(32, 32, groups=32)(x), x),
        "depthwise",
    ),
    "depthwise, two outputs of a channel": ((1, 9, 9, 16), conv(16, 32, groups=16), None),
    "depthwise along a sequence": ((2, 37, 24), sequence_conv, "depthwise"),
    "conv gating a map": ((1, 6, 6, 16), gated, None),
    "dense": (
        (1, 96),
        lambda x: relax.op.add(relax.op.matmul(x, const(96, 40)), const(1, 40)),
        "contraction",
    ),
    "matmul": ((24, 48), lambda x: relax.op.nn.gelu(relax.op.matmul(x, const(48, 64))), "contraction"),
    "matmul of primes": ((29, 31), lambda x: relax.op.matmul(x, const(31, 37)), "padded_contraction"),
    "matmul to one column": ((8, 64), lambda x: relax.op.matmul(x, const(64, 1)), None),
    "matmul of 197 tokens": (
        (1, 197, 64),
        lambda x: relax.op.nn.gelu(relax.op.add(relax.op.matmul(x, const(64, 96)), const(96))),
        "contraction",
    ),
    "one row to 1000 classes": (
        (1, 64),
        lambda x: relax.op.matmul(x, const(64, 1000)),
        "contraction",
    ),
    "batch matmul of primes": (
        (3, 53, 31),
        lambda x: relax.op.matmul(x, const(3, 31, 37)),
        "padded_contraction",
    ),
    "attention": ((2, 24, 16), scores, None),
    "attention of primes": ((2, 53, 31), scores, None),
    "attention of 197 tokens": ((2, 197, 16), scores, None),
    "batch matmul": ((3, 8, 16), lambda x: relax.op.matmul(x, relax.op.permute_dims(x, [0, 2, 1])), None),
    "constant on the left": ((16, 24), lambda x: relax.op.matmul(const(12, 16), x), "contraction"),
    "max pool": (
        (1, 15, 15, 32),
        lambda x: relax.op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1], layout="NHWC"),
        "pooling",
    ),
    "max pool of odd channels, batch 2": (
        (2, 13, 11, 21),
        lambda x: relax.op.nn.max_pool2d(x, [5, 5], [1, 1], [2, 2], layout="NHWC"),
        "pooling",
    ),
    "max pool, rounded up": (
        (1, 12, 12, 24),
        lambda x: relax.op.nn.max_pool2d(x, [3, 3], [2, 2], [0, 0], ceil_mode=True, layout="NHWC"),
        "pooling",
    ),
    "average pool": (
        (1, 9, 9, 40),
        lambda x: relax.op.nn.avg_pool2d(x, [3, 3], [1, 1], [1, 1], layout="NHWC"),
        "pooling",
    ),
    "large average pool": (
        (1, 28, 28, 96),
        lambda x: relax.op.nn.relu(relax.op.nn.avg_pool2d(x, [2, 2], [2, 2], layout="NHWC")),
        "pooling",
    ),
    "pooling of sequences": (
        (2, 37, 24),
        lambda x: relax.op.nn.max_pool1d(x, [3], [2], [1], layout="NWC"),
        "pooling",
    ),
    "global mean": ((1, 7, 7, 64), lambda x: relax.op.mean(x, [1, 2], keepdims=True), "pooling"),
    "global maximum of primes": ((2, 5, 7, 13), lambda x: relax.op.max(x, [1, 2]), "pooling"),
    "mean of the last axis": ((5, 6, 48), lambda x: relax.op.mean(x, [-1]), "row_passes"),
    "sum of everything": ((7, 9), lambda x: relax.op.sum(x), "reduction"),
    "sum of everything, vectorised": ((1, 8, 8, 4), lambda x: relax.op.sum(x), "reduction"),
    "mean of two axes": ((3, 8, 5, 32), lambda x: relax.op.mean(x, [1, 3]), "reduction"),
    "argmax": ((6, 40), lambda x: relax.op.argmax(x, 1), None),
    "softmax": ((4, 33), lambda x: relax.op.nn.softmax(x), "row_passes"),
    "softmax of the first axis": ((32, 16), lambda x: relax.op.nn.softmax(x, 0), "reduction"),
    "layer norm": ((4, 9, 64), lambda x: relax.op.nn.layer_norm(x, const(64), const(64), [-1]), "row_passes"),
    "layer norm of outer axes": (
        (1, 6, 6, 32),
        lambda x: relax.op.nn.relu(relax.op.nn.layer_norm(x, const(6, 6), const(6, 6), [1, 2])),
        "reduction",
    ),
    "softmax of 197": ((2, 3, 197), lambda x: relax.op.nn.softmax(x), "row_passes"),
    "softmax of 1000": ((1, 1000), lambda x: relax.op.nn.softmax(x), "row_passes"),
    "as many softmaxes as elements": ((13, 13), lambda x: relax.op.nn.softmax(x), "row_passes"),
    "rms norm of prime rows": (
        (3, 53),
        lambda x: relax.op.nn.rms_norm(x, const(53), [-1], 1e-5),
        "row_passes",
    ),
    "sum of squares of prime rows": (
        (6, 41),
        lambda x: relax.op.sum(relax.op.multiply(x, x), [-1]),
        "row_passes",
    ),
    "product of prime rows": ((5, 19), lambda x: relax.op.prod(x, [-1]), "row_passes"),
    "minimum of prime rows": ((5, 61), lambda x: relax.op.min(x, [-1]), "row_passes"),
    "softmax of 3": ((7, 3), lambda x: relax.op.nn.softmax(x), "row_passes"),
    "softmax of one element": ((7, 1), lambda x: relax.op.nn.softmax(x), None),
    "softmax of a middle axis": ((4, 9, 16), lambda x: relax.op.nn.softmax(x, 1), None),
    "log softmax of 100": ((8, 100), lambda x: relax.op.nn.log_softmax(x), "row_passes"),
    "log softmax of a prime": ((8, 37), lambda x: relax.op.nn.log_softmax(x), "row_passes"),
    "maximum of prime rows": ((5, 37), lambda x: relax.op.max(x, [-1], keepdims=True), "row_passes"),
    "product of rows": ((5, 24), lambda x: relax.op.prod(x, [-1]), "row_passes"),
    "minimum of a middle axis": ((5, 7, 12), lambda x: relax.op.min(x, [1]), None),
    "mean of a leading axis": ((7, 5, 13), lambda x: relax.op.mean(x, [0]), None),
    "rms norm": ((4, 9, 48), lambda x: relax.op.nn.rms_norm(x, const(48), [-1], 1e-5), "row_passes"),
    "layer norm of prime rows": (
        (4, 37),
        lambda x: relax.op.nn.layer_norm(x, const(37), const(37), [-1]),
        "row_passes",
    ),
    "layer norm of two axes": (
        (2, 3, 7, 16),
        lambda x: relax.op.nn.layer_norm(x, const(7, 16), const(7, 16), [-2, -1]),
        "row_passes",
    ),
    "cumulative sum": ((4, 16), lambda x: relax.op.cumsum(x, 1), None),
    "elementwise": ((3, 5, 64), lambda x: relax.op.exp(relax.op.add(x, const(64))), "elementwise"),
    "scalar": ((), lambda x: relax.op.add(x, relax.const(1.0, "float32")), "elementwise"),
    "transpose": ((1, 3, 20, 20), lambda x: relax.op.permute_dims(x, [0, 2, 3, 1]), "transpose"),
    "transpose to channels first": (
        (2, 7, 7, 40),
        lambda x: relax.op.permute_dims(x, [0, 3, 1, 2]),
        "transpose",
    ),
    "transpose of primes": ((197, 13), lambda x: relax.op.permute_dims(x, [1, 0]), "transpose"),
    "transpose and add": (
        (6, 33, 48),
        lambda x: relax.op.add(relax.op.permute_dims(x, [0, 2, 1]), const(6, 48, 33)),
        "transpose",
    ),
    "transpose of five axes": (
        (2, 3, 4, 5, 6),
        lambda x: relax.op.permute_dims(x, [4, 1, 3, 0, 2]),
        "transpose",
    ),
    "transpose of heads": ((1, 9, 4, 32), lambda x: relax.op.permute_dims(x, [0, 2, 1, 3]), "elementwise"),
    "large transpose": ((1, 64, 56, 56), lambda x: relax.op.permute_dims(x, [0, 2, 3, 1]), "transpose"),
    "concat": ((1, 5, 5, 24), lambda x: relax.op.concat([x, relax.op.nn.relu(x)], 3), "concat"),
    "concat of three, odd": (
        (1, 5, 5, 7),
        lambda x: relax.op.concat([x, const(1, 5, 5, 3), relax.op.nn.relu(x)], 3),
        "concat",
    ),
    "concat of rows": ((1, 5, 5, 24), lambda x: relax.op.concat([x, x], 1), "elementwise"),
    "concat of odd lengths": ((4, 150), lambda x: relax.op.concat([x, const(4, 151)], 1), "concat"),
    "concat of many": ((4, 3), lambda x: relax.op.concat([x] * 70, 1), "elementwise"),
    "pad": ((1, 3, 9, 9), lambda x: relax.op.nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 2]), "concat"),
    "split": ((6, 48), lambda x: relax.op.split(x, 3, 1), "elementwise"),
    "slice": (
        (1, 9, 9, 24),
        lambda x: relax.op.strided_slice(x, [1, 2], [1, 1], [8, 9], [1, 2]),
        "elementwise",
    ),
    "upsampling": (
        (1, 6, 7, 24),
        lambda x: relax.op.image.resize2d(
            x, (12, 14), layout="NHWC", method="nearest_neighbor", coordinate_transformation_mode="asymmetric"
        ),
        "elementwise",
    ),
    "large softmax": ((1, 4, 128, 128), lambda x: relax.op.nn.softmax(x), "row_passes"),
    "large layer norm": (
        (1, 128, 256),
        lambda x: relax.op.nn.layer_norm(x, const(256), const(256), [-1]),
        None,
    ),
    "large mean": ((1, 32, 32, 64), lambda x: relax.op.mean(x, [-1]), "row_passes"),
    "large elementwise": ((64, 1024), lambda x: relax.op.tanh(x), "elementwise"),
}


def workload(name: str):
    """The fused module of a workload."""
    shape, build, _ = WORKLOADS[name]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.normalize(build(x)))
        builder.emit_func_output(y)
    module = builder.get()
    with tvm.target.Target("llvm"):
        for stage in (lower.legalise, lower.fuse, lower.mark_layout_free):
            module = stage(module)
    return module


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_numbers_as_unscheduled(name):
    shape, _, expected_rule = WORKLOADS[name]
    module = workload(name)
    feeds = {"x": RNG.standard_normal(shape).astype("float32")}
    want = run_module(module, feeds)
    scheduled, rules = schedule_and_pack(module, NATIVE.hardware, NATIVE.tvm)
    got = run_module(scheduled, feeds)
    for have, expected in zip(got, want, strict=True):
        # Winograd's errors are relative to the largest values of a tile.
        np.testing.assert_allclose(have, expected, rtol=1e-4, atol=max(1e-4, 1e-5 * np.abs(expected).max()))
    # Which of the two it is depends on the registers of this machine.
    taken = {"contraction" if rule == "clamped_contraction" else rule for rule in rules.values()}
    assert expected_rule is None or taken == {expected_rule}


@pytest.mark.parametrize("length", [24, 37, 128, 197])
def test_softmax_of_infinities_and_nan_is_as_in_onnxruntime(length, tmp_path):
    x = RNG.standard_normal((6, length)).astype("float32")
    x[0] = -np.inf
    x[1, 3] = -np.inf
    x[2, -1] = np.nan
    x[3, 0] = np.inf
    x[4] = np.finfo("float32").min
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, x.shape) for n in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "softmax", value[:1], value[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "softmax.onnx")
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    module = load_onnx(tmp_path / "softmax.onnx").module
    scheduled, rules = schedule_and_pack(module, NATIVE.hardware, NATIVE.tvm)
    assert set(rules.values()) == {"row_passes"}
    np.testing.assert_allclose(run_module(scheduled, {"x": x})[0], want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
@pytest.mark.parametrize("length", [64, 37])
def test_sums_of_rows_of_other_types(dtype, length):
    x = te.placeholder((9, length), dtype=dtype, name="x")
    func = te.create_prim_func([x, topi.sum(x, axis=1)], index_dtype_override="int64")
    scheduled, rule = schedule_function(func, NATIVE.hardware)
    values = RNG.integers(-3, 4, (9, length)).astype(dtype)
    data, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros(9, dtype))
    tvm.compile(scheduled.with_attr("global_symbol", "main"), NATIVE.tvm)["main"](data, result)
    assert rule == "row_passes"
    np.testing.assert_array_equal(result.numpy(), values.sum(axis=1))


def test_equal_maxima_give_the_first_index():
    x = te.placeholder((3, 40), name="x")
    func = te.create_prim_func([x, topi.argmax(x, axis=1)], index_dtype_override="int64")
    scheduled, _ = schedule_function(func, NATIVE.hardware)
    values = np.zeros((3, 40), "float32")
    values[1, [5, 20, 39]] = 1
    values[2, [39]] = 1
    result = tvm.runtime.tensor(np.full(3, -1, str(func.params[-1].dtype)))
    tvm.compile(scheduled.with_attr("global_symbol", "main"), NATIVE.tvm)["main"](
        tvm.runtime.tensor(values), result
    )
    np.testing.assert_array_equal(result.numpy(), [0, 5, 39])


@pytest.mark.parametrize("name", ["large softmax", "softmax of 197", "layer norm", "rms norm"])
def test_every_row_is_visited_once(name):
    func = next(f for f in workload(name).functions.values() if isinstance(f, tirx.PrimFunc))
    scheduled, rule = schedule_function(func, NATIVE.hardware)
    assert rule == "row_passes"
    assert len(_nests(scheduled)) == 1


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
@given(rows=st.integers(1, 4000), columns=st.integers(1, 4000))
@settings(max_examples=60, deadline=None)
def test_a_register_tile_divides_the_output_and_fits_the_register_file(target, rows, columns):
    hw = resolve(target).hardware
    fitting = tiles.dividing_tiles(rows, columns, "float32", hw)
    best = max(fitting, key=lambda tile: tile.score(rows, "float32", hw))
    for tile in [*fitting[:50], best]:
        assert rows % tile.rows == 0
        assert columns % (tile.lanes * tile.vectors) == 0
        assert tile.rows * tile.vectors + tile.vectors + 1 <= hw.vector_registers


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_vectors_are_as_wide_as_the_target_has_them(target):
    hw = resolve(target).hardware
    (matmul,) = (f for f in workload("matmul").functions.values() if isinstance(f, tirx.PrimFunc))
    func, rule = schedule_function(matmul, hw)
    loops = analysis.find(tirx.For, func.body)
    lanes = {int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED}
    assert rule == "contraction"
    assert lanes == {hw.lanes("float32")}


@pytest.mark.parametrize(
    "name", ["conv3x3", "dense", "depthwise", "large elementwise", "max pool", "transpose", "concat"]
)
def test_the_loops_are_vectorised(name):
    kinds = _loop_kinds(name)
    assert tirx.ForKind.VECTORIZED in kinds


@pytest.mark.parametrize("name", ["large softmax", "large layer norm", "large mean"])
def test_every_loop_nest_of_a_large_reduction_is_parallel(name):
    func = next(f for f in workload(name).functions.values() if isinstance(f, tirx.PrimFunc))
    scheduled, _ = schedule_function(func, NATIVE.hardware)
    outermost = [stmt for stmt in _nests(scheduled) if int(stmt.extent) > 1]
    assert len(outermost) >= 1
    assert all(stmt.kind == tirx.ForKind.PARALLEL for stmt in outermost if _points(stmt) >= 1 << 14)


def _nests(func) -> list:
    """The outermost loops of a function."""
    loops = analysis.find(tirx.For, func.body)
    inner = [loop for outer in loops for loop in analysis.find(tirx.For, outer.body)]
    return [loop for loop in loops if not any(loop.same_as(other) for other in inner)]


def _points(loop) -> int:
    """Iterations of the deepest path through a nest."""
    inner = analysis.find(tirx.For, loop.body)
    return int(loop.extent) * max((_points(other) for other in inner), default=1)


@pytest.mark.parametrize(
    "name, parallel",
    [
        ("conv3x3", True),
        ("large elementwise", True),
        ("large transpose", True),
        ("transpose", False),
        ("dense", False),
    ],
)
def test_threads_are_woken_for_enough_work_only(name, parallel):
    assert (tirx.ForKind.PARALLEL in _loop_kinds(name)) == parallel


def _loop_kinds(name: str) -> set[int]:
    module = workload(name)
    func = next(f for f in module.functions.values() if isinstance(f, tirx.PrimFunc))
    scheduled, rule = schedule_function(func, NATIVE.hardware)
    assert rule != UNSCHEDULED
    return {loop.kind for loop in analysis.find(tirx.For, scheduled.body)}


def test_constant_weights_are_packed_at_compile_time():
    module = workload("conv3x3")
    scheduled, _ = schedule_and_pack(module, NATIVE.hardware, NATIVE.tvm)
    call = lower.find_calls(scheduled)[0]
    weight = next(arg for arg in call.args[1].fields if isinstance(arg, GenericConst) and arg.ty.ndim == 5)
    assert int(weight.ty.shape.values[-1]) % NATIVE.hardware.lanes("float32") == 0
    assert [param.name for param in scheduled["main"].params] == ["x"]


def test_a_function_no_rule_understands_is_left_alone():
    x = tvm.te.placeholder((8,), name="x")
    func = tvm.te.create_prim_func([x, topi.sort(x)])
    same, rule = schedule_function(func, NATIVE.hardware)
    assert rule == UNSCHEDULED
    assert same.same_as(func)
