"""Where a block is really computed: TVM takes the nearest possible loop, which depends on other decisions.

`SampleComputeLocation` decides about a loop around the block's first consumer. Loops of one step are no
place, nor is what lies inside summation; TVM then takes the next possible loop outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpo.cost.columns import Number, at_most, both, maximum, where
from tpo.cost.loops import Loop
from tpo.lang.distributions import INLINE, ROOT


def resolve(decided: Number, loops: Sequence[Loop], parallel: Sequence[bool], inlined: bool) -> Number:
    """The number of the loop that TVM takes for a decision, or what stands for the root and for inlining.

    `parallel` says of each loop whether it is not summed over, `inlined` whether the block can be.
    """
    found: Number = where(at_most(decided, float(INLINE)), float(INLINE if inlined else ROOT), float(ROOT))
    summed: Number = 0.0
    over: Number = 0.0
    last = max((k for k, is_parallel in enumerate(parallel) if is_parallel), default=-1)
    for position, (loop, is_parallel) in enumerate(zip(loops, parallel, strict=True)):
        several = at_most(2.0, loop.extent)
        if is_parallel:
            over = maximum(over, both(several, summed))
        else:
            summed = maximum(summed, several)
            over = maximum(over, several) if position > last else over
        possible = both(both(several, at_most(over, 0.0)), at_most(float(position), decided))
        found = where(possible, float(position), found)
    return found
