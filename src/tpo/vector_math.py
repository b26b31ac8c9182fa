"""exp, tanh and erf as arithmetic, so that they are computed in vector registers.

LLVM has no vector exp or erf: TVM's lowering calls the C library once per element, even inside a
vectorised loop, which makes a fused SiLU or GELU dearer than the convolution before it. The rules here
replace them for float32; sigmoid, which TVM builds on exp, follows. TVM's tanh loses all relative
accuracy near zero, this one does not.

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

Expr = Any

# Outside exp is infinite in float32, or so small that denormal numbers, which are slow, would be needed.
EXP_LOW, EXP_HIGH = -87.336, 88.72284
# ln 2 in two parts; the first has so few bits that its product with a whole number below 2^13 is exact.
LN2_UPPER = 355 / 512
LN2_LOWER = math.log(2) - LN2_UPPER
# From here on tanh and erf are 1 in float32.
TANH_HIGH, ERF_HIGH = 10.0, 4.0
# TVM registers its own rules at level 10.
_LEVEL = 20


@cache
def register() -> None:
    """Use these rules for every LLVM target from now on, in this process."""
    for name, rule in (("exp", exp), ("tanh", tanh), ("erf", erf)):
        tirx.register_intrin_lowering(f"tirx.{name}", target="llvm", f=_for_float32(rule), level=_LEVEL)


def exp(x: Expr) -> Expr:
    """2^n e^r, with n whole and |r| at most ln(2) / 2."""
    inside = tirx.min(tirx.max(x, _like(x, EXP_LOW)), _like(x, EXP_HIGH))

    def scaled(n: Expr) -> Expr:
        r = inside - n * _like(x, LN2_UPPER) - n * _like(x, LN2_LOWER)
        whole = n.astype(_dtype(x, "int32"))
        # In two steps, because 2^n alone may overflow where 2^n e^r does not.
        first, second = whole >> 1, whole - (whole >> 1)
        return _let(r, lambda v: _poly(v, exp_fit()) * _power_of_two(first) * _power_of_two(second))

    result = _let(tirx.floor(inside * _like(x, 1 / math.log(2)) + _like(x, 0.5)), scaled)
    result = tirx.Select(x > _like(x, EXP_HIGH), _like(x, math.inf), result)
    return tirx.Select(x < _like(x, EXP_LOW), _like(x, 0.0), tirx.Select(x == x, result, x))


def tanh(x: Expr) -> Expr:
    """Near zero x P(x^2), further out 1 - 2 / (exp(2 x) + 1) with the sign of x."""

    def far(a: Expr) -> Expr:
        return _like(x, 1.0) - _like(x, 2.0) / (exp(a + a) + _like(x, 1.0))

    return _odd(x, tanh_fit(), far, TANH_HIGH)


def erf(x: Expr) -> Expr:
    """Near zero x P(x^2), further out 1 - 2^Q(x) with the sign of x."""

    def power(v: Expr) -> Expr:
        def scaled(n: Expr) -> Expr:
            return _poly(v - n, exp2_fit()) * _power_of_two(n.astype(_dtype(x, "int32")))

        return _let(tirx.floor(v + _like(x, 0.5)), scaled)

    def far(a: Expr) -> Expr:
        return _like(x, 1.0) - _let(_poly(a, erfc_fit()), power)

    return _odd(x, erf_fit(), far, ERF_HIGH)


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


def _for_float32(rule: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """The rule for calls on float32 scalars and vectors; other types go on to TVM's default, a C call."""

    def lower(call: Expr) -> Expr:
        x = call.args[0]
        return _let(x, rule) if str(x.ty.dtype).startswith("float32") else call

    return lower


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a name for the value, so that what is used several times is computed once."""
    name = tirx.Var("v", value.ty.dtype)
    return tirx.Let(name, value, body(name))


def _poly(x: Expr, coefficients: list[float]) -> Expr:
    result = _like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * x + _like(x, coefficient)
    return result


def _power_of_two(n: Expr) -> Expr:
    """2^n for whole n, by building the exponent of the float."""
    return tirx.reinterpret(_dtype(n, "float32"), (n + 127) << 23)


def _like(x: Expr, value: float) -> Expr:
    return tirx.const(value, str(x.ty.dtype))


def _dtype(x: Expr, base: str) -> str:
    """A type with as many lanes as the expression."""
    _, cross, lanes = str(x.ty.dtype).partition("x")
    return f"{base}{cross}{lanes}"
