"""The smallest strategy: random candidates of random sketches. A template for others."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from tpo.measure.contract import Measurement
from tpo.search.contract import Searchable, Strategy
from tpo.space.space import draw_seed

ATTEMPTS = 8  # draws for every candidate asked for, before the space counts as exhausted


class Random(Strategy):
    """Draws sketches and their decisions at random, and learns nothing."""

    def __init__(self, space: Searchable, rng: np.random.Generator) -> None:
        self.space = space
        self.rng = rng

    def propose(self, count: int, known: Container[str]) -> list[Any]:
        """Random candidates that are new."""
        found: dict[str, Any] = {}
        for _ in range(ATTEMPTS * count):
            if len(found) == count or not self.space.sketches:
                break
            sketch = self.space.sketches[int(self.rng.integers(len(self.space.sketches)))]
            for row in sketch.domain.draw(1, self.rng):
                candidate = self.space.at(sketch, row, draw_seed(self.rng))
                if candidate is not None and candidate.key not in known:
                    found.setdefault(candidate.key, candidate)
        return list(found.values())

    def observe(self, results: Sequence[tuple[Any, Measurement]]) -> None:
        """Nothing to learn."""
