"""What kernels for RISC-V are compared on: the same operators for TVM, in C, and in numpy.

Nothing is rearranged beforehand for anybody: all operands come as they are. The C is what a person would
write who wants the compiler to find vectors: rows of results are computed along memory, pointers do not
overlap, and sizes are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tpo.workload import Workload

Array = np.ndarray[Any, Any]
# C's names of numpy's types.
_C_TYPES = {"float32": "float", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t"}

_PROLOGUE = """#include <stdint.h>
typedef struct { void *data; } Tensor;
typedef struct { int32_t type, zero; union { int64_t number; Tensor *pointer; } value; } Any;
"""
_ENTRY = """
int __tvm_ffi_kernel(void *self, const Any *arguments, int32_t count, Any *result) {
  (void)self, (void)count, (void)result;
  const Any *a = arguments;
  kernel(a[0].value.pointer->data, a[1].value.pointer->data, a[2].value.pointer->data);
  return 0;
}
"""


@dataclass(frozen=True)
class Operator:
    """An operator of two operands: `group` is the suite it belongs to."""

    name: str
    group: str
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # of both operands and the result
    dtype: str
    result: str
    compute: Callable[[Any, Any], Any]  # for TVM
    reference: Callable[[Array, Array], Array]
    body: str  # in C, of A, B and C, which is zero at first

    @property
    def workload(self) -> Workload:
        """The function TVM compiles."""
        left, right = (
            te.placeholder(_long(shape), self.dtype, name)
            for shape, name in zip(self.shapes, ("A", "B"), strict=False)
        )
        return Workload.of(te.create_prim_func([left, right, self.compute(left, right)]))

    @property
    def source(self) -> str:
        """The same in C, for the harness."""
        given, made = _C_TYPES[self.dtype], _C_TYPES[self.result]
        parameters = f"const {given} *restrict A, const {given} *restrict B, {made} *restrict C"
        count = int(np.prod(self.shapes[2]))
        body = f"for (int i = 0; i < {count}; i++) C[i] = 0;\n  {self.body}"
        return f"{_PROLOGUE}static void kernel({parameters}) {{\n  {body}\n}}\n{_ENTRY}"


def matmul(rows: int, columns: int, depth: int, dtype: str = "float32") -> Operator:
    """A matrix product; sums of integers have 32 bits."""
    result = "float32" if dtype == "float32" else "int32"

    def compute(a: Any, b: Any) -> Any:
        k = te.reduce_axis(_long((0, depth)), name="k")
        return te.compute(
            _long((rows, columns)),
            lambda i, j: (
                te.sum(tirx.Cast(result, a[i, k]) * tirx.Cast(result, b[k, j]), axis=k)
                if dtype != result
                else te.sum(a[i, k] * b[k, j], axis=k)
            ),
            name="matmul",
        )

    return Operator(
        f"matmul {rows}x{columns}x{depth} {dtype}",
        f"matmul {dtype}",
        ((rows, depth), (depth, columns), (rows, columns)),
        dtype,
        result,
        compute,
        lambda a, b: a.astype(_wide(result)) @ b.astype(_wide(result)),
        f"for (int i = 0; i < {rows}; i++)\n    for (int k = 0; k < {depth}; k++)\n"
        f"      for (int j = 0; j < {columns}; j++)\n"
        f"        C[i * {columns} + j] += ({_C_TYPES[result]})A[i * {depth} + k] * B[k * {columns} + j];",
    )


def conv(size: int, channels: int, filters: int, window: int, dtype: str = "float32") -> Operator:
    """A convolution of stride 1, channels last, of a map that has its padding already."""
    result = "float32" if dtype == "float32" else "int32"
    full = size + window - 1

    def compute(a: Any, b: Any) -> Any:
        y, x = (te.reduce_axis(_long((0, window)), name=name) for name in ("ry", "rx"))
        c = te.reduce_axis(_long((0, channels)), name="rc")

        def element(i: Any, j: Any, f: Any) -> Any:
            left, right = a[i + y, j + x, c], b[y, x, c, f]
            if dtype != result:
                left, right = tirx.Cast(result, left), tirx.Cast(result, right)
            return te.sum(left * right, axis=[y, x, c])

        return te.compute(_long((size, size, filters)), element, name="conv")

    def reference(a: Array, b: Array) -> Array:
        wide = _wide(result)
        windows = np.lib.stride_tricks.sliding_window_view(a, (window, window), axis=(0, 1))
        return np.asarray(np.einsum("ijcyx,yxcf->ijf", windows.astype(wide), b.astype(wide)))

    return Operator(
        f"conv {size}x{size} {channels}->{filters} {window}x{window} {dtype}",
        f"conv {dtype}",
        ((full, full, channels), (window, window, channels, filters), (size, size, filters)),
        dtype,
        result,
        compute,
        reference,
        f"for (int i = 0; i < {size}; i++)\n    for (int j = 0; j < {size}; j++)\n"
        f"      for (int y = 0; y < {window}; y++)\n        for (int x = 0; x < {window}; x++)\n"
        f"          for (int c = 0; c < {channels}; c++)\n            for (int f = 0; f < {filters}; f++)\n"
        f"              C[(i * {size} + j) * {filters} + f] += ({_C_TYPES[result]})"
        f"A[((i + y) * {full} + j + x) * {channels} + c]\n"
        f"                * B[((y * {window} + x) * {channels} + c) * {filters} + f];",
    )


def depthwise(size: int, channels: int, window: int) -> Operator:
    """A convolution of every channel by itself."""
    full = size + window - 1

    def compute(a: Any, b: Any) -> Any:
        y, x = (te.reduce_axis(_long((0, window)), name=name) for name in ("ry", "rx"))
        return te.compute(
            _long((size, size, channels)),
            lambda i, j, c: te.sum(a[i + y, j + x, c] * b[y, x, c], axis=[y, x]),
            name="depthwise",
        )

    def reference(a: Array, b: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(a, (window, window), axis=(0, 1))
        return np.asarray(np.einsum("ijcyx,yxc->ijc", windows.astype(np.float64), b.astype(np.float64)))

    return Operator(
        f"depthwise {size}x{size} {channels} {window}x{window}",
        "conv float32",
        ((full, full, channels), (window, window, channels), (size, size, channels)),
        "float32",
        "float32",
        compute,
        reference,
        f"for (int i = 0; i < {size}; i++)\n    for (int j = 0; j < {size}; j++)\n"
        f"      for (int y = 0; y < {window}; y++)\n        for (int x = 0; x < {window}; x++)\n"
        f"          for (int c = 0; c < {channels}; c++)\n"
        f"            C[(i * {size} + j) * {channels} + c] += "
        f"A[((i + y) * {full} + j + x) * {channels} + c] * B[(y * {window} + x) * {channels} + c];",
    )


def operators() -> tuple[Operator, ...]:
    """Both suites, in sizes that an emulator gets done."""
    return (
        matmul(64, 64, 64),
        matmul(128, 128, 128),
        matmul(49, 256, 128),
        matmul(1, 512, 512),
        conv(28, 16, 32, 3),
        conv(14, 64, 64, 3),
        conv(14, 96, 64, 1),
        depthwise(28, 96, 3),
        matmul(64, 64, 64, "int8"),
        matmul(128, 128, 128, "int8"),
        matmul(49, 256, 128, "int8"),
        matmul(64, 64, 64, "int16"),
        conv(14, 64, 64, 3, "int8"),
        conv(14, 96, 64, 1, "int8"),
    )


def _long(numbers: tuple[int, ...]) -> list[Any]:
    """Sizes as models have them: loops count in 64 bits."""
    return [tirx.IntImm("int64", number) for number in numbers]


def _wide(result: str) -> str:
    return "float64" if result == "float32" else "int64"
