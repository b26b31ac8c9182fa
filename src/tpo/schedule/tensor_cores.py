"""What tensor cores do, as tensor intrinsics of TVM: WMMA on tiles of 16 x 16 x 16.

| operands | sums | from shared memory |
|---|---|---|
| float16 | float32, float16 | `load` of both, `store` of sums |
| int8 | int32 | the same |

A warp computes a tile with fragments: registers of all of its threads together. TVM has such intrinsics, too,
for functions whose indices have 32 bits; to import them takes half a minute.

This module needs nothing but TVM: a trace that uses these names replays wherever `register()` was called.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

PREFIX = "tpo.wmma."
TILE = 16
PRODUCTS = (("float16", "float32"), ("float16", "float16"), ("int8", "int32"))  # operands and sums
SHARED = "shared.dyn"


def load(dtype: str, letter: str) -> str:
    """The instruction that loads a fragment of the left operand ("a"), or of the right one ("b")."""
    return f"{PREFIX}load.{letter}.{dtype}"


def fill(dtype: str) -> str:
    """The instruction that clears a fragment of sums."""
    return f"{PREFIX}fill.{dtype}"


def multiply(operand: str, total: str) -> str:
    """The instruction that adds a product of fragments to one of sums."""
    return f"{PREFIX}multiply.{operand}.{total}"


def store(dtype: str) -> str:
    """The instruction that stores a fragment of sums."""
    return f"{PREFIX}store.{dtype}"


@cache
def register() -> None:
    """Make all of them known to TVM, in this process."""
    for operand in dict.fromkeys(operand for operand, _ in PRODUCTS):
        for letter in "ab":
            TensorIntrin.register(load(operand, letter), *_load(operand, f"wmma.matrix_{letter}"))
    for total in dict.fromkeys(total for _, total in PRODUCTS):
        TensorIntrin.register(fill(total), *_fill(total))
        TensorIntrin.register(store(total), *_store(total))
    for operand, total in PRODUCTS:
        TensorIntrin.register(multiply(operand, total), *_multiply(operand, total))


N = T.int64(TILE)
SUMS = "wmma.accumulator"


def _fragment(buffer: Any, stride: Any) -> Any:
    """The number of a tile among the fragments of a buffer, row by row."""
    across = T.int64(TILE)
    offset = buffer.elem_offset
    return (offset // stride // across) * (stride // across) + offset % stride // across


def _load(dtype: str, scope: str) -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def meaning(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (N, N), dtype, align=64, offset_factor=TILE, scope=SHARED)
        C = T.match_buffer(c, (N, N), dtype, align=64, offset_factor=TILE, scope=scope)
        with T.sblock("root"):
            T.reads(A[0:N, 0:N])
            T.writes(C[0:N, 0:N])
            for i, j in T.grid(N, N):
                with T.sblock("load"):
                    row, column = T.axis.remap("SS", [i, j])
                    C[row, column] = A[row, column]

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def instruction(a: T.handle, c: T.handle) -> None:
        s1 = T.int64()
        s0 = T.int64()
        d1 = T.int64()
        d0 = T.int64()
        A = T.match_buffer(a, (N, N), dtype, align=64, offset_factor=TILE, scope=SHARED, strides=[s1, s0])
        C = T.match_buffer(c, (N, N), dtype, align=64, offset_factor=TILE, scope=scope, strides=[d1, d0])
        with T.sblock("root"):
            T.reads(A[0:N, 0:N])
            T.writes(C[0:N, 0:N])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    C.data,
                    TILE,
                    TILE,
                    TILE,
                    _fragment(C, d1),
                    A.access_ptr("r", ptr_type=dtype),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    return meaning, instruction


def _fill(dtype: str) -> tuple[Any, Any]:
    zero = T.float32(0) if dtype.startswith("float") else T.int32(0)
    start = {"float32": T.float32(0), "float16": T.float16(0), "int32": T.int32(0)}[dtype]

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def meaning(c: T.handle) -> None:
        C = T.match_buffer(c, (N, N), dtype, align=64, offset_factor=TILE, scope=SUMS)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:N, 0:N])
            for i, j in T.grid(N, N):
                with T.sblock("init"):
                    row, column = T.axis.remap("SS", [i, j])
                    C[row, column] = start

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def instruction(c: T.handle) -> None:
        d1 = T.int64()
        d0 = T.int64()
        C = T.match_buffer(c, (N, N), dtype, align=64, offset_factor=TILE, scope=SUMS, strides=[d1, d0])
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:N, 0:N])
            T.evaluate(T.tvm_fill_fragment(C.data, TILE, TILE, TILE, _fragment(C, d1), zero, dtype="void"))

    return meaning, instruction


def _multiply(operand: str, total: str) -> tuple[Any, Any]:
    def wide(value: Any) -> Any:
        return value if operand == total else T.Cast(total, value)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def meaning(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (N, N), operand, align=64, offset_factor=TILE, scope="wmma.matrix_a")
        B = T.match_buffer(b, (N, N), operand, align=64, offset_factor=TILE, scope="wmma.matrix_b")
        C = T.match_buffer(c, (N, N), total, align=64, offset_factor=TILE, scope=SUMS)
        with T.sblock("root"):
            T.reads(C[0:N, 0:N], A[0:N, 0:N], B[0:N, 0:N])
            T.writes(C[0:N, 0:N])
            for i, j, k in T.grid(N, N, N):
                with T.sblock("update"):
                    row, column, step = T.axis.remap("SSR", [i, j, k])
                    C[row, column] = C[row, column] + wide(A[row, step]) * wide(B[step, column])

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def instruction(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1 = T.int64()
        a0 = T.int64()
        b1 = T.int64()
        b0 = T.int64()
        c1 = T.int64()
        c0 = T.int64()
        A = T.match_buffer(
            a, (N, N), operand, align=64, offset_factor=TILE, scope="wmma.matrix_a", strides=[a1, a0]
        )
        B = T.match_buffer(
            b, (N, N), operand, align=64, offset_factor=TILE, scope="wmma.matrix_b", strides=[b1, b0]
        )
        C = T.match_buffer(c, (N, N), total, align=64, offset_factor=TILE, scope=SUMS, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(C[0:N, 0:N], A[0:N, 0:N], B[0:N, 0:N])
            T.writes(C[0:N, 0:N])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _fragment(C, c1),
                    A.data,
                    _fragment(A, a1),
                    B.data,
                    _fragment(B, b1),
                    C.data,
                    _fragment(C, c1),
                    dtype="void",
                )
            )

    return meaning, instruction


def _store(dtype: str) -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def meaning(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (N, N), dtype, align=64, offset_factor=TILE, scope=SUMS)
        C = T.match_buffer(c, (N, N), dtype, align=64, offset_factor=TILE, scope=SHARED)
        with T.sblock("root"):
            T.reads(A[0:N, 0:N])
            T.writes(C[0:N, 0:N])
            for i, j in T.grid(N, N):
                with T.sblock("store"):
                    row, column = T.axis.remap("SS", [i, j])
                    C[row, column] = A[row, column]

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def instruction(a: T.handle, c: T.handle) -> None:
        d1 = T.int64()
        d0 = T.int64()
        s1 = T.int64()
        s0 = T.int64()
        A = T.match_buffer(a, (N, N), dtype, align=64, offset_factor=TILE, scope=SUMS, strides=[d1, d0])
        C = T.match_buffer(c, (N, N), dtype, align=64, offset_factor=TILE, scope=SHARED, strides=[s1, s0])
        with T.sblock("root"):
            T.reads(A[0:N, 0:N])
            T.writes(C[0:N, 0:N])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    A.data,
                    TILE,
                    TILE,
                    TILE,
                    _fragment(A, d1),
                    C.access_ptr("w", ptr_type=dtype),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    return meaning, instruction
