"""One small workload for every rule of `schedule_rules/cpu`, whole vectors on all targets, and in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from tpo.workload import Workload

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A workload, random arguments for it (the output is NaN), and what the output should be."""

    workload: Workload
    arguments: list[Array]
    want: Array


def conv2d(data: Any, weight: Any) -> Any:
    return topi.nn.relu(topi.nn.conv2d_nhwc(data, weight, 1, 1, 1))


def numpy_conv2d(data: Array, weight: Array) -> Array:
    return np.maximum(sum(at @ weight[r, s] for r, s, at in windows(data, 0)), 0)


def grouped_conv2d(data: Any, weight: Any) -> Any:
    return topi.nn.relu(topi.nn.group_conv2d_nhwc(data, weight, 1, 0, 1, 2))


def numpy_grouped_conv2d(data: Array, weight: Array) -> Array:
    halves = zip(np.split(data, 2, axis=3), np.split(weight[0, 0], 2, axis=1), strict=True)
    return np.maximum(np.concatenate([part @ matrix for part, matrix in halves], axis=3), 0)


def depthwise(data: Any, weight: Any) -> Any:
    return topi.nn.relu(topi.nn.depthwise_conv2d_nhwc(data, weight, 1, 1, 1))


def numpy_depthwise(data: Array, weight: Array) -> Array:
    return np.maximum(sum(at * weight[r, s, :, 0] for r, s, at in windows(data, 0)), 0)


def transposed_conv2d(data: Any, weight: Any) -> Any:
    """As TVM writes it down: pixels between pixels are zero by a condition; 4x4, stride 2, padded by one."""
    padded = topi.nn.pad(data, (0, 1, 1, 0), (0, 1, 1, 0))
    batch, height, width, channels = (int(dim) for dim in data.shape)
    r, s, c = (te.reduce_axis((0, size)) for size in (4, 4, channels))

    def product(n: Any, y: Any, x: Any, o: Any) -> Any:
        on_grid = te.all((y + r) % 2 == 0, (x + s) % 2 == 0)
        pixel = te.if_then_else(on_grid, padded[n, (y + r) // 2, (x + s) // 2, c], 0.0)
        return te.sum(pixel * weight[3 - r, 3 - s, c, o], axis=[r, s, c])

    shape = (batch, 2 * height, 2 * width, int(weight.shape[3]))
    return topi.nn.relu(te.compute(shape, product, name="transposed"))


def numpy_transposed_conv2d(data: Array, weight: Array) -> Array:
    batch, height, width, _ = data.shape
    whole = np.zeros((batch, 2 * height + 2, 2 * width + 2, weight.shape[3]), data.dtype)
    for r in range(4):
        for s in range(4):
            whole[:, r : r + 2 * height : 2, s : s + 2 * width : 2] += data @ weight[r, s]
    return np.maximum(whole[:, 1:-1, 1:-1], 0)


def pool(data: Any) -> Any:
    return topi.nn.pool2d(data, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")


def numpy_pool(data: Array) -> Array:
    return np.max([at for _, _, at in windows(data, -np.inf)], axis=0)


def windows(data: Array, outside: float) -> list[tuple[int, int, Array]]:
    """The nine positions of a 3x3 window, and what all its pixels have there, in padded data."""
    _, height, width, _ = data.shape
    inside = np.pad(data, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=outside)
    return [(r, s, inside[:, r : r + height, s : s + width]) for r in range(3) for s in range(3)]


def matmul(left: Any, right: Any) -> Any:
    return topi.nn.relu(topi.nn.matmul(left, right))


def numpy_matmul(left: Array, right: Array) -> Array:
    return np.maximum(left @ right, 0)


def softmax(data: Array) -> Array:
    exp = np.exp(data - data.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def attention(query: Any, key: Any, value: Any) -> Any:
    scores = topi.multiply(topi.nn.batch_matmul(query, key), tirx.const(0.25, "float32"))
    return topi.nn.batch_matmul(topi.nn.softmax(scores, axis=-1), value, transpose_b=False)


def numpy_attention(query: Array, key: Array, value: Array) -> Array:
    return softmax(query @ key.swapaxes(-1, -2) * 0.25) @ value


# rule -> (shapes of the inputs, what is computed, the same in numpy, which inputs are constants)
_CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Array], list[int]]] = {
    "attention": ([(2, 30, 64), (2, 160, 64), (2, 160, 32)], attention, numpy_attention, []),
    "winograd": ([(1, 14, 14, 16), (3, 3, 16, 32)], conv2d, numpy_conv2d, [1]),
    "transposed_convolution": (
        [(1, 4, 6, 32), (4, 4, 32, 64)],
        transposed_conv2d,
        numpy_transposed_conv2d,
        [1],
    ),
    "contraction": ([(96, 64), (64, 192)], matmul, numpy_matmul, [1]),
    "clamped_contraction": ([(53, 64), (64, 192)], matmul, numpy_matmul, [1]),
    "padded_contraction": ([(17, 31), (31, 40)], matmul, numpy_matmul, [1]),
    "grouped_contraction": (
        [(1, 7, 7, 68), (1, 1, 34, 68)],
        grouped_conv2d,
        numpy_grouped_conv2d,
        [1],
    ),
    "depthwise": ([(1, 14, 14, 32), (3, 3, 32, 1)], depthwise, numpy_depthwise, [1]),
    "transpose": ([(64, 96)], topi.transpose, np.transpose, []),
    "concat": (
        [(1, 6, 7, 64), (1, 6, 7, 32)],
        lambda a, b: topi.concatenate([topi.nn.relu(a), b], axis=3),
        lambda a, b: np.concatenate([np.maximum(a, 0), b], axis=3),
        [],
    ),
    "elementwise": (
        [(1, 32, 32, 48)],
        lambda x: topi.multiply(topi.sigmoid(x), x),
        lambda x: x / (1 + np.exp(-x)),
        [],
    ),
    "row_passes": ([(16, 128)], lambda x: topi.nn.softmax(x, axis=-1), softmax, []),
    "reduction": ([(1, 15, 15, 32)], pool, numpy_pool, []),
}
RULES = tuple(_CASES)


@cache
def case(rule: str) -> Case:
    """The case of a rule, one of `RULES`."""
    shapes, compute, reference, constants = _CASES[rule]
    inputs = [te.placeholder(shape, name=f"p{k}") for k, shape in enumerate(shapes)]
    func = te.create_prim_func([*inputs, compute(*inputs)], index_dtype_override="int64")
    if constants:
        func = func.with_attr("layout_free_buffers", constants)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    want = reference(*(array.astype("float64") for array in arrays))
    return Case(Workload.of(func), [*arrays, np.full(want.shape, np.nan, "float32")], want)
