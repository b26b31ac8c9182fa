"""Floats to integers without the instruction: the same numbers as numpy, for every float there is."""

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx

from tpo import conversions
from tpo.conversions import is_whole, largest, without_truncation

EDGES = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    0.99999994,
    -1.0,
    1.5,
    -2.5,
    2**23 - 0.5,
    2**24 + 2,
    -(2**30),
    2**31 - 128,
    -(2**31) + 128,
    1e-40,
]


def converted(values: np.ndarray, dtype: str, prepare=lambda x: x) -> np.ndarray:
    """What the function computes that casts each value, after it was rewritten."""
    x = te.placeholder(values.shape, "float32", "x")
    y = te.compute(values.shape, lambda i: tirx.Cast(dtype, prepare(x[i])), "y")
    func = without_truncation(te.create_prim_func([x, y]))
    assert 'T.Cast("int32", T.round' not in func.script()
    out = tvm.runtime.empty(values.shape, dtype)
    tvm.compile(tvm.IRModule({"main": func}), {"kind": "llvm"})["main"](tvm.runtime.tensor(values), out)
    return out.numpy()


def test_the_whole_part_is_what_numpy_says():
    rng = np.random.default_rng(0)
    values = np.concatenate([EDGES, rng.uniform(-(2.0**31), 2.0**31, 4000), rng.uniform(-300, 300, 4000)])
    values = np.clip(values, -(2.0**31), 2.0**31 - 128).astype(np.float32)
    np.testing.assert_array_equal(converted(values, "int32"), values.astype(np.int32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_rounded_and_clipped_numbers_are_exact(dtype):
    limits = np.iinfo(dtype)
    values = np.random.default_rng(1).uniform(limits.min - 50, limits.max + 50, 5000).astype(np.float32)

    def prepare(x):
        low, high = (tirx.const(float(edge), "float32") for edge in (limits.min, limits.max))
        return tirx.max(tirx.min(tirx.round(x), high), low)

    found = converted(values, dtype, prepare)
    expected = np.clip(np.round(values), limits.min, limits.max).astype(dtype)
    # What TVM's round does with halves is its own affair; random floats are none.
    np.testing.assert_array_equal(found, expected)


@given(st.floats(-(2.0**21), 2.0**21, width=32), st.floats(-(2.0**21), 2.0**21, width=32))
def test_ranges_hold(low, high):
    x = tirx.Var("x", "float32")
    bounded = tirx.max(tirx.min(x, tirx.const(high, "float32")), tirx.const(low, "float32"))
    assert largest(bounded) == max(abs(low), abs(max(low, high)))
    assert largest(x) == float("inf")


def test_only_what_is_certain_counts_as_whole():
    x = tirx.Var("x", "float32")
    two, half = tirx.const(2.0, "float32"), tirx.const(0.5, "float32")
    assert is_whole(tirx.round(x) + two) and is_whole(tirx.Cast("float32", tirx.Var("n", "int32")))
    assert not is_whole(x) and not is_whole(tirx.round(x) + half) and not is_whole(tirx.round(x) / two)
    assert conversions.EXACT == 2**22
