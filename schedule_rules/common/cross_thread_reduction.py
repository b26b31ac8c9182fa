"""Sum with all threads of a block, and compute the sum where it is needed.

for i, k: S[i]    -->    for i, k0: bind threadIdx k1: S[i]
"""

from __future__ import annotations

from typing import Any

from tpo.lang import Choice, analysis, decline, fork, rule, sample

THREADS = (4, 8, 16, 32, 64, 128, 256, 512)


@rule(target="cuda", when=analysis.is_plain_reduction, always=True)
def cross_thread_reduction(sch: Any, block: Any, hw: Any) -> None:
    """Let threads share a reduction, or leave it to one."""
    if not analysis.wants_split_reduction(sch, block, hw.max_threads_per_block):
        decline("it is no reduction, or has enough to do in parallel")
    if not fork("threads", [True, False]):
        return
    place = analysis.fusion_place(sch, block)
    bound = analysis.thread_extent(sch, place[0]) if place is not None else None
    threads = sample("extent", Choice(list(THREADS))) if bound is None else bound
    if place is not None:
        _, loop, innermost = place
        if bound is None:
            outer, inner = sch.split(innermost, [None, threads])
            sch.bind(inner, "threadIdx.x")
            loop = outer if innermost.same_as(loop) else loop
        sch.compute_at(block, loop, preserve_unit_loops=True)
        sch.set_scope(block, 0, "shared")
    _, summed = analysis.fuse_reduction(sch, block)
    _, inner = sch.split(summed, [None, threads])
    sch.bind(inner, "threadIdx.x")
