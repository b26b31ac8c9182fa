"""Contractions of small integers are exact, whatever the sizes, the values and the instructions."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tpo.hardware import Hardware
from tpo.lang import Declined, apply_rule
from tpo.lang.library import shipped_rule
from tpo.measure.kernels import Kernel
from tpo.measure.packing import split_kernel, written_parameters
from tpo.schedule import dot_products, schedule_function
from tpo.targets import resolve
from tpo.testing.rules import RuleContract
from tpo.workload import schedule_of

RULE = shipped_rule("int8_contraction")


def with_features(base: str, *features: str):
    """A preset with more features, and whether this machine can run code for it."""
    target = resolve(base)
    config = {**dict(target.tvm.attrs), "kind": "llvm", "mattr": [f"+{name}" for name in features]}
    made = tvm.target.Target({key: config[key] for key in ("kind", "mcpu", "mtriple", "num-cores", "mattr")})
    hardware = Hardware.from_target(made)
    runs = target.native and set(features) <= resolve("native").hardware.features
    return replace(target, tvm=made, hardware=hardware, native=runs)


TARGETS = {
    "v2": resolve("x86-64-v2"),
    "v3": resolve("x86-64-v3"),
    "v3 with VNNI": with_features("x86-64-v3", "avxvnni"),
    "v4": resolve("x86-64-v4"),
    "v4 with VNNI": with_features("x86-64-v4", "avx512vnni"),
}
RUNNABLE = [name for name, target in TARGETS.items() if target.native]
DOT = {
    "v2": "pmaddwd",
    "v3": "vpmaddwd",
    "v3 with VNNI": "vpdpbusd",
    "v4": "vpmaddwd",
    "v4 with VNNI": "vpdpbusd",
}
REGISTER = {"v2": "%xmm", "v3": "%ymm", "v3 with VNNI": "%ymm", "v4": "%zmm", "v4 with VNNI": "%zmm"}
TYPES = [("uint8", "int8"), ("int16", "int16")]


def matmul(rows, columns, depth, data="uint8", weights="int8"):
    a = te.placeholder((rows, depth), data, name="a")
    b = te.placeholder((depth, columns), weights, name="b")
    k = te.reduce_axis((0, depth), "k")
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k), name="c"
    )
    return function([a, b, product])


def function(tensors, constant=1):
    func = te.create_prim_func(tensors, index_dtype_override="int64")
    return func.with_attr("layout_free_buffers", [constant])


def every_schedule(func, target):
    sch = schedule_of(tvm.IRModule({"main": func}))
    return apply_rule(RULE, sch, sch.get_sblock("root"), target.hardware)


def run(func, target, *inputs):
    """What a scheduled function computes of its inputs, the constant one packed first."""
    split = split_kernel(func, written_parameters(func))
    kernel = Kernel(split, "", target.tvm)
    values = list(inputs)
    if split.packed:
        for k, packed in zip(split.packed, kernel.pack([inputs[k] for k in split.packed]), strict=True):
            values[k] = packed
    shape, dtype = func.params[-1].shape, str(func.params[-1].dtype)
    tensors = [tvm.runtime.tensor(value) for value in [*values, np.zeros([int(n) for n in shape], dtype)]]
    kernel.function(*tensors)
    return tensors[-1].numpy()


def extremes(shape, dtype, rng):
    """Random numbers, half of them the smallest or the largest there are."""
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -255), min(limits.max, 255)
    ends = rng.choice(np.array([low, high]), shape)
    return np.where(rng.random(shape) < 0.5, ends, rng.integers(low, high + 1, shape)).astype(dtype)


SIZES = [(1, 16, 4), (7, 10, 33), (48, 64, 32), (13, 100, 27), (5, 33, 130), (3, 8, 2)]


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("types", TYPES, ids="x".join)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_schedules_of_a_product_are_exact(name, types, size):
    target = TARGETS[name]
    rows, columns, depth = size
    rng = np.random.default_rng(0)
    a, b = extremes((rows, depth), types[0], rng), extremes((depth, columns), types[1], rng)
    for applied in every_schedule(matmul(*size, *types), target)[::3]:
        got = run(applied.sch.mod["main"], target, a, b)
        np.testing.assert_array_equal(got, a.astype("int32") @ b.astype("int32"), str(applied.label))


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("value", [-128, 127])
def test_nothing_saturates(name, value):
    """255 times -128, thousands of times: 16 bits would not hold two of these products."""
    a, b = np.full((6, 4096), 255, "uint8"), np.full((4096, 32), value, "int8")
    target = TARGETS[name]
    (applied, *_) = every_schedule(matmul(6, 32, 4096), target)
    assert np.all(run(applied.sch.mod["main"], target, a, b) == 255 * value * 4096)


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("channels, filters, size, stride", [(16, 32, 9, 1), (3, 24, 13, 2), (8, 10, 7, 1)])
def test_a_convolution_with_its_epilogue(name, channels, filters, size, stride):
    target = TARGETS[name]
    data = te.placeholder((1, size, size, channels), "uint8", name="data")
    weight = te.placeholder((3, 3, channels, filters), "int8", name="weight")
    bias = te.placeholder((filters,), "int32", name="bias")
    total = topi.nn.conv2d_nhwc(data, weight, stride, 1, 1, out_dtype="int32")
    biased = te.compute(total.shape, lambda n, h, w, c: total[n, h, w, c] + bias[c])
    scaled = topi.round(topi.multiply(topi.cast(biased, "float32"), 0.013))
    result = topi.cast(topi.clip(topi.add(scaled, 100.0), 0.0, 255.0), "uint8")
    func = function([data, weight, bias, result])
    scheduled, rule = schedule_function(func, target.hardware)
    assert rule == "int8_contraction"
    rng = np.random.default_rng(1)
    inputs = [extremes([int(n) for n in t.shape], str(t.dtype), rng) for t in (data, weight, bias)]
    np.testing.assert_array_equal(run(scheduled, target, *inputs), run(func, target, *inputs))


@pytest.mark.parametrize("name", TARGETS)
def test_the_code_has_the_instruction(name):
    target = TARGETS[name]
    scheduled, rule = schedule_function(matmul(48, 64, 64), target.hardware)
    assert rule == "int8_contraction"
    assembly = tvm.tirx.build(tvm.IRModule({"main": scheduled}), target=target.tvm).inspect_source("asm")
    used = [line for line in assembly.splitlines() if DOT[name] in line.split()[:2]]  # perhaps after {vex}
    assert len(used) > 10
    assert all(REGISTER[name] in line for line in used)


def test_words_are_multiplied_and_added_at_once_where_there_is_vnni():
    target = TARGETS["v4 with VNNI"]
    scheduled, _ = schedule_function(matmul(48, 64, 64, "int16", "int16"), target.hardware)
    module = tvm.IRModule({"main": scheduled})
    assert "vpdpwssd" in tvm.tirx.build(module, target=target.tvm).inspect_source("asm")


@pytest.mark.parametrize("types", [("uint8", "uint8"), ("int8", "int8"), ("int8", "uint8")])
def test_types_without_an_instruction_are_left_to_others(types):
    with pytest.raises(Declined, match="no instruction"):
        every_schedule(matmul(16, 32, 8, *types), TARGETS["v3"])
    assert schedule_function(matmul(16, 32, 8, *types), TARGETS["v3"].hardware)[1] != "int8_contraction"


def test_other_architectures_are_left_to_others():
    with pytest.raises(Declined, match="no instruction"):
        every_schedule(matmul(16, 32, 8), resolve("aarch64"))


def test_a_name_says_what_the_instruction_takes():
    (widest, *_) = dot_products.for_types("uint8", "int8", vnni=True, lanes=16)
    assert widest.name == "tpo.dot.uint8.int8.16x4"


class TestContract(RuleContract):
    rule = RULE
