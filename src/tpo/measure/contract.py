"""What every way of measuring promises: build inputs go in, one measurement for each comes out.

A runner may time on this machine, on a board, or in a simulator. What is common: a candidate that
fails, however badly, is one failed measurement and never an exception; and no measurement is `ok`
whose output was not compared with the unscheduled function's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any

from tpo.workload import Workload


class Failure(str, Enum):
    """Why a candidate has no time."""

    BUILD_ERROR = "build-error"
    BUILD_TIMEOUT = "build-timeout"
    RUN_ERROR = "run-error"
    RUN_TIMEOUT = "run-timeout"
    CRASH = "crash"
    OUT_OF_MEMORY = "out-of-memory"
    WRONG_RESULT = "wrong-result"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class BuildInput:
    """A candidate: the scheduled `module["main"]`, and the workload it must compute the same as."""

    workload: Workload
    module: Any


@dataclass(frozen=True)
class Measurement:
    """What became of one candidate.

    `seconds` is its time, corrected for the machine's drift, and `samples` the uncorrected times behind
    it, both in the unit of the runner's capabilities: modelled cycles where there is no machine. A candidate
    that was `cut_short`, because it is far slower than the best, has a rough time. `drift` is how much slower
    than ever before the machine was (1.1: by a tenth). `error` is the largest difference from the reference,
    relative to its largest value. `counters` are what an emulator has counted, by name.
    """

    seconds: float | None
    samples: tuple[float, ...] = ()
    failure: Failure | None = None
    message: str = ""
    cut_short: bool = False
    drift: float = 1.0
    error: float | None = None
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is a time, and the numbers were right."""
        return self.failure is None

    @classmethod
    def failed(cls, failure: Failure, message: str, build_seconds: float = 0.0) -> Measurement:
        """A candidate without a time; the message is cut to its first line."""
        lines = message.strip().splitlines() or ["no message"]
        return cls(None, failure=failure, message=lines[0][:500], build_seconds=build_seconds)


@dataclass(frozen=True)
class Capabilities:
    """What a runner's measurements mean: `unit` is "seconds", or "cycles" where they are modelled."""

    name: str
    unit: str = "seconds"
    threads: int = 1
    parallel_builds: int = 1


class Runner(ABC):
    """Builds and times candidates; a context manager, because it may hold processes or connections."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it measures and how much at once."""

    @abstractmethod
    def measure(
        self, inputs: Sequence[BuildInput], best: Mapping[str, float] | None = None
    ) -> Iterator[tuple[int, Measurement]]:
        """Yield (position in `inputs`, measurement) for every input, each as soon as it is known.

        `best` holds the times to beat, by workload key: whatever is far slower may be cut short. Where it is
        zero, candidates are built and checked, and no time is lost on measuring them.
        Leaving the iteration early is allowed and abandons the rest.
        """

    @abstractmethod
    def compare(self, groups: Sequence[Sequence[BuildInput]]) -> list[list[Measurement]]:
        """Time the candidates of each group against each other, interleaved and carefully.

        The candidates of a group share a workload; nothing is cut short.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything that was started; calling it twice is fine."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
