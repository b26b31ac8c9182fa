"""Softmax, normalisation, sums of rows: all passes over a row in one visit, while it is in the L1 cache.

    for i, k: M                          parallel i:
    for i, k: E(M)                         for ko: vectorize ki: M
    for i, k: S(E)                 -->     for ko: vectorize ki: E(M)
    for i, k: N(E, S)                      for ko: vectorize ki: S(E)
                                           for ko: vectorize ki: N(E, S)

A reduction holds partial results in the lanes of a vector. Where the length of a row is no multiple of a
vector, what is reduced is kept in rows of whole vectors, filled up with what the reduction starts from:
197 elements are 13 vectors of 16.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, rule
from tpo.schedule import moves, partials

MAX_VECTORS = 4  # vectors of partial results
MAX_UNROLL = 4


@rule(target="cpu", on="function", when=analysis.is_fresh)
def row_passes(sch: Any, root: Any, hw: Hardware) -> None:
    """Make all passes over a row in one visit."""
    if not any(analysis.is_reduction(sch, block) for block in analysis.blocks(sch)):
        decline("it has no reduction")
    moves.inline_free(sch)
    rows, length = row_size(sch)
    effort = sum(moves.effort(sch, block) for block in analysis.blocks(sch))
    if rows < hw.cores and effort >= moves.MIN_PARALLEL_POINTS:
        decline("it has fewer rows than there are cores")
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    lanes = min(hw.lanes(str(sch.get(block).writes[0].source.dtype)) for block in analysis.blocks(sch))
    vector = vector_of(length, lanes)
    if length % vector and not all(reads_plain_rows(sch, block) for block in reductions):
        vector = math.gcd(length, lanes)
    if vector == 1 and length > 1:
        decline("its rows have a rest, and what it reduces is computed on the way")
    for block in reductions:
        if length % vector:
            fill_up(sch, block, vector)
    stages = []
    for block in reductions:
        name = str(sch.get(block).name_hint)
        counts = moves.divisors(max(1, length // vector), MAX_VECTORS) if length % vector == 0 else [1]
        width = moves.choose(f"{name}.partials", [vector * k for k in counts], vector)
        stages.append(partials.split_reduction(sch, block, width))
    row = visit_rows(sch, rows)
    if effort >= moves.MIN_PARALLEL_POINTS:
        sch.parallel(row)
    for block in analysis.blocks(sch):
        if analysis.is_injective(sch, block) and analysis.work(sch, block) > rows:
            vectorize_pass(sch, block, vector)
    for stage in stages:
        partials.vectorize_stages(sch, stage, vector)


def vector_of(length: int, lanes: int) -> int:
    """Lanes to compute rows of a length in: those of half a vector are better than a rest.

    >>> vector_of(1000, 16), vector_of(197, 16), vector_of(3, 16)
    (8, 16, 4)
    """
    even = math.gcd(length, lanes)
    enough = 1 << (length - 1).bit_length()
    return even if 2 * even >= lanes else min(lanes, enough)


def row_size(sch: Any) -> tuple[int, int]:
    """Number and length of the rows; declines where not every block is about the same contiguous rows."""
    sizes = set()
    for block in analysis.blocks(sch):
        if not analysis.has_simple_loops(sch, block) or not isinstance(sch.get(block).body, tirx.BufferStore):
            decline("one of its blocks has no plain loops")
        if analysis.is_reduction(sch, block):
            if not analysis.sums_contiguous_rows(sch, block):
                decline("it reduces other than contiguous rows")
            extents, count = analysis.iter_extents(sch, block), analysis.reduction_count(sch, block)
            sizes.add((math.prod(extents[:-count]), math.prod(extents[-count:])))
    if len(sizes) != 1:
        decline("its reductions are not all of the same rows")
    ((rows, length),) = sizes
    for block in analysis.blocks(sch):
        if not analysis.is_reduction(sch, block) and analysis.work(sch, block) not in (rows, rows * length):
            decline("one of its blocks has other rows")
    if rows == 1 and not analysis.iter_extents(sch, analysis.blocks(sch)[-1]):
        decline("it has no loop over rows")
    return rows, length


def reads_plain_rows(sch: Any, block: Any) -> bool:
    """Whether a reduction over one axis takes elements as they are."""
    return reduced(sch, block) is not None and analysis.reduction_count(sch, block) == 1


def reduced(sch: Any, block: Any) -> Any:
    """What is read, where a reduction combines its result with just that."""
    store = sch.get(block).body
    operands = [getattr(store.value, side, None) for side in "ab"]
    others = [x for x in operands if not (isinstance(x, TensorLoad) and x.source.same_as(store.buffer))]
    return others[0] if len(others) == 1 and isinstance(others[0], TensorLoad) else None


def fill_up(sch: Any, block: Any, vector: int) -> None:
    """Keep what a reduction reads in rows of whole vectors, which end with what the reduction starts from."""
    read = reduced(sch, block)
    start = sch.get(block).init.value
    made = [other for other in analysis.blocks(sch) if sch.get(other).writes[0].source.same_as(read.source)]
    copy = made[0] if made else sch.cache_read(block, analysis.read_index(sch, block, read.source), "global")

    def in_vectors(*dims: Any) -> list[Any]:
        return [*dims[:-1], dims[-1] // vector, dims[-1] % vector]

    layout = moves.index_map(in_vectors, len(read.indices))
    sch.transform_layout(copy, ("write", 0), layout, pad_value=start)


def visit_rows(sch: Any, rows: int) -> Any:
    """Compute all blocks inside the loop over rows of the last one; returns that loop."""
    *others, last = analysis.blocks(sch)
    outer: list[Any] = []
    loops = list(sch.get_loops(last))
    for loop, kind in zip(loops, analysis.loop_kinds(sch, loops), strict=True):
        if kind == "S" and math.prod(int(sch.get(one).extent) for one in outer) < rows:
            outer.append(loop)
    if not outer:
        outer = loops[:1]
    if math.prod(int(sch.get(loop).extent) for loop in outer) != rows:
        decline("its last block has other rows")
    row = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    for block in reversed(others):
        sch.compute_at(block, row, preserve_unit_loops=True)
    return row


def vectorize_pass(sch: Any, block: Any, vector: int) -> None:
    """Vectorise a pass over a row; where its length has a rest, LLVM does that better than TVM."""
    _, *loops = sch.get_loops(block)
    loop = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    if int(sch.get(loop).extent) % vector == 0 and not analysis.has_branches(sch, block):
        name = str(sch.get(block).name_hint)
        counts = moves.divisors(int(sch.get(loop).extent) // vector, MAX_UNROLL)
        _, unrolled, lane = sch.split(loop, [None, moves.choose(f"{name}.unroll", counts, 1), vector])
        sch.vectorize(lane)
        sch.unroll(unrolled)
