"""Blocks of a program while it is scheduled, and how far their axes reach inside their loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tpo.cost.columns import Number, ceil_div, maximum, minimum
from tpo.cost.loops import Index, Loop, Steps, covered


@dataclass(frozen=True)
class Link:
    """An axis of a moved block follows an index with which a partner uses the buffer between them.

    The partner uses `size` elements from the index on; a step of the axis is `step` elements of the buffer.
    """

    partner: Block
    index: Index
    size: float
    step: float


@dataclass(eq=False)
class Block:
    """A block and how far its axes reach.

    `values` are what each axis is in terms of roots. A block that was moved below loops of another one has
    its `own` roots for the loops it got there; outside of these, its axes follow their `links`. Indices of a
    block that `rfactor` made may multiply its axes with `steps`.
    """

    sref: Any
    name: str
    extents: list[Number]
    values: list[Index]
    summed: list[bool]
    variables: dict[Any, int]
    path: list[Loop] = field(default_factory=list)
    steps: Steps | None = None
    own: frozenset[int] | None = None
    links: list[list[Link]] = field(default_factory=list)

    @property
    def attached(self) -> int:
        """How many of its loops it shares with the block it was moved to."""
        if self.own is None:
            return 0
        own = [bool(loop.along.keys() & self.own) for loop in self.path]
        return own.index(True) if any(own) else len(own)

    def width(self, axis: int, depth: int) -> Number:
        """How many values of an axis its loops from `depth` on go through, the outermost being 0."""
        if depth < self.attached:
            return self.needed(axis, depth)
        reach = self.values[axis].width(lambda root: covered(self.path[depth:], root))
        full = self.extents[axis]
        return full if reach is None else minimum(reach, full)

    def needed(self, axis: int, depth: int) -> Number:
        """How many values of an axis its partners need while their loops from `depth` on run."""
        full = self.extents[axis]
        widest: Number = 0.0
        for link in self.links[axis]:
            reach = link.partner.reach(link.index, depth)
            if reach is None:
                return full
            widest = maximum(widest, ceil_div(reach + (link.size - 1.0), link.step))
        return minimum(widest, full) if self.links[axis] else full

    def index(self, expr: Any) -> Index:
        """An index in its axes."""
        return Index.of(expr, self.variables, self.steps)

    def reach(self, index: Index, depth: int) -> Number | None:
        """How far an index in its axes reaches while its loops from `depth` on run; None if unknown."""
        return index.width(lambda axis: self.width(axis, depth))


@dataclass(frozen=True)
class Nest:
    """A block of the finished program: its loops from the outside, and its statement."""

    block: Block
    kinds: tuple[str, ...]
    summed: tuple[bool, ...]  # whether a loop belongs to an axis that is accumulated over
    single: tuple[bool, ...]  # whether a loop has nothing else inside
    stmt: Any

    @property
    def loops(self) -> list[Loop]:
        """All loops around it."""
        return self.block.path
