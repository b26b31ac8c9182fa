"""Default schedules of functions that move data, or keep channels apart, for every type of element."""

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tpo.schedule import schedule_function
from tpo.targets import resolve

NATIVE = resolve("native", threads=2)
TYPES = ["float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool"]


def run(tensors: list, *arrays: np.ndarray) -> tuple[np.ndarray, str]:
    """What the default schedule of a function computes, and the rule that made it."""
    func, rule = schedule_function(
        te.create_prim_func(tensors, index_dtype_override="int64"), NATIVE.hardware
    )
    out = tensors[-1]
    result = np.empty([int(dim) for dim in out.shape], str(out.dtype))
    arguments = [tvm.runtime.tensor(array) for array in (*arrays, result)]
    tvm.tirx.build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), NATIVE.tvm)["main"](
        *arguments
    )
    return arguments[-1].numpy(), rule


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(64, 48), (31, 128), (67, 29)])
def test_transpose(shape, dtype):
    data, array = te.placeholder(shape, dtype), numbers(shape, dtype)
    got, rule = run([data, topi.transpose(data)], array)
    assert rule == "transpose"
    np.testing.assert_array_equal(got, array.T)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("widths", [(64, 32), (5, 12), (3, 1)])
def test_concat(widths, dtype):
    arrays = [numbers((9, width), dtype) for width in widths]
    data = [te.placeholder(array.shape, dtype, name=f"data{k}") for k, array in enumerate(arrays)]
    got, rule = run([*data, topi.concatenate(data, axis=1)], *arrays)
    assert rule == "concat"
    np.testing.assert_array_equal(got, np.concatenate(arrays, axis=1))


@pytest.mark.parametrize("channels", [1, 20, 64])
@pytest.mark.parametrize("dtype, sums", [("float64", "float64"), ("float32", "float32"), ("int8", "int32")])
def test_depthwise(channels, dtype, sums):
    data = te.placeholder((1, 8, 9, channels), dtype, name="data")
    weight = te.placeholder((3, 3, channels, 1), dtype, name="weight")
    arrays = [numbers((1, 8, 9, channels), dtype), numbers((3, 3, channels, 1), dtype)]
    got, rule = run(
        [data, weight, topi.nn.depthwise_conv2d_nhwc(data, weight, 1, 1, 1, out_dtype=sums)], *arrays
    )
    padded = np.pad(arrays[0].astype(sums), ((0, 0), (1, 1), (1, 1), (0, 0)))
    weights = arrays[1].astype(sums)[..., 0]
    want = sum(padded[:, y : y + 8, x : x + 9] * weights[y, x] for y in range(3) for x in range(3))
    assert channels == 1 or rule == "depthwise"
    np.testing.assert_array_equal(got, want)
