"""Candidates that go wrong in every way a candidate can, for testing runners.

All of them claim to compute `double`. They are written with TVMScript, which reads its own source:
that is why they are plain functions here and not made by one another.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.script import tirx as T

from tpo.workload import Workload

SIZE = 4096


@T.prim_func(s_tir=True)
def double(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = a[v] * T.float32(2)


@T.prim_func(s_tir=True)
def wrong_result(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = a[v] * T.float32(2.01)


@T.prim_func(s_tir=True)
def unfinished_result(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in range(4095):
        with T.sblock("double"):
            v = T.axis.spatial(4095, i)
            b[v] = a[v] * T.float32(2)


@T.prim_func(s_tir=True)
def segfault(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = a[v + 1000000000]


@T.prim_func(s_tir=True)
def abort(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    # What LLVM calls on a fatal error, whether it compiles or runs.
    T.evaluate(T.call_extern("int32", "abort"))
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = a[v] * T.float32(2)


@T.prim_func(s_tir=True)
def endless_loop(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = a[v] * T.float32(2)
            while b[v] < T.float32(1e30):
                b[v] = a[v]


@T.prim_func(s_tir=True)
def memory_hog(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    # Three buffers of 8 GB each, used in turn so that they cannot share their storage.
    x = T.alloc_buffer((4096, 500000), "float32")
    y = T.alloc_buffer((4096, 500000), "float32")
    z = T.alloc_buffer((4096, 500000), "float32")
    for i in range(4096):
        with T.sblock("x"):
            v = T.axis.spatial(4096, i)
            x[v, 77 * v] = a[v]
    for i in range(4096):
        with T.sblock("y"):
            v = T.axis.spatial(4096, i)
            y[v, 78 * v] = x[v, 77 * v] + a[v]
    for i in range(4096):
        with T.sblock("z"):
            v = T.axis.spatial(4096, i)
            z[v, 79 * v] = y[v, 78 * v] + x[v, 77 * v]
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = z[v, 79 * v] + y[v, 78 * v] - x[v, 77 * v] - x[v, 77 * v]


@T.prim_func(s_tir=True)
def exception(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    T.evaluate(T.call_packed("tpo.testing.there_is_no_such_function"))
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = a[v] * T.float32(2)


@T.prim_func(s_tir=True)
def unbuildable(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v] = T.call_intrin("float32", "tirx.cuda.warp_reduce", a[v])


@T.prim_func(s_tir=True)
def other_parameters(a: T.Buffer((4096,), "float32"), b: T.Buffer((64, 64), "float32")):
    for i in range(4096):
        with T.sblock("double"):
            v = T.axis.spatial(4096, i)
            b[v // 64, v % 64] = a[v] * T.float32(2)


def workload() -> Workload:
    """The function all of them stand for."""
    return Workload.of(double)


def module(func: Any) -> Any:
    """A function as the module of a candidate."""
    return tvm.IRModule({"main": func})
