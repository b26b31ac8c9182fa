"""The smallest strategy: random candidates of random sketches. A template for others."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from tpo.measure.contract import Measurement
from tpo.search.contract import Strategy
from tpo.space import Candidate, Space
from tpo.space.space import draw_seed

ATTEMPTS = 8  # draws for every candidate asked for, before the space counts as exhausted


class Random(Strategy):
    """Draws sketches and their decisions at random, and learns nothing."""

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        self.space = space
        self.rng = rng

    def propose(self, count: int, known: Container[str]) -> list[Candidate]:
        """Random candidates that are new."""
        found: dict[str, Candidate] = {}
        for _ in range(ATTEMPTS * count):
            if len(found) == count or not self.space.sketches:
                break
            sketch = self.space.sketches[self.rng.integers(len(self.space.sketches))]
            candidate = self.space.sample(sketch, draw_seed(self.rng))
            if candidate is not None and candidate.key not in known:
                found.setdefault(candidate.key, candidate)
        return list(found.values())

    def observe(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Nothing to learn."""
