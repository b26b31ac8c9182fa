"""Bind what no other rule has bound: the kept loops, fused, to blocks and threads.

for i, j: A    -->    bind blockIdx i_j_0: bind threadIdx i_j_1: A
"""

from __future__ import annotations

from typing import Any

from tpo.lang import Choice, analysis, rule, sample

THREADS = (32, 64, 128, 256, 512, 1024)
MAX_BLOCKS = 256


def is_unbound(sch: Any, block: Any) -> bool:
    """Whether no loop around a block is bound to the GPU's blocks yet."""
    loops = analysis.outer_loops(sch, block)
    return not analysis.is_tiled(sch, block) and not any(
        analysis.thread_of(loop).startswith("blockIdx") for loop in loops
    )


@rule(target="cuda", when=is_unbound, always=True)
def auto_bind(sch: Any, block: Any, hw: Any) -> None:
    """Give a block's outer loops to the GPU's blocks and threads."""
    nest = analysis.gpu_nest(sch, block)
    loops = list(sch.get_loops(block))
    fusible = min(nest.shared_from, nest.spatial)
    if nest.spatial == 0:
        loops.insert(0, sch.add_unit_loop(loops[0] if loops else block))
        fusible = min(nest.shared_from + 1, 1)
    if nest.thread_at is not None:
        sch.bind(sch.fuse(*sch.get_loops(block)[: min(fusible, nest.thread_at)]), "blockIdx.x")
        return
    bind(sch, sch.fuse(*loops[:fusible]), hw)


def bind(sch: Any, loop: Any, hw: Any) -> None:
    """Bind one loop, leaving a serial part where the GPU has too few threads for all of it."""
    extent, most = int(sch.get(loop).extent), hw.max_threads_per_block
    if extent <= MAX_BLOCKS * most:
        options = [count for count in THREADS if count <= min(extent, most)]
        threads: Any = min(extent, most)
        if options:
            threads = options[0] if len(options) == 1 else sample("threads", Choice(options))
        blocks, inner = sch.split(loop, [None, threads])
    else:
        serial, blocks, inner = sch.split(loop, [None, MAX_BLOCKS, most])
        sch.reorder(blocks, inner, serial)
    sch.bind(blocks, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
