"""Functions without a reduction: one pass over the output, vectorised and parallel.

for i, j: A                 parallel i: for jo: vectorize ji: B
for i, j: B(A)       -->
"""

from __future__ import annotations

from typing import Any

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, rule
from tpo.schedule import moves


@rule(target="cpu", on="function", when=analysis.is_fresh)
def elementwise(sch: Any, root: Any, hw: Hardware) -> None:
    """Make one pass over the output, vectorised and parallel."""
    if not all(analysis.is_injective(sch, block) for block in analysis.blocks(sch)):
        decline("one of its blocks is a reduction")
    for block in analysis.blocks(sch):
        moves.try_inline(sch, block)
    for block in analysis.blocks(sch):
        moves.elementwise(sch, block, hw)
