"""exp, log, sigmoid, tanh and erf as arithmetic, so that they are computed in vector registers.

LLVM has no vector exp, log or erf: TVM's lowering calls the C library once per element, even inside a
vectorised loop, which makes a fused SiLU or GELU dearer than the convolution before it. The rules here
replace them for float32. TVM's tanh loses all relative accuracy near zero, this one does not. sqrt and
rsqrt, which TVM makes 1 / sqrt(x), are instructions and need no rule.

Largest errors over the whole float range, on a CPU with FMA, in units in the last place of the exact
result:

    exp 1.1   log 0.9   sigmoid 2.5   tanh 1.3   erf 2.5   rsqrt 1.5

NaN gives NaN, infinities and both zeros give what the C library gives, denormal arguments are not
flushed. Results of exp and sigmoid that would be denormal are 0.

Coefficients are not tabulated but fitted when they are first needed: Chebyshev interpolation in float64
is within a few percent of the best polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from scipy import special
from tvm import tirx
from tvm.ir import Op, register_op_attr

Expr = Any

# Above exp is infinite in float32; below it would be a denormal number, and those are slow.
EXP_LOW, EXP_HIGH = -87.33654, 88.72283
# ln 2 in two parts; the first has so few bits that its product with a whole number below 2^13 is exact.
LN2_UPPER = 355 / 512
LN2_LOWER = math.log(2) - LN2_UPPER
MANTISSA_BITS, EXPONENT_BIAS = 23, 127
# Denormal numbers times this are normal ones.
OUT_OF_DENORMALS = 23
# From there on sigmoid, tanh and erf are 1 in float32.
SIGMOID_HIGH, TANH_HIGH, ERF_HIGH = 20.0, 10.0, 4.0
# Added to a float below 2^22, this rounds it to a whole number, which is then what the last bits say.
ROUNDER = 1.5 * 2**MANTISSA_BITS
MIN_NORMAL = float(np.finfo(np.float32).tiny)
# TVM registers its own rules at level 10.
_LEVEL = 20


@cache
def register() -> None:
    """Use these rules for every LLVM target from now on, in this process."""
    for rule in (exp, log, sigmoid, tanh, erf):
        name = f"tirx.{rule.__name__}"
        lower = _by_type(rule, Op.get(name).get_attr("llvm.FLowerIntrinsic"))
        tirx.register_intrin_lowering(name, target="llvm", f=lower, level=_LEVEL)
    # TVM does not know that these may be computed on vectors, and would take vectorised loops apart.
    for name in ("tirx.erf", "tirx.rsqrt", "tirx.nearbyint"):
        register_op_attr(name, "TVectorizable", True, _LEVEL)


def exp(x: Expr) -> Expr:
    """2^n e^r, with n whole and |r| at most ln(2) / 2.

    n is added to the exponent of e^r, because 2^n alone may overflow where 2^n e^r does not. Nothing limits
    x before: what comes out of too large or too small ones is not used.
    """

    def scaled(bits: Expr, power: Expr) -> Expr:
        exponent = tirx.reinterpret(_dtype(x, "int32"), power) + (bits << MANTISSA_BITS)
        return tirx.reinterpret(str(x.ty.dtype), exponent)

    result = _exp_parts(x, 0, scaled)
    finite = tirx.Select(x < _like(x, EXP_LOW), _like(x, 0.0), result)
    return tirx.Select(x <= _like(x, EXP_HIGH), finite, x + _like(x, math.inf))  # also of NaN


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x); from SIGMOID_HIGH on, e^-x makes no difference and is not made smaller."""
    power = _normal_exp(-tirx.min(_like(x, SIGMOID_HIGH), x))
    result = _like(x, 1.0) / (_like(x, 1.0) + power)
    return tirx.Select(x < _like(x, EXP_LOW), _like(x, 0.0), result)


def log(x: Expr) -> Expr:
    """The logarithm of 2^n (1 + f), with 1 + f between sqrt(1/2) and sqrt(2)."""
    small = x < _like(x, MIN_NORMAL)
    normal = tirx.Select(small, x * _like(x, 2.0**OUT_OF_DENORMALS), x)
    shift = tirx.Select(small, _like(x, -float(OUT_OF_DENORMALS)), _like(x, 0.0))
    # Taking the bits of sqrt(1/2) off makes the exponent step at sqrt(2) instead of at 2.
    half = tirx.const(int(np.float32(math.sqrt(0.5)).view("int32")), _dtype(x, "int32"))
    bits = tirx.reinterpret(_dtype(x, "int32"), normal)

    def result(offset: Expr) -> Expr:
        n = (offset >> MANTISSA_BITS).astype(str(x.ty.dtype)) + shift
        mantissa = offset & ((1 << MANTISSA_BITS) - 1)
        f = tirx.reinterpret(str(x.ty.dtype), mantissa + half) - _like(x, 1.0)
        return _let(n, lambda n: _let(f, lambda f: _log_sum(n, f)))

    finite = _let(bits - half, result)
    at_zero = tirx.Select(x == _like(x, 0.0), _like(x, -math.inf), _like(x, math.nan))
    positive = tirx.Select(x < _like(x, math.inf), finite, x)  # also of NaN
    return tirx.Select(x <= _like(x, 0.0), at_zero, positive)


def _log_sum(n: Expr, f: Expr) -> Expr:
    """The sum n ln 2 + f - f^2 / 2 + f^3 P(f), the smallest parts first."""
    square = f * f
    rest = f * square * _poly(f, log_fit()) + n * _like(f, LN2_LOWER) - square * _like(f, 0.5)
    return rest + f + n * _like(f, LN2_UPPER)


def tanh(x: Expr) -> Expr:
    """Near zero x P(x^2), further out 1 - 2 / (exp(2 x) + 1) with the sign of x."""

    def far(a: Expr) -> Expr:
        return _like(x, 1.0) - _like(x, 2.0) / (_normal_exp(a + a) + _like(x, 1.0))

    return _odd(x, tanh_fit(), far, TANH_HIGH)


def erf(x: Expr) -> Expr:
    """Near zero x P(x^2), further out 1 - 2^Q(x) with the sign of x."""

    def power(v: Expr) -> Expr:
        return _rounded(v, EXPONENT_BIAS, lambda n, bits: _poly(v - n, exp2_fit()) * _power_of_two(bits))

    def far(a: Expr) -> Expr:
        return _like(x, 1.0) - _let(_poly(a, erfc_fit()), power)

    return _odd(x, erf_fit(), far, ERF_HIGH)


def _normal_exp(x: Expr) -> Expr:
    """e^x where neither 2^n nor the result leaves the normal numbers; NaN of NaN."""
    return _exp_parts(x, EXPONENT_BIAS, lambda bits, power: power * _power_of_two(bits))


def _exp_parts(x: Expr, bias: int, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """`combine(bits, e^r)` for x = n ln 2 + r; the last bits of the first are n + `bias`."""

    def parts(n: Expr, bits: Expr) -> Expr:
        r = x - n * _like(x, LN2_UPPER) - n * _like(x, LN2_LOWER)
        return _let(r, lambda v: combine(bits, _poly(v, exp_fit())))

    return _rounded(x * _like(x, 1 / math.log(2)), bias, parts)


def _rounded(x: Expr, bias: int, use: Callable[[Expr, Expr], Expr]) -> Expr:
    """`use(n, bits)` for the whole number n nearest to x; the last bits of the second are n + `bias`.

    Cheaper than to round and to convert, and defined for numbers that no integer has room for.
    """
    shift = _like(x, ROUNDER + bias)
    return _let(x + shift, lambda v: use(v - shift, tirx.reinterpret(_dtype(x, "int32"), v)))


def _odd(x: Expr, near: list[float], far: Callable[[Expr], Expr], high: float) -> Expr:
    """An odd function that is x P(x^2) below 1 and `far(|x|)` from there on, constant from `high` on."""

    def both(a: Expr) -> Expr:
        small = x * _let(a * a, lambda v: _poly(v, near))
        large = _let(far(a), lambda v: tirx.Select(x < _like(x, 0.0), -v, v))
        return tirx.Select(a < _like(x, 1.0), small, large)

    size = tirx.min(tirx.abs(x), _like(x, high))
    return tirx.Select(x == x, _let(size, both), x)


@cache
def exp_fit() -> list[float]:
    """e^r for |r| up to ln(2) / 2, within 3e-9."""
    half = math.log(2) / 2
    return _fit(np.exp, 6, -half, half)


@cache
def log_fit() -> list[float]:
    """(log(1 + f) - f + f^2 / 2) / f^3 for 1 + f from sqrt(1/2) to sqrt(2); what is left of log is 2e-9."""

    def ratio(f: Any) -> Any:
        near = f**0 / 3 - f / 4 + f**2 / 5 - f**3 / 6
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(np.abs(f) < 1e-3, near, (np.log1p(f) - f + f * f / 2) / f**3)

    return _fit(ratio, 8, math.sqrt(0.5) - 1, math.sqrt(2) - 1)


@cache
def erf_fit() -> list[float]:
    """erf(x) / x as a function of x^2 up to 1, within 2e-9."""
    return _fit(lambda u: special.erf(np.sqrt(u)) / np.sqrt(u), 6, 1e-12, 1.0)


@cache
def tanh_fit() -> list[float]:
    """tanh(x) / x as a function of x^2 up to 1, within 3e-9."""
    return _fit(lambda u: np.tanh(np.sqrt(u)) / np.sqrt(u), 7, 1e-12, 1.0)


@cache
def erfc_fit() -> list[float]:
    """The binary logarithm of erfc(x), for x from 1 to 4, within 3e-8."""
    return _fit(lambda a: np.log2(special.erfc(a)), 8, 1.0, ERF_HIGH)


@cache
def exp2_fit() -> list[float]:
    """2^r for |r| up to 1/2, within 2e-7: enough for erfc, which is below 0.16 from 1 on."""
    return _fit(np.exp2, 5, -0.5, 0.5)


def _fit(function: Callable[[Any], Any], degree: int, low: float, high: float) -> list[float]:
    polynomial = Chebyshev.interpolate(function, degree, domain=[low, high]).convert(kind=Polynomial)
    return [float(coefficient) for coefficient in polynomial.coef]


def _by_type(rule: Callable[[Expr], Expr], tvms: Callable[[Expr], Expr] | None) -> Callable[[Expr], Expr]:
    """The rule for float32 and what is smaller; float64 is left to the C library, as TVM has it."""

    def lower(call: Expr) -> Expr:
        (x,) = call.args
        base, _, lanes = str(x.ty.dtype).partition("x")
        if base == "float32":
            return _let(x, rule)
        if base != "float64":
            return _let(x.astype(_dtype(x, "float32")), rule).astype(str(x.ty.dtype))
        if tvms is not None:
            return tvms(call)
        return _lane_by_lane(call, x, int(lanes)) if lanes else call

    return lower


def _lane_by_lane(call: Expr, x: Expr, lanes: int) -> Expr:
    def vector(v: Expr) -> Expr:
        elements = [tirx.call_intrin("float64", call.op, tirx.Shuffle([v], [k])) for k in range(lanes)]
        return tirx.Shuffle(elements, list(range(lanes)))

    return _let(x, vector)


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a name for the value, so that what is used several times is computed once."""
    name = tirx.Var("v", value.ty.dtype)
    return tirx.Let(name, value, body(name))


def _poly(x: Expr, coefficients: list[float]) -> Expr:
    result = _like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * x + _like(x, coefficient)
    return result


def _power_of_two(bits: Expr) -> Expr:
    """2^n, where the last bits are n + EXPONENT_BIAS: they become the exponent of a float."""
    return tirx.reinterpret(_dtype(bits, "float32"), bits << MANTISSA_BITS)


def _like(x: Expr, value: float) -> Expr:
    return tirx.const(value, str(x.ty.dtype))


def _dtype(x: Expr, base: str) -> str:
    """A type with as many lanes as the expression."""
    _, cross, lanes = str(x.ty.dtype).partition("x")
    return f"{base}{cross}{lanes}"
