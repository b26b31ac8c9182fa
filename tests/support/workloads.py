"""Small workloads as the frontend makes them: 64 bit indices, constant weights marked."""

from __future__ import annotations

from tvm import te, tirx

from tpo.workload import Workload


def _shape(*dims: int) -> tuple[tirx.IntImm, ...]:
    return tuple(tirx.IntImm("int64", dim) for dim in dims)


def matmul(rows: int = 48, columns: int = 64, depth: int = 32) -> Workload:
    """Left @ right, whose right operand is a constant."""
    left = te.placeholder(_shape(rows, depth), name="left")
    right = te.placeholder(_shape(depth, columns), name="right")
    (size,) = _shape(depth)
    k = te.reduce_axis((tirx.IntImm("int64", 0), size), name="k")
    product = te.compute(
        _shape(rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product"
    )
    func = te.create_prim_func([left, right, product]).with_attr("layout_free_buffers", [1])
    return Workload.of(func)
