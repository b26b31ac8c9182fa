"""Floats become integers by arithmetic on their bits: for RISC-V, whose emulator lacks the instruction.

QEMU 7.2 ends with a failed assertion when it meets a vector conversion that truncates (vfcvt.rtz and its
relatives). Most conversions are of numbers that were rounded and clipped before, as in quantised models:
for those an addition does it, and is no slower than the instruction. Others take some shifts.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from tpo.vector_math import MANTISSA_BITS, ROUNDER

Expr = Any
EXPONENT_BIAS, EXPONENT_MASK = 127, 0xFF
# Whole numbers up to this size are what the last bits of a float say, once ROUNDER was added to it.
EXACT = 2**22
_ROUNDER_BITS = 0x4B400000
_ROUNDING = ("round", "nearbyint", "floor", "ceil", "trunc")


def without_truncation(func: Any) -> Any:
    """A function in which no float32 is converted to an integer by an instruction that truncates."""

    def replaced(cast: Any) -> Any:
        value = tvm_ffi.structural_map(cast.value, (tirx.Cast, replaced))
        dtype, source = str(cast.ty.dtype), str(value.ty.dtype)
        if source != "float32" or not dtype.startswith(("int", "uint")):
            return tirx.Cast(dtype, value)
        whole = rounded(value) if is_whole(value) and largest(value) <= EXACT else truncated(value)
        return whole if dtype == "int32" else tirx.Cast(dtype, whole)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, replaced)))


def rounded(x: Expr) -> Expr:
    """A small whole number as an int32."""
    bits = tirx.reinterpret("int32", x + tirx.const(ROUNDER, "float32"))
    return bits - tirx.const(_ROUNDER_BITS, "int32")


def truncated(x: Expr) -> Expr:
    """The whole part of a number that an int32 can hold."""
    bits = tirx.reinterpret("int32", x)
    exponent = ((bits >> MANTISSA_BITS) & EXPONENT_MASK) - (EXPONENT_BIAS + MANTISSA_BITS)
    mantissa = (bits & ((1 << MANTISSA_BITS) - 1)) | (1 << MANTISSA_BITS)
    zero, most = tirx.const(0, "int32"), tirx.const(31, "int32")
    # Shifts by less than nothing or by more than there is are not defined: both sides are always computed.
    left = mantissa << tirx.min(tirx.max(exponent, zero), most)
    right = mantissa >> tirx.min(tirx.max(zero - exponent, zero), most)
    size = tirx.Select(exponent >= zero, left, right)
    return tirx.Select(bits < zero, zero - size, size)


def is_whole(x: Expr) -> bool:
    """Whether a float is certainly a whole number."""
    if isinstance(x, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max)):
        return is_whole(x.a) and is_whole(x.b)
    if isinstance(x, tirx.Select):
        return is_whole(x.true_value) and is_whole(x.false_value)
    if isinstance(x, tirx.FloatImm):
        return float(x.value).is_integer()
    if isinstance(x, tirx.Cast):
        return str(x.value.ty.dtype).startswith(("int", "uint", "bool"))
    return isinstance(x, Call) and str(getattr(x.op, "name", "")).removeprefix("tirx.") in _ROUNDING


def largest(x: Expr) -> float:
    """The largest size a float can certainly not exceed; infinite where nothing is known."""
    low, high = _range(x)
    return max(-low, high)


def _range(x: Expr) -> tuple[float, float]:
    infinite = float("inf")
    if isinstance(x, tirx.FloatImm):
        return float(x.value), float(x.value)
    if isinstance(x, (tirx.Min, tirx.Max)):
        (a, b), (c, d) = _range(x.a), _range(x.b)
        return (min(a, c), min(b, d)) if isinstance(x, tirx.Min) else (max(a, c), max(b, d))
    return -infinite, infinite
