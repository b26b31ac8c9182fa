"""Functions without a reduction: one pass over the output, vectorised and parallel.

for i, j: A                 parallel i: for jo: vectorize ji: B
for i, j: B(A)       -->
"""

from __future__ import annotations

from typing import Any

from tpo.hardware import Hardware
from tpo.schedule import analysis, moves


def schedule(sch: Any, hw: Hardware) -> bool:
    """Schedule the function if every block of it is injective; False if one is not."""
    if not all(analysis.is_injective(sch, block) for block in analysis.blocks(sch)):
        return False
    for block in analysis.blocks(sch):
        moves.try_inline(sch, block)
    for block in analysis.blocks(sch):
        moves.elementwise(sch, block, hw)
    return True
