"""Transposes, with what is computed on the way: small tiles change their order in registers.

    for a, j, b, i: B[a, i, b, j] = A[a, j, b, i]
      -->
    parallel a, b, i tile: for j tile: unroll j: vectorize i: B[a, i, b, j] = A[a, j, b, i]

Axes that are neighbours on both sides are one (height and width, when channels move past them). Vectors
go along the source; the compiler makes rows of the destination of several of them. They go along the
destination where only its extent has whole vectors. The longer of the two axes is walked inside, so
that it is streamed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, rule
from tpo.schedule import moves

MAX_TILE = 256  # elements of a tile: every one of them is an instruction or two
ENOUGH_VECTORS = 8  # of a tile


@dataclass(frozen=True)
class Order:
    """The axes of a transposing block, neighbours merged, and which of those is contiguous in its source."""

    merged: list[list[int]]
    source: int


@rule(target="cpu", on="function", when=analysis.is_fresh)
def transpose(sch: Any, root: Any, hw: Hardware) -> None:
    """Copy in tiles that are turned in registers."""
    if not all(analysis.is_injective(sch, block) for block in analysis.blocks(sch)):
        decline("one of its blocks is a reduction")
    for block in analysis.blocks(sch):
        moves.try_inline(sch, block)
    block, *others = analysis.blocks(sch)
    order = None if others else order_of(sch, block)
    if order is None:
        decline("it does not read one buffer along another axis than it writes")
    worth_threads = analysis.work(sch, block) >= moves.MIN_PARALLEL_POINTS
    dtype = str(sch.get(block).writes[0].source.dtype)
    loops = sch.get_loops(block)
    axes = [
        sch.fuse(*(loops[k] for k in group)) if len(group) > 1 else loops[group[0]] for group in order.merged
    ]
    source, destination = axes[order.source], axes[-1]
    rest = [axis for k, axis in enumerate(axes[:-1]) if k != order.source]
    read, written = (int(sch.get(axis).extent) for axis in (source, destination))
    along = fork("vectors", directions(read, written, hw.lanes(dtype)))
    vector, across = (source, destination) if along == "source" else (destination, source)
    longer = "vectors" if int(sch.get(vector).extent) > int(sch.get(across).extent) else "steps"
    vectors, lane = sch.split(vector, [None, choose_lanes(int(sch.get(vector).extent), hw.lanes(dtype))])
    steps, step = sch.split(across, [None, choose_steps(int(sch.get(across).extent))])
    orders = {"steps": [vectors, steps], "vectors": [steps, vectors]}
    outer, inner = orders[fork("inner", sorted(orders, key=lambda name: name != longer))]
    sch.reorder(*rest, outer, inner, step, lane)
    sch.vectorize(lane)
    sch.unroll(step)
    chunks = sch.fuse(*rest, outer)
    if worth_threads:
        sch.parallel(chunks)


def order_of(sch: Any, block: Any) -> Order | None:
    """How the block reads; None unless it reads at permutations of its own axes, and one is a transpose."""
    stmt = sch.get(block)
    extents = analysis.iter_extents(sch, block)
    reads = [axes_of(load, stmt.iter_vars) for load in analysis.loads(stmt.body.value)]
    written = axes_of(stmt.body, stmt.iter_vars)
    if written != list(range(len(extents))) or any(read is None for read in reads):
        return None
    live = [k for k, extent in enumerate(extents) if extent > 1]
    contiguous = [[k for k in read if k in live][-1:] for read in reads if read is not None]
    turned = [last[0] for last in contiguous if last and last[0] != live[-1]]
    if len(live) < 2 or len(set(turned)) != 1:
        return None
    merged = merge(live, [[k for k in read if k in live] for read in reads if read is not None])
    return Order(merged, next(n for n, group in enumerate(merged) if turned[0] in group))


def axes_of(access: Any, iter_vars: Any) -> list[int] | None:
    """Which axes a whole buffer is accessed at, dimension by dimension; None if it is otherwise.

    Dimensions of extent one are left out.
    """
    buffer = access.buffer if hasattr(access, "buffer") else access.source
    found = []
    for index, dim in zip(access.indices, buffer.shape, strict=True):
        axis = next((k for k, it in enumerate(iter_vars) if index.same_as(it.var)), None)
        if int(dim) > 1 and (axis is None or int(iter_vars[axis].dom.extent) != int(dim)):
            return None
        if axis is not None:
            found.append(axis)
    return found


def merge(live: list[int], reads: list[list[int]]) -> list[list[int]]:
    """Join axes that follow each other in everything that is read, or are both missing from it.

    >>> merge([0, 1, 2], [[2, 0, 1]])
    [[0, 1], [2]]
    """

    def together(left: int, right: int, read: list[int]) -> bool:
        if left not in read or right not in read:
            return left not in read and right not in read
        return read.index(right) == read.index(left) + 1

    merged: list[list[int]] = []
    for axis in live:
        if merged and all(together(merged[-1][-1], axis, read) for read in reads):
            merged[-1].append(axis)
        else:
            merged.append([axis])
    return merged


def directions(source: int, destination: int, lanes: int) -> list[str]:
    """Along which axis vectors may go: the source's, unless only the other one has whole vectors."""
    width = {"source": math.gcd(source, lanes), "destination": math.gcd(destination, lanes)}
    return sorted(width, key=lambda name: min(width[name], lanes // 4), reverse=True)


def choose_lanes(extent: int, lanes: int) -> Any:
    """Elements of a vector, which divide the extent."""
    widest = math.gcd(extent, min(lanes, MAX_TILE // ENOUGH_VECTORS))
    widths = [k for k in moves.divisors(widest, widest) if k > 1 or widest == 1]
    return moves.choose("lanes", widths, widest)


def choose_steps(extent: int) -> Any:
    """Vectors of a tile; where they do not divide the extent, the last tile is a smaller one."""
    steps = [k for k in (1, 2, 3, 4, 5, 6, 7, 8, 16) if k <= min(extent, ENOUGH_VECTORS) or extent % k == 0]
    whole = [k for k in steps if extent % k == 0 and ENOUGH_VECTORS // 2 <= k <= ENOUGH_VECTORS]
    return moves.choose("steps", steps, max(whole or [k for k in steps if k <= ENOUGH_VECTORS]))
