"""Proposing what was recorded before: the same candidates, on another machine or by another runner."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence

import numpy as np

from tpo.measure.contract import Measurement
from tpo.search.contract import Strategy
from tpo.space import Candidate, Space
from tpo.workload import Workload

_log = logging.getLogger(__name__)

# A candidate, or what a record has of one: its trace, its sketch, and the program it starts from, if any.
Recorded = Candidate | tuple[str, str, Workload | None]


class Replay(Strategy):
    """Proposes recorded candidates in the order they are given in: the best first. It learns nothing."""

    def __init__(self, space: Space, rng: np.random.Generator, recorded: Sequence[Recorded]) -> None:
        self.space, self.rng = space, rng
        self.recorded = list(recorded)
        self._made: dict[int, Candidate | None] = {}

    def propose(self, count: int, known: Container[str]) -> list[Candidate]:
        """The first recorded candidates that are not known."""
        found: dict[str, Candidate] = {}
        for position in range(len(self.recorded)):
            if len(found) >= count:
                break
            candidate = self._candidate(position)
            if candidate is not None and candidate.key not in known:
                found.setdefault(candidate.key, candidate)
        return list(found.values())

    def observe(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Nothing to learn."""

    def _candidate(self, position: int) -> Candidate | None:
        """The candidate of a record, replayed when it is first needed; None if TVM refuses the record."""
        if position not in self._made:
            self._made[position] = self._replayed(self.recorded[position])
        return self._made[position]

    def _replayed(self, recorded: Recorded) -> Candidate | None:
        if isinstance(recorded, Candidate):
            return recorded
        trace, sketch, program = recorded
        try:
            return self.space.replay(trace, sketch, program)
        except Exception as error:  # a damaged record, or one of another workload: TVM raises many kinds
            _log.warning("a record of %s cannot be replayed: %s", sketch or "an unnamed sketch", error)
            return None
