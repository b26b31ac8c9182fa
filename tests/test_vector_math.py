"""Vector exp, tanh, erf and sigmoid: as exact as float32 allows, everywhere, and without library calls."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from tvm import s_tir, te, tirx

from tpo import vector_math
from tpo.targets import resolve

SIZE = 1 << 12
REFERENCES = {
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": special.erf,
    "sigmoid": special.expit,
}


@pytest.fixture(scope="module")
def kernels():
    """Compiled functions of SIZE elements, vectorised as elementwise schedules are."""
    vector_math.register()
    return {name: _compile(name) for name in REFERENCES}


def _compile(name: str):
    x = te.placeholder((SIZE,), name="x")
    y = te.compute((SIZE,), lambda i: getattr(tirx, name)(x[i]))
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    (loop,) = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[0])
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    return tvm.compile(schedule.mod, resolve("native").tvm)


def run(kernel, values: np.ndarray) -> np.ndarray:
    padded = np.zeros(SIZE, "float32")
    padded[: values.size] = values
    x, y = tvm.runtime.tensor(padded), tvm.runtime.tensor(np.zeros(SIZE, "float32"))
    kernel["main"](x, y)
    return y.numpy()[: values.size]


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("low, high", [(-105, 90), (-12, 12), (-1.5, 1.5), (-1e-3, 1e-3)])
def test_within_a_few_units_in_the_last_place(kernels, name, low, high):
    x = np.linspace(low, high, SIZE).astype("float32")
    with np.errstate(over="ignore"):
        want = REFERENCES[name](x.astype("float64"))
    got = run(kernels[name], x)
    normal = (np.abs(want) > 2e-38) & (np.abs(want) < 3.3e38)
    assert np.max(np.abs(got[normal] - want[normal]) / np.abs(want[normal])) < 4e-7
    np.testing.assert_allclose(got[np.abs(want) <= 2e-38], want[np.abs(want) <= 2e-38], atol=1e-37)


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(kernels, name):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 200.0, -200.0, 88.7, 1e-30, -1e-30], "float32")
    with np.errstate(all="ignore"):
        want = REFERENCES[name](x.astype("float64")).astype("float32")
    np.testing.assert_allclose(run(kernels[name], x), want, rtol=4e-7, atol=1e-37)


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_any_float(kernels, value):
    x = np.array([value], "float32")
    for name, reference in REFERENCES.items():
        with np.errstate(all="ignore"):
            want = reference(x.astype("float64")).astype("float32")
        np.testing.assert_allclose(run(kernels[name], x), want, rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize("name", REFERENCES)
def test_nothing_is_left_to_the_c_library(kernels, name):
    assembly = getattr(kernels[name], "mod", kernels[name]).inspect_source("s")
    calls = {line.split()[-1] for line in assembly.splitlines() if line.strip().startswith(("call", "bl "))}
    assert not [call for call in calls if any(word in call for word in ("exp", "tanh", "erf"))]


def test_other_types_keep_tvms_lowering():
    vector_math.register()
    x = te.placeholder((4,), "float64", name="x")
    kernel = tvm.compile(te.create_prim_func([x, te.compute((4,), lambda i: tirx.exp(x[i]))]), "llvm")
    values = np.array([0.0, 1.0, -700.0, 700.0])
    a, b = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros(4))
    kernel["main"](a, b)
    np.testing.assert_allclose(b.numpy(), np.exp(values), rtol=1e-14)
