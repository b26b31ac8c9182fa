"""Steps that several schedule rules share: inlining, epilogues, vectorised tails, plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, tirx

from tpo.hardware import Hardware
from tpo.lang import Choice, analysis, sample

# Waking TVM's thread pool costs about a microsecond, in which one core adds 16,000 numbers: below twice
# that, one thread is faster than two. A point with an exp costs as much as four with an addition.
MIN_PARALLEL_FLOPS = 200_000
MIN_PARALLEL_POINTS = 32_768
POINTS_OF_MATH = 4
MAX_VECTORS = 8  # neighbouring vectors that one step handles
# TVM's mark on a block that only depends on constants and is moved out of the function; its value is the
# number 1, because TVM's databases do not keep a boolean one.
AT_COMPILE_TIME = "meta_schedule.layout_rewrite_preproc"


def divisors(number: int, limit: int) -> list[int]:
    """All divisors up to a limit.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [k for k in range(1, min(number, limit) + 1) if number % k == 0]


def divisor_at_most(number: int, limit: int) -> int:
    """The largest divisor up to a limit.

    >>> divisor_at_most(12, 8)
    6
    """
    return divisors(number, limit)[-1]


def lanes_for(extent: int, lanes: int) -> int:
    """The widest vector, a power of two, that divides the extent.

    >>> lanes_for(24, 16)
    8
    """
    return math.gcd(extent, lanes)


def choose(name: str, values: Sequence[int], preferred: int) -> Any:
    """A site for one of some numbers, equally likely; `preferred` is what the default schedule takes.

    A choice that is none is the number itself.
    """
    return values[0] if len(values) == 1 else sample(name, Choice(list(values), preferred=preferred))


def index_map(function: Callable[..., list[Any]], ndim: int) -> Any:
    """TVM's IndexMap from a Python function of `ndim` variables."""
    return tirx.IndexMap.from_func(function, ndim=ndim, index_dtype="int64")


def try_inline(sch: Any, block: Any) -> bool:
    """Inline a block into its consumers if TVM can."""
    try:
        sch.compute_inline(block)
    except s_tir.ScheduleError:
        return False
    return True


def inline_copies(sch: Any, anchor: Any) -> None:
    """Inline producers of the anchor that only move elements, such as padding by zero rows."""
    for block in sch.get_producers(anchor):
        if analysis.is_copy(sch, block):
            inline_copies(sch, block)
            try_inline(sch, block)


def inline_free(sch: Any) -> None:
    """Inline blocks element by element where that repeats no work: copies, and what is read only once."""
    for block in analysis.blocks(sch):
        if not analysis.is_injective(sch, block):
            continue
        consumers = sch.get_consumers(block)
        costly = analysis.calls_math(sch, block) or analysis.find(tirx.Div, sch.get(block).body)
        repeats = len(consumers) == 1 and analysis.work(sch, consumers[0]) > analysis.work(sch, block)
        once = len(consumers) == 1 and not (costly and repeats)
        if once or (consumers and analysis.is_copy(sch, block)):
            try_inline(sch, block)


def effort(sch: Any, block: Any) -> int:
    """How much a block costs, in points of an addition."""
    return analysis.work(sch, block) * (POINTS_OF_MATH if analysis.calls_math(sch, block) else 1)


def downstream(sch: Any, block: Any) -> list[Any]:
    """Blocks that depend on the given one, in program order."""
    reached: list[Any] = []
    frontier = [block]
    while frontier:
        for consumer in sch.get_consumers(frontier.pop()):
            if not any(sch.get(consumer).same_as(sch.get(seen)) for seen in reached):
                reached.append(consumer)
                frontier.append(consumer)
    order = [sch.get(b) for b in analysis.blocks(sch)]
    return sorted(reached, key=lambda b: next(k for k, s in enumerate(order) if s.same_as(sch.get(b))))


def collect_epilogue(sch: Any, anchor: Any) -> Any:
    """Merge what follows the anchor into one block over the same axes and return it.

    When nothing follows, or what follows visits the anchor's result in another order or more than
    once, the epilogue is a plain copy out of the accumulators and the rest stays as it is.
    """
    following = downstream(sch, anchor)
    if following and all(analysis.is_injective(sch, block) for block in following):
        mergeable = [try_inline(sch, block) for block in following[:-1]]
        last = following[-1]
        if all(mergeable) and _reads_in_place(sch, last, sch.get(anchor).writes[0].source):
            # The last ones first: what feeds them then feeds the epilogue.
            for block in reversed(analysis.blocks_except(sch, anchor, last)):
                if analysis.is_injective(sch, block) and _feeds(sch, block, last):
                    try_inline(sch, block)
            return last
    return sch.cache_write(anchor, 0, "global")


def _feeds(sch: Any, block: Any, consumer: Any) -> bool:
    consumers = sch.get_consumers(block)
    return bool(consumers) and all(sch.get(c).same_as(sch.get(consumer)) for c in consumers)


def _reads_in_place(sch: Any, block: Any, buffer: Any) -> bool:
    """Whether a block reads a buffer, and writes its own, at exactly its own axes."""
    stmt = sch.get(block)
    if analysis.iter_extents(sch, block) != [int(dim) for dim in buffer.shape]:
        return False
    accesses = [load.indices for load in analysis.loads(stmt.body.value) if load.source.same_as(buffer)]
    return bool(accesses) and all(
        len(indices) == len(stmt.iter_vars)
        and all(index.same_as(axis.var) for index, axis in zip(indices, stmt.iter_vars, strict=True))
        for indices in [*accesses, stmt.body.indices]
    )


def vectorize_tail(sch: Any, loop: Any, lanes: int) -> None:
    """Split a loop into unrolled vectors of the given width."""
    outer, inner = sch.split(loop, [None, lanes])
    sch.vectorize(inner)
    sch.unroll(outer)


def vectorize_innermost(sch: Any, block: Any) -> None:
    """Vectorise the innermost loop of a block and unroll the two around it."""
    *_, row, vectors, lane = sch.get_loops(block)
    sch.vectorize(lane)
    sch.unroll(vectors)
    sch.unroll(row)


def parallel_outer(sch: Any, loops: list[Any], points: int, hw: Hardware) -> None:
    """Fuse outer loops until every core gets several chunks, and make them parallel."""
    if points < MIN_PARALLEL_POINTS or not loops:
        return
    chunks, taken = 1, []
    for loop in loops:
        taken.append(loop)
        chunks *= int(sch.get(loop).extent)
        if chunks >= 4 * hw.cores:
            break
    sch.parallel(sch.fuse(*taken) if len(taken) > 1 else taken[0])


def elementwise(sch: Any, block: Any, hw: Hardware) -> None:
    """Vectorise the innermost axis of an injective block and run the outer ones in parallel.

    for i, j: B  -->  parallel i: for jo: unroll jv: vectorize ji: B

    How much a thread takes at a time, where all loops are one, and the unrolling, where they are not,
    are free, unless the block runs at compile time.
    """
    points = analysis.work(sch, block)
    name = str(sch.get(block).name_hint)
    lanes = hw.lanes(str(sch.get(block).writes[0].source.dtype))
    free = AT_COMPILE_TIME not in sch.get(block).annotations
    loops = sch.get_loops(block)
    if not loops:
        return
    if _is_flat(sch, block):
        loops = [sch.fuse(*loops)] if len(loops) > 1 else list(loops)
        total = int(sch.get(loops[0]).extent)
        vector = lanes_for(total, lanes)
        chunks = {
            k: divisor_at_most(total // vector, max(1, total // vector // k)) for k in _chunk_counts(hw)
        }
        preferred = chunks[4 * hw.cores]
        chunk = choose(f"{name}.chunk", sorted(set(chunks.values())), preferred) if free else preferred
        loops = list(sch.split(loops[0], [None, chunk, vector]))
    else:
        extent = int(sch.get(loops[-1]).extent)
        vector = lanes_for(extent, lanes)
        unroll = choose(f"{name}.unroll", divisors(extent // vector, MAX_VECTORS), 1) if free else 1
        outer, unrolled, lane = sch.split(loops[-1], [None, unroll, vector])
        sch.unroll(unrolled)
        loops = [*loops[:-1], outer, lane]
    if vector > 1:
        sch.vectorize(loops[-1])
    parallel_outer(sch, loops[:-1], points, hw)


def _chunk_counts(hw: Hardware) -> list[int]:
    """Into how many pieces a flat loop may be cut."""
    return [hw.cores * k for k in (1, 2, 4, 8, 16)]


def _is_flat(sch: Any, block: Any) -> bool:
    """Whether the block reads and writes whole buffers at its own axes, so that its loops are one loop."""
    stmt = sch.get(block)
    accesses = [(stmt.body.buffer, stmt.body.indices)]
    accesses += [(load.source, load.indices) for load in analysis.loads(stmt.body.value)]
    return all(
        len(indices) == len(stmt.iter_vars)
        and [int(dim) for dim in buffer.shape] == analysis.iter_extents(sch, block)
        and all(index.same_as(axis.var) for index, axis in zip(indices, stmt.iter_vars, strict=True))
        for buffer, indices in accesses
    )
