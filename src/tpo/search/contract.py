"""What a search strategy promises: it is asked for candidates and told what they measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence

import numpy as np

from tpo.measure.contract import Measurement
from tpo.space import Candidate


class Strategy(ABC):
    """Searches the space of one workload.

    All randomness comes from the generator a strategy was made with, so that a run can be continued
    from the generator's stored state. A strategy is used from one thread.
    """

    rng: np.random.Generator

    @abstractmethod
    def propose(self, count: int, known: Container[str]) -> list[Candidate]:
        """At most `count` new candidates, none of whose keys is in `known`, no two alike.

        Fewer, or none, mean that the space has nothing more to offer.
        """

    @abstractmethod
    def observe(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Learn from measurements; failures are among them."""
