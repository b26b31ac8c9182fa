"""Transposed convolutions phase by phase: numbers against numpy, and what they are not for."""

import math

import numpy as np
import pytest
import tvm
from tvm import te, topi

from support.rule_cases import case
from tpo.lang import Declined, analysis, apply_rule
from tpo.lang.library import shipped_rule
from tpo.measure.kernels import Kernel
from tpo.measure.packing import split_kernel, written_parameters
from tpo.schedule import schedule_function
from tpo.targets import resolve
from tpo.workload import Workload, schedule_of

NATIVE = resolve("native")
RULE = shipped_rule("transposed_convolution")


def transposed(height, width, channels, filters, kernel, stride, offset, constant=True):
    """A transposed convolution of any stride, without an epilogue; `offset` is where its grid begins."""
    data = te.placeholder((1, height, width, channels), name="data")
    weight = te.placeholder((kernel, kernel, channels, filters), name="weight")
    around = -(-kernel // stride)
    padded = topi.nn.pad(data, (0, around, around, 0), (0, around, around, 0))
    r, s, c = (te.reduce_axis((0, size)) for size in (kernel, kernel, channels))

    def product(n, y, x, o):
        on_grid = te.all((y + r + offset) % stride == 0, (x + s + offset) % stride == 0)
        place = padded[n, (y + r + offset) // stride, (x + s + offset) // stride, c]
        return te.sum(te.if_then_else(on_grid, place, 0.0) * weight[r, s, c, o], axis=[r, s, c])

    made = te.compute((1, stride * height, stride * width, filters), product, name="transposed")
    func = te.create_prim_func([data, weight, made], index_dtype_override="int64")
    return Workload.of(func.with_attr("layout_free_buffers", [1] if constant else []))


def expected(data, weight, stride, offset):
    """Every product that is not with a zero, one by one of the window, in float64."""
    _, height, width, _ = data.shape
    kernel = weight.shape[0]
    around = -(-kernel // stride)
    padded = np.pad(data.astype("float64"), ((0, 0), (around, around), (around, around), (0, 0)))
    grid = np.zeros((1, *(stride * size for size in padded.shape[1:3]), data.shape[3]))
    grid[:, ::stride, ::stride] = padded
    return sum(
        grid[:, r + offset : r + offset + stride * height, s + offset : s + offset + stride * width]
        @ weight[r, s].astype("float64")
        for r in range(kernel)
        for s in range(kernel)
    )


@pytest.mark.parametrize("kernel, stride, offset", [(4, 2, 0), (4, 2, 1), (3, 3, 1), (6, 3, 2), (2, 2, 0)])
@pytest.mark.parametrize("constant", [True, False])
def test_every_way_computes_the_sum(kernel, stride, offset, constant):
    workload = transposed(3, 5, 8, 32, kernel, stride, offset, constant)
    rng = np.random.default_rng(1)
    data = rng.standard_normal((1, 3, 5, 8)).astype("float32")
    weight = rng.standard_normal((kernel, kernel, 8, 32)).astype("float32")
    want = expected(data, weight, stride, offset)
    sch = schedule_of(workload.module)
    ways = apply_rule(RULE, sch, sch.get_sblock("root"), NATIVE.hardware)
    for way in ways:
        func = way.sch.mod["main"]
        built = Kernel(split_kernel(func, written_parameters(func)), "", NATIVE.tvm)
        (packed,) = built.pack([weight]) if constant else [weight]
        result = tvm.runtime.tensor(np.full(want.shape, np.nan, "float32"))
        built.function(tvm.runtime.tensor(data), tvm.runtime.tensor(packed), result)
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-4, atol=1e-4, err_msg=way.label)


def test_nothing_is_multiplied_by_zeros():
    """The product of a 4x4 window with stride 2 meets a quarter of the weights for every output."""
    sch = schedule_of(case("transposed_convolution").workload.module)
    whole = math.prod(analysis.iter_extents(sch, sch.get_sblock("transposed")))
    (way, *_) = apply_rule(RULE, sch, sch.get_sblock("root"), NATIVE.hardware)
    program = schedule_of(way.program.module)
    assert whole == 4 * math.prod(analysis.iter_extents(program, program.get_sblock("product")))


def test_it_is_the_default_of_such_functions():
    _, rule = schedule_function(case("transposed_convolution").workload.func, NATIVE.hardware)
    assert rule == "transposed_convolution"


@pytest.mark.parametrize(
    "workload",
    [
        transposed(4, 4, 8, 16, kernel=3, stride=2, offset=0),
        case("winograd").workload,
        case("row_passes").workload,
        case("reduction").workload,
    ],
    ids=["a window the stride does not divide", "a plain convolution", "softmax", "pooling"],
)
def test_it_declines_what_it_is_not_for(workload):
    sch = schedule_of(workload.module)
    with pytest.raises(Declined):
        apply_rule(RULE, sch, sch.get_sblock("root"), NATIVE.hardware)
