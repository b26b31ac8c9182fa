"""Softmax and normalisation on a GPU: a block of threads for every row, all passes over it in shared memory.

    for i, k: M(x)               blockIdx i:
    for i, k: E(x, M)     -->      threadIdx k1: for k0: M(x)            summed up across threads
    for i, k: S(E)                 threadIdx k1: for k0: E(x, M)         in shared memory
    for i, k: out(E, S)            threadIdx k1: for k0: S(E); for k0: out(E, S)

How many threads a block has is free.
"""

from __future__ import annotations

import math
from typing import Any

from tpo.hardware import Gpu, dtype_bytes
from tpo.lang import Choice, analysis, constrain, decline, rule, sample
from tpo.schedule import moves

THREADS = (32, 64, 128, 256, 512, 1024)
STATIC_BYTES = 48 * 1024  # of shared memory with a size in the source: TVM reduces across threads in no other
MIN_ROW = 32  # numbers, below which a row keeps no warp busy


@rule(target="cuda", on="function", when=analysis.is_fresh)
def row_threads(sch: Any, root: Any, hw: Gpu) -> None:
    """Let a block of threads compute a row, pass after pass."""
    moves.inline_free(sch)
    *passes, last = analysis.blocks(sch)
    sums = [block for block in passes if analysis.is_reduction(sch, block)]
    if not sums or analysis.is_reduction(sch, last):
        decline("it is no sequence of passes that ends with one over all elements")
    summed = {_summed(sch, block) for block in sums}
    extents = analysis.iter_extents(sch, last)
    kept = len(extents) - analysis.reduction_count(sch, sums[0])
    row = math.prod(extents[kept:])
    if summed != {row} or row < MIN_ROW:
        decline("its sums are not over the end of its result")
    threads = sample("threads", Choice([count for count in THREADS if count <= max(2 * row, MIN_ROW)]))
    constrain(threads <= hw.max_threads_per_block, "a block has so many threads")
    loops = sch.get_loops(last)
    outer = sch.fuse(*loops[:kept]) if kept else sch.add_unit_loop(loops[0])
    share(sch, sch.fuse(*loops[kept:]), threads)
    held = 0
    for block in reversed(passes):
        buffer = sch.get(block).writes[0].source
        is_sum = analysis.is_reduction(sch, block)
        held += (1 if is_sum else row) * dtype_bytes(str(buffer.dtype))
        sch.compute_at(block, outer, preserve_unit_loops=True)
        sch.set_scope(block, 0, "shared")
        share(sch, sch.fuse(*inner_loops(sch, block, outer, is_sum)), threads)
    constrain(held <= STATIC_BYTES, "a row fits shared memory")
    sch.bind(outer, "blockIdx.x")


def share(sch: Any, loop: Any, threads: Any) -> None:
    """Give a loop to all threads, neighbours next to each other."""
    _, inner = sch.split(loop, [None, threads])
    sch.bind(inner, "threadIdx.x")


def inner_loops(sch: Any, block: Any, outer: Any, is_sum: bool) -> list[Any]:
    """The loops of a block inside another one: all of them, or those it sums up along."""
    around = next(k for k, loop in enumerate(sch.get_loops(block)) if sch.get(loop).same_as(sch.get(outer)))
    loops = sch.get_loops(block)[around + 1 :]
    return list(loops[-analysis.reduction_count(sch, block) :] if is_sum else loops)


def _summed(sch: Any, block: Any) -> int:
    """How many elements a block sums up each time."""
    return math.prod(analysis.iter_extents(sch, block)[-analysis.reduction_count(sch, block) :])
