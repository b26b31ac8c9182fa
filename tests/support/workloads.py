"""Small workloads to measure."""

from __future__ import annotations

from tvm import te, tirx

from tpo.workload import Workload


def matmul(rows: int = 32, columns: int = 64, depth: int = 48) -> Workload:
    """A matrix product whose right side is constant in the model, so that schedules may pack it."""
    # Sizes are 64 bits wide, as in functions that come out of a model.
    m, n, p = (tirx.IntImm("int64", size) for size in (rows, columns, depth))
    a = te.placeholder((m, p), name="a")
    b = te.placeholder((p, n), name="b")
    k = te.reduce_axis((tirx.IntImm("int64", 0), p), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return Workload.of(te.create_prim_func([a, b, c]).with_attr("layout_free_buffers", [1]))
