"""Transposed convolutions that multiply by zeros between pixels: each phase of the stride is its own product.

    for y, x, o, r, s, c:                      for py, px, y, x, o, r, s, c:
      if 2 divides y + r and x + s:      -->     M[py, px, y, x, o] += P[y + r + .., x + s + .., c] * W[..]
        Y += P[(y + r) / 2, (x + s) / 2, c]    for py, px, y, x, o:
             * W[r, s, c, o]                     Y[2 y + py, 2 x + px, o] = epilogue of M

Outputs of one phase (the remainder of their place divided by the stride) meet only every second, third, ...
step of the window along each axis, always the same ones. What is left is a plain product with four (or nine)
times less to multiply, scheduled like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contraction import hold_tiles
from tvm import tirx
from tvm.ir import Call, Op, TensorLoad
from tvm.sym import Analyzer, detect_linear_equation

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, restate, rule
from tpo.lang.programs import ProgramWriter, Renewal, replace_loads
from tpo.schedule import moves

IF_THEN_ELSE = Op.get("prim.if_then_else")

Expr = Any


@dataclass(frozen=True)
class Stride:
    """Pixels are zero unless place + step + offset of these axes of the block is a multiple of `size`."""

    place: int
    step: int
    offset: int
    size: int


@rule(target="cpu", on="function", when=analysis.is_fresh)
def transposed_convolution(sch: Any, root: Any, hw: Hardware) -> None:
    """Multiply only what is not zero, phase by phase."""
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    if len(reductions) != 1:
        decline("its work is not one sum")
    (anchor,) = reductions
    epilogue = moves.collect_epilogue(sch, anchor)
    sch = restate(program(sch, anchor, epilogue))
    anchor, epilogue = sch.get_sblock("product"), sch.get_sblock("output")
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        decline("what it adds up are no products of matrices")
    hold_tiles(sch, anchor, epilogue, roles, analysis.row_bytes(sch, anchor, roles.vector), hw)


def program(sch: Any, anchor: Any, epilogue: Any) -> Any:
    """The function with one more axis for each stride: the phase."""
    stmt = sch.get(anchor)
    pixel, weight, strides = guarded_product(stmt)
    spatial = len(stmt.iter_vars) - analysis.reduction_count(sch, anchor)
    extents = analysis.iter_extents(sch, anchor)
    for stride in strides:
        if extents[stride.place] % stride.size or extents[stride.step] % stride.size:
            decline("the stride does not divide its output and its window")
        extents[stride.place] //= stride.size
        extents[stride.step] //= stride.size
    phases = [stride.size for stride in strides]

    def old_axes(phase: list[Expr], axes: list[Expr]) -> list[Expr]:
        """Places of the old axes: what is skipped is never visited."""
        found = list(axes)
        for stride, p in zip(strides, phase, strict=True):
            found[stride.place] = axes[stride.place] * stride.size + p
            if stride.step < len(axes):
                first = (stride.size - 1) - (p + stride.offset + stride.size - 1) % stride.size
                found[stride.step] = axes[stride.step] * stride.size + first
        return found

    writer = ProgramWriter(sch.mod["main"])
    renewal = Renewal(writer)
    for block in analysis.blocks_except(sch, anchor, epilogue):
        if not renewal.copy(sch.get(block)):
            decline("it does more than pad, multiply and finish")
    analyzer = Analyzer()

    def element(*axes: Expr) -> Expr:
        old = old_axes(list(axes[: len(phases)]), list(axes[len(phases) :]))
        read, multiplied = (renewal.expr(load, stmt, old) for load in (pixel, weight))
        place = [analyzer.simplify(index) for index in read.indices]
        return read.source[tuple(place)] * multiplied

    buffer = stmt.writes[0].source
    shape = [*phases, *extents[:spatial]]
    made = writer.compute("product", shape, str(buffer.dtype), element, extents[spatial:])
    last = sch.get(epilogue)

    def stored(*axes: Expr) -> tuple[Any, list[Expr], Expr]:
        phase, inner = list(axes[: len(phases)]), list(axes[len(phases) :])
        target, indices, _ = renewal.stored(last, old_axes(phase, inner))
        value = replace_loads(last.body.value, buffer, made[tuple(axes)])
        return target, indices, renewal.expr(value, last, old_axes(phase, inner))

    writer.write("output", shape, stored)
    return writer.finish()


def guarded_product(stmt: Any) -> tuple[Any, Any, list[Stride]]:
    """The loads of `out = out + (pixel if it is on the grid else 0) * weight`, and the grid."""
    value = stmt.body.value if isinstance(stmt.body, tirx.BufferStore) else None
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        decline("it is no sum of products")
    factors = sorted([value.b.a, value.b.b], key=lambda factor: isinstance(factor, TensorLoad))
    guarded, weight = factors
    if not isinstance(guarded, Call) or not guarded.op.same_as(IF_THEN_ELSE):
        decline("no pixels of it are zero by their place")
    condition, pixel, otherwise = guarded.args
    zero = isinstance(otherwise, tirx.FloatImm | tirx.IntImm) and otherwise.value == 0
    if not zero or not isinstance(pixel, TensorLoad) or not isinstance(weight, TensorLoad):
        decline("no pixels of it are zero by their place")
    return pixel, weight, [stride_of(stmt, part) for part in conjuncts(condition)]


def conjuncts(condition: Expr) -> list[Expr]:
    """What must all hold."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def stride_of(stmt: Any, condition: Expr) -> Stride:
    """The stride that a condition `(place + step + offset) % size == 0` is about."""
    grid = condition.a if isinstance(condition, tirx.EQ) else None
    if not isinstance(grid, tirx.FloorMod) or not isinstance(grid.b, tirx.IntImm):
        decline("its zeros are on no grid")
    used = [k for k, axis in enumerate(stmt.iter_vars) if contains(grid.a, axis.var)]
    found = detect_linear_equation(grid.a, [stmt.iter_vars[k].var for k in used])
    kinds = [stmt.iter_vars[k].iter_type for k in used]
    if kinds != [analysis.SPATIAL, analysis.REDUCTION] or [int(c) for c in found[:2]] != [1, 1]:
        decline("its zeros are on no plain grid")
    return Stride(used[0], used[1], int(found[2]), int(grid.b))


def contains(expr: Expr, var: Any) -> bool:
    """Whether a variable occurs in an expression."""
    return any(other.same_as(var) for other in analysis.find(tirx.Var, expr))
