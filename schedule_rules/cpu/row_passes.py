"""Softmax, normalisation, sums of rows: all passes over a row in one visit, while it is in the L1 cache.

    for i, k: M                          parallel i:
    for i, k: E(M)                         for ko: vectorize ki: M
    for i, k: S(E)                 -->     for ko: vectorize ki: E(M)
    for i, k: N(E, S)                      for ko: vectorize ki: S(E)
                                           for ko: vectorize ki: N(E, S)

A reduction holds partial results in the lanes of a vector. Where the length of a row is no multiple of a
vector, the passes work on copies of rows that are filled up: 197 elements are 13 vectors of 16.
"""

from __future__ import annotations

import math
from typing import Any

from _row_program import in_whole_vectors
from tvm import tirx
from tvm.ir import Call, Op

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, restate, rule
from tpo.schedule import moves, partials

MAX_VECTORS = 4  # vectors of partial results
MAX_UNROLL = 16  # vectors of a pass in one straight piece of code
SHORT = 16  # vectors of a row in which a rest takes much of the time
IF_THEN_ELSE = Op.get("prim.if_then_else")


@rule(target="cpu", on="function", when=analysis.is_fresh)
def row_passes(sch: Any, root: Any, hw: Hardware) -> None:
    """Make all passes over a row in one visit."""
    if not any(analysis.is_reduction(sch, block) for block in analysis.blocks(sch)):
        decline("it has no reduction")
    if any(multiplies_matrices(sch, block) for block in analysis.blocks(sch)):
        decline("it meets the same numbers again in other rows")
    moves.inline_free(sch)
    rows, length = row_size(sch)
    effort = sum(moves.effort(sch, block) for block in analysis.blocks(sch))
    if rows < hw.cores and effort >= moves.MIN_PARALLEL_POINTS:
        decline("it has fewer rows than there are cores")
    lanes = min(hw.lanes(str(sch.get(block).writes[0].source.dtype)) for block in analysis.blocks(sch))
    vector = vector_of(length, lanes)
    if length % vector:
        program = in_whole_vectors(sch, rows, length, vector)
        if program is not None:
            sch, length = restate(program), -(-length // vector) * vector
        else:
            vector = math.gcd(length, lanes)
    if vector == 1 and length > 1:
        decline("its rows have a rest, and are not all walked in the same way")
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    stages = []
    for block in reductions:
        name = str(sch.get(block).name_hint)
        counts = moves.divisors(max(1, length // vector), MAX_VECTORS)
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


def multiplies_matrices(sch: Any, block: Any) -> bool:
    """Whether both operands of a block are read many times, unlike those of a matrix and a vector."""
    roles = analysis.contraction(sch, block)
    extents = analysis.iter_extents(sch, block)
    return roles is not None and math.prod(extents[k] for k in roles.rows) > 1 and extents[roles.column] > 1


def vector_of(length: int, lanes: int) -> int:
    """Lanes to compute rows of a length in: in short rows those of half a vector are better than a rest.

    >>> vector_of(24, 16), vector_of(1000, 16), vector_of(197, 16), vector_of(3, 16)
    (8, 16, 16, 4)
    """
    even = math.gcd(length, lanes)
    enough = 1 << (length - 1).bit_length()
    whole = even == lanes or (2 * even == lanes and length < SHORT * lanes)
    return even if whole else min(lanes, enough)


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
    vectors, rest = divmod(int(sch.get(loop).extent), vector)
    if rest == 0 and not branches_in_vectors(sch, block):
        name = str(sch.get(block).name_hint)
        straight = vectors if vectors <= MAX_UNROLL else 1
        unroll = moves.choose(f"{name}.unroll", moves.divisors(vectors, MAX_UNROLL), straight)
        _, unrolled, lane = sch.split(loop, [None, unroll, vector])
        sch.vectorize(lane)
        sch.unroll(unrolled)


def branches_in_vectors(sch: Any, block: Any) -> bool:
    """Whether a condition may differ between neighbours in a row, and not only from vector to vector."""
    stmt = sch.get(block)
    axis = stmt.iter_vars[-1].var
    calls = [call for call in analysis.find(Call, stmt.body) if call.op.same_as(IF_THEN_ELSE)]
    conditions = [call.args[0] for call in calls]
    uses = [var for var in analysis.find(tirx.Var, conditions) if var.same_as(axis)]
    by_vector = [node for node in analysis.find(tirx.FloorDiv, conditions) if node.a.same_as(axis)]
    return len(uses) > len(by_vector)
