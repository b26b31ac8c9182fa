"""Vector exp, log, sigmoid, tanh, erf and rsqrt: a few units in the last place over all of float32."""

import re

import numpy as np
import pytest
import tvm
from scipy import special
from tvm import s_tir, te, tirx

from tpo import vector_math
from tpo.targets import resolve

SIZE = 1 << 20
STRIDE = 211  # a prime: every exponent of either sign is met with 39,755 of its mantissas
TINY = np.finfo(np.float32).tiny
REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "erf": special.erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
# What the module's docstring promises, in units in the last place.
LARGEST_ERROR = {"exp": 1.1, "log": 0.9, "sigmoid": 2.5, "tanh": 1.3, "erf": 2.5, "rsqrt": 1.5}
FLUSHED = ("exp", "sigmoid")  # these give 0 where the exact result would be denormal


def _scheduled(name: str, lanes: int, dtype: str = "float32"):
    """The function over SIZE elements, vectorised as elementwise schedules are."""
    x = te.placeholder((SIZE,), dtype, name="x")
    y = te.compute((SIZE,), lambda i: getattr(tirx, name)(x[i]))
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    (loop,) = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[0])
    schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    return schedule.mod


@pytest.fixture(scope="module")
def kernels():
    vector_math.register()
    target = resolve("native")
    lanes = target.hardware.lanes("float32")
    return {name: tvm.compile(_scheduled(name, lanes), target.tvm) for name in REFERENCES}


def run(kernel, values: np.ndarray) -> np.ndarray:
    padded = np.zeros(SIZE, "float32")
    padded[: values.size] = values
    x, y = tvm.runtime.tensor(padded), tvm.runtime.tensor(np.zeros(SIZE, "float32"))
    kernel["main"](x, y)
    return y.numpy()[: values.size]


def exact(name: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return REFERENCES[name](values.astype("float64"))


def rounded(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype("float32")


def is_denormal(values: np.ndarray) -> np.ndarray:
    return (values != 0) & (np.abs(values) < TINY)


def largest_error(name: str, x: np.ndarray, got: np.ndarray) -> float:
    """Largest error in units in the last place; asserts that what has no such error is right as well."""
    want = exact(name, x)
    nearest = rounded(want)
    flushed = is_denormal(nearest) & (name in FLUSHED)
    assert np.all(got[flushed] == 0)
    special_ones = ~np.isfinite(nearest) | (nearest == 0)
    np.testing.assert_array_equal(got[special_ones], nearest[special_ones])
    np.testing.assert_array_equal(np.signbit(got[nearest == 0]), np.signbit(nearest[nearest == 0]))
    rest = ~special_ones & ~flushed
    units = np.spacing(np.abs(nearest[rest])).astype("float64")
    return float(np.max(np.abs(got[rest] - want[rest]) / units, initial=0.0))


@pytest.mark.parametrize("name", REFERENCES)
def test_errors_over_the_whole_float_range(kernels, name):
    """Every exponent, both signs, all denormals and NaNs by the same stride."""
    bits = np.arange(0, 1 << 32, STRIDE, dtype="uint64").astype("uint32")
    worst = 0.0
    for start in range(0, bits.size, SIZE):
        x = bits[start : start + SIZE].view("float32")
        worst = max(worst, largest_error(name, x, run(kernels[name], x)))
    assert worst <= LARGEST_ERROR[name]


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(kernels, name):
    edge = [vector_math.EXP_LOW, vector_math.EXP_HIGH, 1.0, TINY, np.finfo(np.float32).max, 1e-45, 100, 1000]
    edge = np.array(edge, "float32")
    with np.errstate(over="ignore", under="ignore"):
        edge = np.concatenate([edge, *(np.nextafter(edge, np.float32(to)) for to in (0, np.inf))])
    x = np.concatenate([edge, -edge, np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], "float32")])
    assert largest_error(name, x, run(kernels[name], x)) <= LARGEST_ERROR[name]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("name", REFERENCES)
def test_code_is_made_of_vector_instructions(name, target):
    vector_math.register()
    resolved = resolve(target)
    module = _scheduled(name, resolved.hardware.lanes("float32"))
    assembly = tvm.tirx.build(module, target=resolved.tvm).inspect_source("asm")
    kernel = assembly[assembly.index("\nmain_compute_:") :].partition(".cfi_endproc")[0]
    assert not re.search(r"^\s+(callq?|blr?|jmpq?|b)\s+[^.]", kernel, re.MULTILINE), "it calls something"
    assert "gather" not in kernel
    register = {"x86-64-v3": r"%ymm\d", "x86-64-v4": r"%zmm\d", "aarch64": r"v\d+\.4s"}[target]
    assert len(re.findall(register, kernel)) > 3


@pytest.mark.parametrize("dtype, tolerance", [("float16", 1e-3), ("float64", 1e-14)])
@pytest.mark.parametrize("name", REFERENCES)
def test_other_types(name, dtype, tolerance):
    """float16 is computed in float32, float64 by the C library."""
    vector_math.register()
    kernel = tvm.compile(_scheduled(name, 4, dtype), "llvm")
    values = np.linspace(0.1, 9, SIZE).astype(dtype)
    a, b = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros(SIZE, dtype))
    kernel["main"](a, b)
    np.testing.assert_allclose(b.numpy(), exact(name, values), rtol=tolerance)
