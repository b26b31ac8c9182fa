"""Inline what costs nothing to compute again, into what reads it or into what it reads.

for i: A[i]                    for i: B[i] = f(A)[i]
for i: B[i] = f(A[i])    -->
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tpo.lang import Rule, analysis, decline, rule


def auto_inline(
    into_producer: bool, careful: bool, costly: tuple[str, ...] = (), target: str = "any"
) -> Rule:
    """A rule that inlines; a `careful` one only what is read in order, without conditions or costly calls."""

    def is_cheap(sch: Any, block: Any) -> bool:
        stmt = sch.get(block)
        if len(stmt.writes) != 1 or analysis.is_reduction(sch, block):
            return False
        if analysis.is_output(sch, block) and not into_producer:
            return False
        if not stmt.reads or not careful or analysis.is_spatial_function(sch):
            return True
        costs = analysis.calls(sch, block, costly) or analysis.has_branches(sch, block)
        return not costs and analysis.reads_in_order(sch, block)

    @rule(target=target, when=is_cheap, always=True)
    def inline(sch: Any, block: Any, hw: Any) -> None:
        """Inline a block into its readers, or into the one it reads."""
        if _try(sch.compute_inline, block, sch.get_consumers(block)):
            return
        producers = sch.get_producers(block) if into_producer else []
        whole = len(producers) == 1 and not analysis.is_reduction(sch, producers[0])
        if not whole or not _try(sch.reverse_compute_inline, block, producers):
            decline("TVM cannot inline it")

    return inline


def _try(inline: Any, block: Any, neighbours: Any) -> bool:
    if not neighbours:
        return False
    try:
        inline(block)
    except s_tir.ScheduleError:
        return False
    return True


def is_constant_scalar(sch: Any, block: Any) -> bool:
    """Whether a block makes a single constant that is no result."""
    stmt = sch.get(block)
    scalar = not stmt.reads and len(stmt.writes) == 1 and len(stmt.writes[0].source.shape) == 0
    return scalar and not analysis.is_output(sch, block)


@rule(when=is_constant_scalar, always=True)
def inline_constant_scalars(sch: Any, block: Any, hw: Any) -> None:
    """Inline a block that makes a single constant."""
    sch.compute_inline(block)


auto_inline_cpu = auto_inline(into_producer=False, careful=True, costly=("tirx.exp",), target="cpu")
auto_inline_cuda = auto_inline(into_producer=True, careful=False, target="cuda")
