"""Instructions of x86 that multiply small integers and add the products up, as tensor intrinsics of TVM.

    C[lanes] += sum over k: A[k] * B[lanes, k]        A is broadcast, C are sums in one vector register

| data x weights | k | instruction | where |
|---|---|---|---|
| uint8 x int8 | 4 | `vpdpbusd` | avx512vnni, avxvnni |
| uint8 x int8 | 2 | both widened to int16, `vpmaddwd`, `vpaddd` | every x86 |
| int16 x int16 | 2 | `vpmaddwd`, `vpaddd`, which LLVM makes `vpdpwssd` where there is VNNI | every x86 |

All are exact: nothing saturates. (`vpmaddubsw`, which multiplies bytes without VNNI, does.) TVM has such
intrinsics of its own, but LLVM has changed the type of `vpdpbusd` since.

This module needs nothing but TVM: a trace that uses these names replays wherever `register()` was called.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

PREFIX = "tpo.dot."


@dataclass(frozen=True)
class DotProduct:
    """One instruction: `lanes` sums of `group` products each."""

    data: str
    weights: str
    group: int
    lanes: int

    @property
    def name(self) -> str:
        """What TVM knows it by."""
        return f"{PREFIX}{self.data}.{self.weights}.{self.lanes}x{self.group}"


VECTORS = (16, 8, 4)  # sums of 32 bits in registers of 512, 256 and 128 bits
_MULTIPLY_PAIRS = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "llvm.x86.sse2.pmadd.wd",
}


def for_types(data: str, weights: str, vnni: bool, lanes: int) -> list[DotProduct]:
    """Instructions for operands of some types with at most so many lanes, the widest first."""
    groups = {("uint8", "int8"): 4 if vnni else 2, ("int16", "int16"): 2}
    group = groups.get((data, weights))
    return [] if group is None else [DotProduct(data, weights, group, n) for n in VECTORS if n <= lanes]


@cache
def register() -> None:
    """Make all of them known to TVM, in this process."""
    for lanes in VECTORS:
        for data, weights, group in (("uint8", "int8", 4), ("uint8", "int8", 2), ("int16", "int16", 2)):
            dot = DotProduct(data, weights, group, lanes)
            TensorIntrin.register(dot.name, _meaning(dot), _instruction(dot))


def _meaning(dot: DotProduct) -> Any:
    data, weights = dot.data, dot.weights
    group, lanes = T.int64(dot.group), T.int64(dot.lanes)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def meaning(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (group,), data, offset_factor=1)
        B = T.match_buffer(b, (lanes, group), weights, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            for i, k in T.grid(lanes, group):
                with T.sblock("update"):
                    lane, step = T.axis.remap("SR", [i, k])
                    C[lane] = C[lane] + T.Cast("int32", A[step]) * T.Cast("int32", B[lane, step])

    return meaning


def _instruction(dot: DotProduct) -> Any:
    data, weights = dot.data, dot.weights
    group, lanes = T.int64(dot.group), T.int64(dot.lanes)
    zero, one = T.int64(0), T.int64(1)
    add = _add_quadruples if dot.group == 4 else _add_pairs

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def instruction(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (group,), data, offset_factor=1)
        B = T.match_buffer(b, (lanes, group), weights, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            C[T.ramp(zero, one, dot.lanes)] = add(
                dot.lanes,
                C.vload([zero], f"int32x{dot.lanes}"),
                A.vload([zero], f"{data}x{dot.group}"),
                B.vload([zero, zero], f"{weights}x{dot.lanes * dot.group}"),
            )

    return instruction


def _add_quadruples(lanes: int, sums: Any, data: Any, weights: Any) -> Any:
    same = T.reinterpret(T.broadcast(T.reinterpret(data, dtype="int32"), lanes), dtype=f"int8x{4 * lanes}")
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return T.call_llvm_pure_intrin(
        T.llvm_lookup_intrinsic_id(name), sums, same, weights, dtype=f"int32x{lanes}"
    )


def _add_pairs(lanes: int, sums: Any, data: Any, weights: Any) -> Any:
    # Broadcast first, widened afterwards: both are one instruction then.
    size = "int16" if str(data.ty.dtype).startswith("uint8") else "int32"
    pairs = T.broadcast(T.reinterpret(data, dtype=size), lanes)
    element = str(data.ty.dtype).partition("x")[0]
    same = T.Cast(f"int16x{2 * lanes}", T.reinterpret(pairs, dtype=f"{element}x{2 * lanes}"))
    wide = T.Cast(f"int16x{2 * lanes}", weights)
    multiply = T.llvm_lookup_intrinsic_id(_MULTIPLY_PAIRS[lanes])
    return sums + T.call_llvm_pure_intrin(multiply, same, wide, dtype=f"int32x{lanes}")
