"""How long does it take? As many repeats as the answer needs, and no more.

A sample is the mean of a few calls in a row, a candidate's time the median of its samples. Sampling
ends when the median is known to within `confidence` (95 %, relative), or when it has cost enough.
Around the samples runs a reference kernel whose time never changes unless the machine's speed does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# run(number, repeat): `repeat` samples, each the mean seconds of `number` calls in a row.
Run = Callable[[int, int], Sequence[float]]

FEWEST_SAMPLES = 5
MOST_SAMPLES = 60
# A sample shorter than this would measure the clock and the thread pool's wake-up.
SHORTEST_SAMPLE = 0.4e-3
LONGEST_SAMPLING = 0.12
# The reference kernel disagreeing with itself by more says that the machine changed in between.
STEADY = 0.08
ATTEMPTS = 3


@dataclass(frozen=True)
class Timing:
    """Samples of one candidate, and the machine's slowness while they were taken."""

    samples: tuple[float, ...]
    drift: float
    cut_short: bool = False

    @property
    def seconds(self) -> float:
        """The time on a machine as fast as it was at the start."""
        return float(np.median(self.samples)) / self.drift


class Clock:
    """Times candidates on a machine whose speed wanders; `baseline` is its reference kernel's best time."""

    def __init__(self, reference: Run, confidence: float, baseline: float | None = None) -> None:
        self._reference = reference
        self._confidence = confidence
        self.baseline = baseline or min(self._reference(2, 40))

    def drift(self) -> float:
        """How many times slower than the baseline the machine is now."""
        return float(np.median(self._reference(1, 5))) / self.baseline

    def time(self, run: Run, limit: float = math.inf) -> Timing:
        """Time a candidate; one whose first warm call takes longer than `limit` is cut short there."""
        before = self.drift()
        first = run(1, 1)[0]
        if first / before > limit:
            return Timing((first,), before, cut_short=True)
        for _ in range(ATTEMPTS):
            samples = sample(run, first, self._confidence)
            after = self.drift()
            if abs(after - before) <= STEADY * before:
                break
            before = after
        return Timing(tuple(samples), (before + after) / 2)

    def compare(self, runs: Sequence[Run]) -> list[Timing]:
        """Time candidates in turns, so that whatever the machine does, it does to all of them."""
        firsts = [run(1, 1)[0] for run in runs]
        numbers = [calls_per_sample(first) for first in firsts]
        slowest = sum(first * number for first, number in zip(firsts, numbers, strict=True))
        turns = max(FEWEST_SAMPLES, min(MOST_SAMPLES, round(len(runs) * LONGEST_SAMPLING / slowest)))
        samples: list[list[float]] = [[] for _ in runs]
        drifts = []
        for turn in range(turns):
            drifts.append(self.drift())
            # Every other turn backwards: nobody always follows the same neighbour.
            order = range(len(runs)) if turn % 2 == 0 else reversed(range(len(runs)))
            for position in order:
                samples[position].extend(runs[position](numbers[position], 1))
        # Each sample against its own turn's speed: the median of a machine's two speeds is neither.
        corrected = [float(np.median(np.divide(taken, drifts))) for taken in samples]
        return [
            Timing(tuple(taken), float(np.median(taken)) / seconds)
            for taken, seconds in zip(samples, corrected, strict=True)
        ]


def sample(run: Run, first: float, confidence: float) -> list[float]:
    """Samples until their median is known well enough; `first` is about what one call takes."""
    number = calls_per_sample(first)
    samples: list[float] = []
    spent = 0.0
    while len(samples) < MOST_SAMPLES:
        taken = run(number, FEWEST_SAMPLES)
        samples.extend(taken)
        spent += sum(taken) * number
        if half_width(samples) <= confidence or spent >= LONGEST_SAMPLING:
            break
    return samples


def calls_per_sample(seconds: float) -> int:
    """How many calls in a row make a sample long enough.

    >>> calls_per_sample(1e-3), calls_per_sample(1e-4)
    (1, 4)
    """
    return max(1, min(1000, math.ceil(SHORTEST_SAMPLE / max(seconds, 1e-7))))


def half_width(samples: Sequence[float]) -> float:
    """Half the width of the median's 95 % confidence interval, relative to the median.

    The spread is estimated from the median absolute deviation, which a few disturbed samples leave alone.

    >>> round(half_width([1.0, 1.0, 1.0, 5.0, 1.0]), 3)
    0.0
    """
    values = np.asarray(samples)
    median = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(values - median)))
    return 1.96 * 1.2533 * deviation / math.sqrt(len(values)) / median
