"""Compute a block somewhere inside the loops of the one that reads it.

for i, j: A            for i:
for i, j: B(A)   -->     for j: A
                         for j: B(A)
"""

from __future__ import annotations

from typing import Any

from tpo.lang import ComputeLocation, analysis, decline, rule, sample

PRODUCER_TOO = "meta_schedule.random_compute_producer"


def is_movable(sch: Any, block: Any) -> bool:
    """Whether a block has a reader, loops of its own, and no place that a rule has given it."""
    if analysis.is_tiled(sch, block) or analysis.is_output(sch, block):
        return False
    loops = analysis.outer_loops(sch, block)
    return bool(loops) and analysis.block_count(loops[0]) == 1


@rule(when=is_movable, always=True)
def random_compute_location(sch: Any, block: Any, hw: Any) -> None:
    """Move a block that nobody has tiled to a random place."""
    if not sch.get_consumers(block):
        decline("nobody reads it")
    producers = []
    if PRODUCER_TOO in sch.get(block).annotations:
        producers = sch.get_producers(block)
        sch.unannotate(block, PRODUCER_TOO)
    move(sch, block, "location")
    for producer in producers:
        move(sch, producer, "producer_location")


def move(sch: Any, block: Any, site: str) -> None:
    """Compute a block at a sampled location."""
    sch.compute_at(block, sample(site, ComputeLocation.of(sch, block)), preserve_unit_loops=True)
