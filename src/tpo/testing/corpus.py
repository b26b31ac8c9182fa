"""Small workloads of every kind a schedule rule may meet, with sizes that divide well and that do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import te, topi
from tvm.s_tir.meta_schedule.testing import te_workload as paper

from tpo.hardware import Hardware
from tpo.targets import Target
from tpo.workload import Workload, schedule_of

Tensors = list[Any]


def _matmul(rows: int, columns: int, depth: int) -> Callable[[], Tensors]:
    def make() -> Tensors:
        left, right = (
            te.placeholder((rows, depth), name="left"),
            te.placeholder((depth, columns), name="right"),
        )
        bias = te.placeholder((columns,), name="bias")
        axis = te.reduce_axis((0, depth), name="k")
        product = te.compute(
            (rows, columns), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), name="matmul"
        )
        return [
            left,
            right,
            bias,
            topi.nn.relu(te.compute((rows, columns), lambda i, j: product[i, j] + bias[j], name="add")),
        ]

    return make


def _typed_matmul(rows: int, columns: int, depth: int, operand: str, total: str) -> Callable[[], Tensors]:
    def make() -> Tensors:
        left = te.placeholder((rows, depth), dtype=operand, name="left")
        right = te.placeholder((depth, columns), dtype=operand, name="right")
        axis = te.reduce_axis((0, depth), name="k")

        def element(i: Any, j: Any) -> Any:
            return te.sum(left[i, axis].astype(total) * right[axis, j].astype(total), axis=axis)

        return [left, right, te.compute((rows, columns), element, name="matmul")]

    return make


def _conv_of_halves() -> Tensors:
    data = te.placeholder((1, 9, 9, 24), dtype="float16", name="data")
    weight = te.placeholder((3, 3, 24, 40), dtype="float16", name="weight")
    return [data, weight, topi.nn.relu(topi.nn.conv2d_nhwc(data, weight, 1, 1, 1, out_dtype="float32"))]


def _batch_matmul(rows: int, columns: int, depth: int, transposed: bool = False) -> Callable[[], Tensors]:
    def make() -> Tensors:
        left = te.placeholder((4, rows, depth), name="left")
        right = te.placeholder((4, columns, depth) if transposed else (4, depth, columns), name="right")
        return [left, right, topi.nn.batch_matmul(left, right, transpose_b=transposed)]

    return make


def _dense_int8() -> Tensors:
    left = te.placeholder((24, 64), dtype="uint8", name="left")
    right = te.placeholder((32, 64), dtype="int8", name="right")
    axis = te.reduce_axis((0, 64), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(left[i, axis].astype("int32") * right[j, axis].astype("int32"), axis=axis)

    return [left, right, te.compute((24, 32), element, name="dense")]


def _conv2d(size: int, channels: int, filters: int, kernel: int, stride: int) -> Callable[[], Tensors]:
    def make() -> Tensors:
        data = te.placeholder((1, size, size, channels), name="data")
        weight = te.placeholder((kernel, kernel, channels, filters), name="weight")
        conv = topi.nn.conv2d_nhwc(data, weight, stride, kernel // 2, 1)
        return [data, weight, topi.nn.relu(conv)]

    return make


def _depthwise(
    size: int, channels: int, kernel: int = 3, stride: int = 1, dilation: int = 1, dtype: str = "float32"
) -> Callable[[], Tensors]:
    def make() -> Tensors:
        data = te.placeholder((1, size, size, channels), name="data", dtype=dtype)
        weight = te.placeholder((kernel, kernel, channels, 1), name="weight", dtype=dtype)
        padding = dilation * (kernel // 2)
        accumulated = "int32" if dtype == "int8" else dtype
        conv = topi.nn.depthwise_conv2d_nhwc(data, weight, stride, padding, dilation, out_dtype=accumulated)
        return [data, weight, topi.nn.relu(conv)]

    return make


def _concat(*channels: int) -> Callable[[], Tensors]:
    def make() -> Tensors:
        data = [te.placeholder((1, 6, 7, count), name=f"data{k}") for k, count in enumerate(channels)]
        return [*data, topi.concatenate([topi.nn.relu(data[0]), *data[1:]], axis=3)]

    return make


def _pool(kind: str, size: int, channels: int, stride: int) -> Callable[[], Tensors]:
    def make() -> Tensors:
        data = te.placeholder((1, size, size, channels), name="data")
        steps = ((3, 3), (stride, stride), (1, 1), (1, 1, 1, 1))
        return [data, topi.nn.pool2d(data, *steps, kind, layout="NHWC", count_include_pad=False)]

    return make


def _unary(function: Callable[[Any], Any], *shape: int) -> Callable[[], Tensors]:
    def make() -> Tensors:
        data = te.placeholder(shape, name="data")
        return [data, function(data)]

    return make


def _layer_norm(length: int) -> Callable[[], Tensors]:
    def make() -> Tensors:
        data = te.placeholder((9, length), name="data")
        scale, shift = (te.placeholder((length,), name=name) for name in ("scale", "shift"))
        return [data, scale, shift, topi.nn.layer_norm(data, scale, shift, [1], 1e-5)]

    return make


# name -> (what computes it, which parameters are constants of the model)
_MAKERS: dict[str, tuple[Callable[[], Tensors], tuple[int, ...]]] = {
    "matmul": (_matmul(48, 64, 32), (1,)),
    "matmul of primes": (_matmul(17, 40, 31), (1,)),
    "matmul of 53 rows": (_matmul(53, 64, 24), (1,)),
    "batch matmul": (_batch_matmul(17, 24, 32), ()),
    "batch matmul of rows": (_batch_matmul(24, 32, 16, transposed=True), ()),
    "batch matmul of primes": (_batch_matmul(37, 29, 13, transposed=True), ()),
    "int8 dense": (_dense_int8, (1,)),
    "conv 3x3": (_conv2d(14, 16, 32, 3, 1), (1,)),
    "conv 1x1": (_conv2d(7, 32, 48, 1, 1), (1,)),
    "conv strided": (_conv2d(15, 3, 24, 3, 2), (1,)),
    "conv of a signal": (lambda: list(paper.conv1d_nlc(1, 30, 16, 32, 3, 1, 1)), (1,)),
    "conv grouped": (lambda: list(paper.conv2d_nhwc(1, 9, 9, 32, 64, 3, 1, 1, groups=2)), (1,)),
    "conv grouped of 34": (lambda: list(paper.conv2d_nhwc(1, 7, 7, 68, 68, 1, 1, 0, groups=2)), (1,)),
    "transposed conv": (lambda: list(paper.conv2d_transpose_nhwc(1, 3, 5, 16, 32, 4, 2, 1)), (1,)),
    "depthwise conv": (_depthwise(14, 32), (1,)),
    "depthwise conv strided": (_depthwise(13, 24, kernel=5, stride=2), (1,)),
    "depthwise conv dilated": (_depthwise(11, 20, dilation=2), (1,)),
    "int8 depthwise conv": (_depthwise(9, 48, dtype="int8"), (1,)),
    "max pool": (_pool("max", 15, 32, 2), ()),
    "average pool of odd channels": (_pool("avg", 7, 13, 1), ()),
    "global mean": (_unary(lambda x: topi.sum(x, axis=(1, 2), keepdims=True) / 49.0, 2, 7, 7, 40), ()),
    "softmax": (_unary(lambda x: topi.nn.softmax(x, axis=-1), 12, 100), ()),
    "sum of rows": (_unary(lambda x: topi.sum(x, axis=1), 64, 96), ()),
    "sum of all": (_unary(topi.sum, 33, 65), ()),
    "softmax of 197": (_unary(lambda x: topi.nn.softmax(x, axis=-1), 3, 197), ()),
    "log softmax": (_unary(lambda x: topi.nn.log_softmax(x), 5, 24), ()),
    "maximum of prime rows": (_unary(lambda x: topi.max(x, axis=-1, keepdims=True), 5, 1, 37), ()),
    "sum of a middle axis": (_unary(lambda x: topi.sum(x, axis=1), 3, 13, 20), ()),
    "argmax": (_unary(lambda x: topi.argmax(x, axis=1), 6, 40), ()),
    "layer norm": (_layer_norm(48), ()),
    "layer norm of prime rows": (_layer_norm(37), ()),
    "elementwise": (_unary(lambda x: topi.multiply(topi.sigmoid(x), x), 1, 13, 13, 24), ()),
    "matrix transpose": (_unary(topi.transpose, 40, 72), ()),
    "transpose": (_unary(lambda x: topi.transpose(x, (0, 2, 1)), 4, 20, 36), ()),
    "transpose of primes": (_unary(lambda x: topi.nn.relu(topi.transpose(x, (0, 3, 1, 2))), 1, 7, 5, 19), ()),
    "concat": (_concat(32, 24, 8), ()),
    "concat of odd channels": (_concat(5, 12), ()),
    "pad": (_unary(lambda x: topi.nn.pad(x, (0, 0, 1, 1), (0, 0, 2, 1)), 1, 3, 9, 13), ()),
}
NAMES = tuple(_MAKERS)
# What tensor cores multiply; CPUs have no rules of their own for it.
_MAKERS |= {
    "matmul of halves": (_typed_matmul(48, 64, 32, "float16", "float32"), (1,)),
    "matmul of halves in halves": (_typed_matmul(32, 48, 64, "float16", "float16"), (1,)),
    "matmul of halves of primes": (_typed_matmul(37, 29, 41, "float16", "float32"), (1,)),
    "matmul of bytes": (_typed_matmul(64, 32, 48, "int8", "int32"), (1,)),
    "conv of halves": (_conv_of_halves, (1,)),
}
GPU_NAMES = tuple(_MAKERS)


def names_for(target: Target) -> tuple[str, ...]:
    """The workloads that rules for a target are tried on."""
    return NAMES if target.gpu is None else GPU_NAMES


def example() -> tuple[Any, Any, Hardware]:
    """A schedule of a 16x24 addition, its block and an AVX2 machine: what a rule is called with."""
    left, right = (te.placeholder((16, 24), name=name) for name in ("left", "right"))
    func = te.create_prim_func(
        [left, right, te.compute((16, 24), lambda i, j: left[i, j] + right[i, j], name="add")]
    )
    sch = schedule_of(Workload.of(func).module)
    return sch, sch.get_sblock("add"), Hardware.from_features("example", "x86_64", {"avx2", "fma"})


@cache
def workload(name: str) -> Workload:
    """The workload of a name, one of `NAMES`."""
    maker, constants = _MAKERS[name]
    func = te.create_prim_func(maker(), index_dtype_override="int64")
    return Workload.of(func.with_attr("layout_free_buffers", list(constants)) if constants else func)
