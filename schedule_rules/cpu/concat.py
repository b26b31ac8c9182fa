"""Joining, and padding, along the innermost axis: no condition is asked for an element.

    for i, j: C[i, j] = A[i, j] if j < 64 else B[i, j - 64]
      -->
    parallel i: unroll piece: for j: vectorize j: C[i, j] = A[i, j] or B[i, j - 64]

The axis is cut into equal pieces, so that every boundary lies between two of them: in each piece, which
is code of its own, all conditions are constants.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, rule
from tpo.schedule import moves

MAX_PIECES = 64
MAX_UNROLL = 4


@rule(target="cpu", on="function", when=analysis.is_fresh)
def concat(sch: Any, root: Any, hw: Hardware) -> None:
    """Cut the innermost axis where its conditions change."""
    if not all(analysis.is_injective(sch, block) for block in analysis.blocks(sch)):
        decline("one of its blocks is a reduction")
    for block in analysis.blocks(sch):
        moves.try_inline(sch, block)
    pieces = {block: piece_of(sch, block) for block in analysis.blocks(sch)}
    if not any(pieces.values()):
        decline("no condition changes along its innermost axis, or it would be too much code")
    for block, piece in pieces.items():
        if piece is None:
            moves.elementwise(sch, block, hw)
        else:
            in_pieces(sch, block, piece, hw)


def piece_of(sch: Any, block: Any) -> int | None:
    """The largest piece of the innermost axis in which no condition changes; None if it has no conditions."""
    stmt = sch.get(block)
    if not stmt.iter_vars:
        return None
    axis = stmt.iter_vars[-1]
    changes = boundaries(stmt.body.value, axis.var)
    extent = int(axis.dom.extent)
    piece = math.gcd(extent, *changes)
    return piece if changes and extent // piece <= MAX_PIECES else None


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


def in_pieces(sch: Any, block: Any, piece: int, hw: Hardware) -> None:
    """Make every piece of the innermost axis vectors of its own; rows in parallel."""
    points = analysis.work(sch, block)
    lanes = moves.lanes_for(piece, hw.lanes(str(sch.get(block).writes[0].source.dtype)))
    *outer, axis = sch.get_loops(block)
    name = str(sch.get(block).name_hint)
    unroll = moves.choose(f"{name}.unroll", moves.divisors(piece // lanes, MAX_UNROLL), 1)
    pieces, vectors = sch.split(axis, [None, piece])
    _, vectors, lane = sch.split(vectors, [None, unroll, lanes])
    sch.unroll(pieces)
    sch.unroll(vectors)
    if lanes > 1:
        sch.vectorize(lane)
    moves.parallel_outer(sch, outer, points, hw)
