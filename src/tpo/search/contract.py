"""What a search strategy promises, and what it may ask of the space it searches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tpo.measure.contract import Measurement
from tpo.space.decisions import Domain, Rows


class SketchLike(Protocol):
    """A structure with free decisions; `tpo.space.Sketch` is one."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def domain(self) -> Domain: ...  # noqa: D102
    @property
    def preferred_row(self) -> Rows: ...  # noqa: D102


class CandidateLike(Protocol):
    """A program of a space; `tpo.space.Candidate` is one."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def sketch(self) -> str: ...  # noqa: D102


class Searchable(Protocol):
    """What can be searched: `tpo.space.Space`, or a recorded landscape."""

    @property
    def sketches(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def key(self) -> str:
        """The workload's."""
        ...

    def sketch(self, name: str) -> Any:
        """The sketch of a name; None if there is none."""
        ...

    def default(self) -> Any:
        """The candidate that needs no search."""
        ...

    def at(self, sketch: Any, row: NDArray[np.int64], seed: int = 1) -> Any:
        """The candidate of a row; None if it is impossible."""
        ...

    def row(self, candidate: Any) -> tuple[Any, NDArray[np.int64]] | None:
        """The sketch and row of a candidate; None if it has none."""
        ...


class Strategy(ABC):
    """Searches the space of one workload.

    All randomness comes from the generator a strategy was made with, so that a run can be continued
    from the generator's stored state. A strategy is used from one thread.
    """

    rng: np.random.Generator

    @abstractmethod
    def propose(self, count: int, known: Container[str]) -> list[Any]:
        """At most `count` new candidates, none of whose keys is in `known`, no two alike.

        Fewer, or none, mean that the space has nothing more to offer.
        """

    @abstractmethod
    def observe(self, results: Sequence[tuple[Any, Measurement]]) -> None:
        """Learn from measurements; failures are among them."""
