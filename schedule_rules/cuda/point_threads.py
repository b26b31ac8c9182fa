"""Anything else on a GPU: a thread for every element, one function after the other.

    for i, j: A          blockIdx i_j_0: threadIdx i_j_1: A
    for i, j, k: B  -->  blockIdx i_j_0: threadIdx i_j_1: for k: B

Sums stay in one thread.
"""

from __future__ import annotations

from typing import Any

from tpo.hardware import Gpu
from tpo.lang import Choice, analysis, decline, rule, sample
from tpo.schedule import moves

THREADS = (32, 64, 128, 256, 512)


@rule(target="cuda", on="function", when=analysis.is_fresh)
def point_threads(sch: Any, root: Any, hw: Gpu) -> None:
    """Give every element of every block to a thread."""
    moves.inline_free(sch)
    for block in analysis.blocks(sch):
        kinds = analysis.axis_kinds(sch, block)
        if "O" in kinds or not analysis.has_plain_loops(sch, block):
            decline("its loops cannot be told apart")
        loops = sch.get_loops(block)
        kept = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
        summed = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
        if kept:
            sch.reorder(*kept, *summed)
            loop = sch.fuse(*kept)
        else:
            loop = sch.add_unit_loop(loops[0] if loops else block)
        name = str(sch.get(block).name_hint)
        threads = sample(f"{name}.threads", Choice(list(THREADS), preferred=128))
        blocks, inner = sch.split(loop, [None, threads])
        sch.bind(blocks, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
