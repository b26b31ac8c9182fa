"""How long does it take? As many repeats as the answer needs, and no more.

A sample is one call with cold caches, a candidate's time the median of its samples. Sampling ends when
the median is known to within `confidence` (95 %, relative), or when it has cost enough. Around the
samples runs a reference kernel whose time never changes unless the machine's speed does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# run(count): so many samples, in seconds.
Run = Callable[[int], Sequence[float]]

FEWEST_SAMPLES = 5
MOST_SAMPLES = 60
LONGEST_SAMPLING = 0.12
# The reference kernel disagreeing with itself by more says that the machine changed in between.
STEADY = 0.08
ATTEMPTS = 3
# A first call is slow for reasons of its own: only this far beyond a limit is it conclusive.
_CERTAINLY = 1.5


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
        self.baseline = baseline or min(self._reference(60))

    def drift(self) -> float:
        """How many times slower than the baseline the machine is now."""
        return float(np.median(self._reference(5))) / self.baseline

    def time(self, run: Run, first: float, limit: float = math.inf) -> Timing:
        """Time a candidate whose very first call took `first`; one far beyond `limit` is cut short there."""
        before = self.drift()
        # Every call counts here: most candidates are hopeless, and some take seconds.
        if first / before > _CERTAINLY * limit or (first := run(1)[0]) / before > limit:
            return Timing((first,), before, cut_short=True)
        for _ in range(ATTEMPTS):
            samples = sample(run, self._confidence)
            after = self.drift()
            if abs(after - before) <= STEADY * before:
                break
            before = after
        return Timing(tuple(samples), (before + after) / 2)

    def compare(self, runs: Sequence[Run]) -> list[Timing]:
        """Time candidates in turns, so that whatever the machine does, it does to all of them."""
        turn_seconds = sum(run(1)[0] for run in runs)
        turns = max(FEWEST_SAMPLES, min(MOST_SAMPLES, round(len(runs) * LONGEST_SAMPLING / turn_seconds)))
        samples: list[list[float]] = [[] for _ in runs]
        drifts = []
        for turn in range(turns):
            drifts.append(self.drift())
            # Every other turn backwards: nobody always follows the same neighbour.
            order = range(len(runs)) if turn % 2 == 0 else reversed(range(len(runs)))
            for position in order:
                samples[position].extend(runs[position](1))
        # Each sample against its own turn's speed: the median of a machine's two speeds is neither.
        corrected = [float(np.median(np.divide(taken, drifts))) for taken in samples]
        return [
            Timing(tuple(taken), float(np.median(taken)) / seconds)
            for taken, seconds in zip(samples, corrected, strict=True)
        ]


def sample(run: Run, confidence: float) -> list[float]:
    """Samples until their median is known well enough."""
    samples: list[float] = []
    while len(samples) < MOST_SAMPLES:
        samples.extend(run(FEWEST_SAMPLES))
        if half_width(samples) <= confidence or sum(samples) >= LONGEST_SAMPLING:
            break
    return samples


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
