"""Split a reduction in parts that can be computed side by side.

for i, k: S[i]    -->    for i, k0, k1: P[i, k0];  for i, k0: S[i]
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tpo.lang import PerfectTile, analysis, decline, fork, rule, sample

JOBS_PER_CORE = 16
MAX_INNER = 64


@rule(target="cpu", when=analysis.is_plain_reduction, always=True)
def add_rfactor(sch: Any, block: Any, hw: Any) -> None:
    """Make partial results along the outer or the inner half of a reduction, or leave it whole."""
    if not analysis.wants_split_reduction(sch, block, JOBS_PER_CORE * hw.cores):
        decline("it is no reduction, or has enough to do in parallel")
    half = fork("partial", ["outer", "inner", "none"])
    if half == "none":
        return
    kept, summed = analysis.fuse_reduction(sch, block)
    outer, inner = sch.split(summed, sample("split", PerfectTile.of(sch, summed, 2, MAX_INNER)))
    try:
        sch.rfactor(outer if half == "outer" else inner, kept)
    except s_tir.ScheduleError as error:
        decline(f"TVM cannot split it: {error}")
    sch.annotate(block, "meta_schedule.random_compute_producer", 1)
