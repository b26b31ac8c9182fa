"""Joining, and padding, along the innermost axis: no condition is asked for an element.

    for i, j: C[i, j] = A[i, j] if j < 64 else B[i, j - 64]
      -->
    parallel i:
      for j < 64: vectorize j: C[i, j] = A[i, j]
      for j < 32: vectorize j: C[i, j + 64] = B[i, j]

The axis is cut where a condition changes: every part is a block of its own, in which all conditions are
constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, restate, rule
from tpo.lang.programs import ProgramWriter, Renewal
from tpo.schedule import moves

MAX_PARTS = 64
MAX_UNROLL = 4


@rule(target="cpu", on="function", when=analysis.is_fresh)
def concat(sch: Any, root: Any, hw: Hardware) -> None:
    """Cut the innermost axis where its conditions change."""
    if not all(analysis.is_injective(sch, block) for block in analysis.blocks(sch)):
        decline("one of its blocks is a reduction")
    for block in analysis.blocks(sch):
        moves.try_inline(sch, block)
    block, *others = analysis.blocks(sch)
    cuts = [] if others else cuts_of(sch, block)
    if len(cuts) < 2:
        decline("no condition changes along its innermost axis, or it is more than one block")
    if len(cuts) > MAX_PARTS:
        decline("it would be too much code")
    points = analysis.work(sch, block)
    sch = restate(program(sch, block, cuts))
    rows = [as_vectors(sch, part, hw) for part in analysis.blocks(sch)]
    if points >= moves.MIN_PARALLEL_POINTS and rows[0] is not None:
        sch.parallel(sch.merge(*rows))


def cuts_of(sch: Any, block: Any) -> list[tuple[int, int]]:
    """Where parts of the innermost axis begin, and how long they are."""
    stmt = sch.get(block)
    if not stmt.iter_vars:
        return []
    axis = stmt.iter_vars[-1]
    extent = int(axis.dom.extent)
    inside = {change for change in boundaries(stmt.body.value, axis.var) if 0 < change < extent}
    return [(begin, end - begin) for begin, end in itertools.pairwise([0, *sorted(inside), extent])]


def boundaries(value: Any, axis: Any) -> list[int]:
    """Where comparisons of an axis with constants change their result."""
    found = []
    for kind, shift in ((tirx.LE, 0), (tirx.LT, 1), (tirx.GE, 1), (tirx.GT, 0)):
        for node in analysis.find(kind, value):
            if node.b.same_as(axis) and isinstance(node.a, tirx.IntImm):
                found.append(int(node.a) + shift)
            elif node.a.same_as(axis) and isinstance(node.b, tirx.IntImm):
                found.append(int(node.b) + 1 - shift)
    return found


def program(sch: Any, block: Any, cuts: Sequence[tuple[int, int]]) -> Any:
    """The function with a block for every part."""
    stmt = sch.get(block)
    writer = ProgramWriter(sch.mod["main"])
    renewal = Renewal(writer)
    *outer, _ = analysis.iter_extents(sch, block)
    for number, (begin, length) in enumerate(cuts):

        def stored(*axes: Any, begin: int = begin, length: int = length) -> tuple[Any, list[Any], Any]:
            analyzer = Analyzer()
            *rest, last = axes
            analyzer.bind(last, Range.from_min_extent(tirx.const(0, "int64"), tirx.const(length, "int64")))
            buffer, indices, value = renewal.stored(stmt, [*rest, last + begin])
            return buffer, [analyzer.simplify(index) for index in indices], analyzer.simplify(value)

        writer.write(f"{stmt.name_hint}_{number}", [*outer, length], stored)
    return writer.finish()


def as_vectors(sch: Any, block: Any, hw: Hardware) -> Any:
    """Cut the innermost axis of a part into vectors; the loop over all rows around them, if there is one."""
    *outer, axis = sch.get_loops(block)
    extent = int(sch.get(axis).extent)
    lanes = moves.lanes_for(extent, hw.lanes(str(sch.get(block).writes[0].source.dtype)))
    name = str(sch.get(block).name_hint)
    unroll = moves.choose(f"{name}.unroll", moves.divisors(extent // lanes, MAX_UNROLL), 1)
    _, vectors, lane = sch.split(axis, [None, unroll, lanes])
    sch.unroll(vectors)
    if lanes > 1:
        sch.vectorize(lane)
    return sch.fuse(*outer) if len(outer) > 1 else (outer or [None])[0]
