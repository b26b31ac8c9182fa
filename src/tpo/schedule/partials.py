"""Reductions along contiguous memory: lanes of a vector hold partial results, which are combined at the end.

for k: S  -->  for ko: vectorize ki: P[ki];  for q: vectorize l: N[l];  for l: S
"""

from __future__ import annotations

from typing import Any

from tpo.lang import analysis
from tpo.schedule import moves


def split_reduction(sch: Any, block: Any, width: Any) -> list[Any]:
    """Compute a reduction, whose summed axes are its last ones, in `width` lanes; returns its stages."""
    kept = len(sch.get_loops(block)) - analysis.reduction_count(sch, block)
    summed = sch.get_loops(block)[kept:]
    loop = sch.fuse(*summed) if len(summed) > 1 else summed[0]
    _, lane = sch.split(loop, [None, width])
    stages = [sch.rfactor(lane, kept), block]
    count = int(sch.get(sch.get_loops(block)[-1]).extent)
    narrow = 1 << (count.bit_length() // 2)
    if 1 < narrow < count and count % narrow == 0:
        # In two steps: to add many lanes one after the other takes as long as a short row.
        _, lane = sch.split(sch.get_loops(block)[-1], [None, narrow])
        stages.insert(1, sch.rfactor(lane, kept))
    return stages


def vectorize_stages(sch: Any, stages: list[Any], vector: int, outside: int = 1) -> None:
    """Vectorise the stages of a reduction that is computed for one row inside so many loops."""
    for stage in stages:
        loops = list(sch.get_loops(stage))[outside:]
        kinds = analysis.loop_kinds(sch, loops)
        kept = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
        steps = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
        lanes = [loop for loop in kept if int(sch.get(loop).extent) > 1]
        sch.reorder(*(loop for loop in kept if loop not in lanes), *steps, *lanes)
        if stage is not stages[0]:
            sch.unroll(steps[-1])
        for lane in lanes:
            moves.vectorize_tail(sch, lane, min(vector, int(sch.get(lane).extent)))
        init = sch.decompose_reduction(stage, steps[0])  # last: what has no init may not be vectorised
        if lanes:
            *_, vectors, lane = sch.get_loops(init)
            sch.vectorize(lane)
            sch.unroll(vectors)
