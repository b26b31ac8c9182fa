"""Pooling, over windows and over whole maps, with channels last: lanes hold channels, pixels are neighbours.

    for y, x, c: P = input or -inf          parallel y block, c block:
    for y, x, c, window: W           -->      for y, x tile:
    for y, x, c: epilogue                       for window: unroll x: vectorize c: W (registers)
                                                unroll x: vectorize c: epilogue

Padding is a condition on whole vectors. Where channels are no multiple of a vector, vectors are as wide as
divides them, and several stand in for a whole one.
"""

from __future__ import annotations

import math
from typing import Any

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, rule
from tpo.schedule import moves

MAX_VECTORS, ENOUGH_VECTORS = 8, 4  # of neighbouring channels that one step accumulates
MAX_PIXELS = 4  # neighbouring outputs of a row that share what their windows read
MAX_STRAIGHT = 32  # positions of a window that are straight code
CHUNKS_PER_CORE = 4  # pieces of work a core gets


@rule(target="cpu", on="function", when=analysis.is_fresh)
def pooling(sch: Any, root: Any, hw: Hardware) -> None:
    """Accumulate some channels of some neighbouring pixels in registers while the window passes."""
    anchor = single_pooling(sch)
    if anchor is None:
        decline("its work is not one pooling with channels last")
    points = analysis.work(sch, anchor)
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    window = points // math.prod(int(dim) for dim in sch.get(anchor).writes[0].source.shape)
    for block in sch.get_producers(anchor):
        if analysis.is_injective(sch, block) and not analysis.calls_math(sch, block):
            moves.try_inline(sch, block)
    epilogue = moves.collect_epilogue(sch, anchor)
    *outer, column, channel = sch.get_loops(epilogue)
    straight = window <= MAX_STRAIGHT and fork("window", ["straight", "loops"]) == "straight"
    lanes = moves.lanes_for(int(sch.get(channel).extent), hw.lanes(dtype))
    enough = ENOUGH_VECTORS if window <= MAX_STRAIGHT else MAX_VECTORS
    vectors = choose_vectors(int(sch.get(channel).extent) // lanes, enough)
    pixels = moves.divisors(int(sch.get(column).extent), MAX_PIXELS)
    channel, vector, lane = sch.split(channel, [None, vectors, lanes])
    column, pixel = sch.split(column, [None, moves.choose("pixels", pixels, 1)])
    sch.reorder(*outer, column, channel, pixel, vector, lane)
    sch.compute_at(anchor, channel, preserve_unit_loops=True)
    sch.set_scope(anchor, 0, "local")
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.unroll(pixel)
    first = window_outside(sch, anchor, straight, lanes)
    if points >= moves.MIN_PARALLEL_POINTS:
        share(sch, [*outer, column, channel], hw)
    init = sch.decompose_reduction(anchor, first)
    moves.vectorize_innermost(sch, init)
    for block in analysis.blocks_except(sch, anchor, init, epilogue):
        moves.elementwise(sch, block, hw)


def single_pooling(sch: Any) -> Any:
    """The function's only reduction, if it takes elements as they are and keeps the contiguous axis."""
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    if len(reductions) != 1:
        return None
    (anchor,) = reductions
    stmt = sch.get(anchor)
    kept = len(stmt.iter_vars) - analysis.reduction_count(sch, anchor)
    contiguous = analysis.contiguous_axis(sch, anchor)
    plain = analysis.has_simple_loops(sch, anchor) and analysis.product_of(stmt.body) is None
    return anchor if plain and kept >= 2 and contiguous == kept - 1 else None


def choose_vectors(count: int, enough: int) -> Any:
    """How many vectors of channels one step accumulates."""
    counts = moves.divisors(count, MAX_VECTORS)
    return moves.choose("vectors", counts, max(k for k in counts if k <= enough))


def window_outside(sch: Any, anchor: Any, straight: bool, lanes: int) -> Any:
    """Put the loops over the window around those over pixels and channels; the outermost of them."""
    loops = sch.get_loops(anchor)
    count = analysis.reduction_count(sch, anchor)
    *_, pixel, channel = loops[:-count]
    reduction = loops[-count:]
    vector, lane = sch.split(channel, [None, lanes])
    sch.reorder(*reduction, pixel, vector, lane)
    sch.vectorize(lane)
    for loop in [*reduction, pixel, vector] if straight else [pixel, vector]:
        sch.unroll(loop)
    return reduction[0]


def share(sch: Any, loops: list[Any], hw: Hardware) -> None:
    """Make as many outer loops parallel as give every core several pieces; how many pieces is free."""
    extents = [int(sch.get(loop).extent) for loop in loops]
    taken = next(
        (k for k in range(1, len(loops)) if math.prod(extents[:k]) >= CHUNKS_PER_CORE * hw.cores), len(loops)
    )
    fused = sch.fuse(*loops[:taken]) if taken > 1 else loops[0]
    total = int(sch.get(fused).extent)
    sizes = sorted({moves.divisor_at_most(total, max(1, total // (hw.cores * k))) for k in (1, 2, 4, 8)})
    several = [size for size in sizes if total // size >= CHUNKS_PER_CORE * hw.cores] or sizes[:1]
    chunk, _ = sch.split(fused, [None, moves.choose("rows", sizes, several[-1])])
    sch.parallel(chunk)
