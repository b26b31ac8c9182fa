"""What a runner and its worker processes say to each other; everything is pickled as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tpo.measure.contract import Failure


@dataclass(frozen=True)
class WorkerOptions:
    """Everything a worker is told once, when it starts."""

    target: str
    threads: int
    between_bytes: int
    memory_bytes: int
    confidence: float
    hopeless: float
    folder: Path
    host: str = ""  # what this machine runs, where the target is another machine's


@dataclass(frozen=True)
class Reference:
    """Compute a workload's reference result on random inputs, and store both in the folder."""

    key: str
    module: str


@dataclass(frozen=True)
class Build:
    """Build a candidate and keep it under its number."""

    number: int
    key: str
    module: str


@dataclass(frozen=True)
class Export:
    """Build a candidate for another machine: a library and the arguments to call it with, in a folder."""

    key: str
    module: str
    folder: Path
    linker: str


@dataclass(frozen=True)
class Time:
    """Run, check and time a candidate that was built; forget it afterwards."""

    number: int
    best: float


@dataclass(frozen=True)
class Compare:
    """Run, check and time candidates against each other; forget them afterwards."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate, or of a request that is not about a candidate."""

    failure: Failure | None = None
    message: str = ""
    samples: tuple[float, ...] = ()
    drift: float = 1.0
    cut_short: bool = False
    error: float | None = None


@dataclass(frozen=True)
class Reply:
    """A worker's answer: one outcome for each candidate asked about, and how large the worker has become."""

    outcomes: tuple[Outcome, ...]
    resident_bytes: int = 0
    seconds: float = field(default=0.0)


Request = Reference | Build | Export | Time | Compare
