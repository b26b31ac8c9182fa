"""What a cost model promises: it learns from measurements, and says which candidates are worth measuring.

A model sees features only. Where they come from is an `Extractor`: from the simulator, or from programs
that TVM has made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tpo.space.decisions import Rows

Features = NDArray[np.float32]
Scores = NDArray[np.float64]


class Extractor(Protocol):
    """Makes features of the candidates of one workload."""

    def features(self, sketch: Any, rows: Rows) -> Features:
        """A line for every row of a sketch's decisions."""
        ...

    def watch(self, sketch: Any, rows: Rows, most: int | None = None) -> bool:
        """Get to know some rows, so that their features are no guesses; whether others may have changed.

        That costs: at most so many kinds of rows, unless all are asked for.
        """
        ...


@dataclass(frozen=True)
class Dataset:
    """Measurements: a line of features each, the seconds (infinite for a failure), and whose they are.

    Only what is measured of the same group, a workload on a machine, can be compared.
    """

    features: Features
    seconds: Scores
    groups: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.features) == len(self.seconds) == len(self.groups):
            raise ValueError("features, seconds and groups must be equally many")

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def speeds(self) -> Scores:
        """How fast each is, relative to the fastest of its group: 1 for that one, 0 for a failure."""
        names, of = np.unique(np.asarray(self.groups), return_inverse=True)
        best = np.full(len(names), np.inf)
        np.minimum.at(best, of, self.seconds)
        reference = np.where(np.isfinite(best), best, 1.0)[of]
        return np.asarray(np.where(np.isfinite(self.seconds), reference / self.seconds, 0.0))

    def __getitem__(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Dataset:
        groups = tuple(np.asarray(self.groups)[chosen])
        return Dataset(self.features[chosen], self.seconds[chosen], groups)

    @classmethod
    def join(cls, parts: Sequence[Dataset]) -> Dataset:
        """All of some datasets."""
        groups = tuple(group for part in parts for group in part.groups)
        return cls(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.seconds for part in parts]),
            groups,
        )


@dataclass(frozen=True)
class Prediction:
    """How good candidates look: higher is faster, comparable within one group; and how sure that is not."""

    score: Scores
    spread: Scores


class CostModel(ABC):
    """Learns to tell fast candidates from slow ones."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it can predict at all."""

    @abstractmethod
    def fit(self, data: Dataset) -> None:
        """Learn from these measurements, instead of those of an earlier call."""

    @abstractmethod
    def predict(self, features: Features) -> Prediction:
        """Judge candidates; only when `ready`."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write everything that `load` needs."""

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> CostModel:
        """What `save` wrote."""


def first_line(error: Exception) -> str:
    """What an error says, in one line: XGBoost adds a stack to it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
