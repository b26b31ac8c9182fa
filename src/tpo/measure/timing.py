"""How long does it take? As many repeats as the answer needs, and no more, in moments when nobody disturbs.

A sample is one call with cold caches, and has a reading of a reference kernel on either side. The
reference kernel is slower than usual exactly when something else is at work: another process, or
another virtual machine on the same cores. Such samples are set aside. What is left is still only ever
disturbed in one direction, so a candidate's time is the lower quartile, not the median. Where no sample
is undisturbed, the least disturbed have to do; and when the reference kernel has been slower for a
while even at its best, the machine as a whole is, and times are corrected by as much.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import binom


class Sample(NamedTuple):
    """Seconds of one call, and of the reference kernel just before and just after it."""

    seconds: float
    before: float
    after: float


Run = Callable[[int], Sequence[Sample]]  # so many samples
Probe = Callable[[], float]  # one reading of the reference kernel

QUARTILE = 0.25  # of the samples lie below a candidate's time
SAMPLES_AT_ONCE = 6
ENOUGH, PLENTY = 12, 24  # undisturbed samples, for a steady candidate and for any
MANY = 48  # samples of any kind, for a steady candidate
TOO_FEW = 3
# The reference kernel may be this much slower than usual in a moment that counts as undisturbed. It is
# plain arithmetic: where it loses three hundredths, kernels that read memory lose a quarter.
QUIET = 1.03
# Sampling ends then, whether or not there was an undisturbed moment; where candidates take turns, for each.
LONGEST_SAMPLING, LONGEST_TURNS = 0.3, 1.0
# Before the first sample so many readings in a row must be near the usual one, if that happens soon enough:
# where two threads share a core they are twice as slow.
STEADY_READINGS, AWAKE, LONGEST_WARM_UP = 3, 1.2, 0.3
# What a kernel reads has left the shared cache while nobody used it, if others share the machine: the first
# calls bring it back, and say nothing. Not more of them than take this long.
WARMING_CALLS, WARMING_SECONDS = 8, 0.01
# This much slower than the best is enough to know of a candidate: leaders are confirmed in the end anyway.
NO_LEADER = 1.05
# A first call is slow for reasons of its own: only this far beyond a limit is it conclusive, and only where
# one more call would take long.
_CERTAINLY, _LONG = 1.5, 0.02
# What the reference kernel usually takes is the lowest twentieth of the latest readings: few enough to
# follow a machine that changes its clock rate, enough to span a neighbour's burst of work.
_READINGS, _USUAL = 400, 0.05
_FIRST_READINGS = 100
# No time is corrected by more: the reference kernel may lose twice as much as candidates do, and what is
# corrected by all of that looks twice as fast as it is.
_MOST_CORRECTED = 1.1


@dataclass(frozen=True)
class Timing:
    """Undisturbed samples of one candidate, or the least disturbed; `drift` corrects a lasting slowness."""

    samples: tuple[float, ...]
    drift: float = 1.0
    cut_short: bool = False

    @property
    def seconds(self) -> float:
        """The time on an undisturbed machine."""
        return float(np.quantile(self.samples, QUARTILE)) / self.drift


class Clock:
    """Times candidates on a machine that is never quite its own.

    `usual` is what the reference kernel takes these days in undisturbed moments, `baseline` the least
    that this has ever been.
    """

    def __init__(
        self,
        probe: Probe,
        confidence: float,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._probe = probe
        self._confidence = confidence
        self._now = now
        self._readings = deque(self._first_readings(), _READINGS)
        self.usual = float(np.quantile(self._readings, _USUAL))
        self.baseline = self.usual

    def _first_readings(self) -> Iterator[float]:
        start, count = self._now(), 0
        while count < _FIRST_READINGS or self._now() - start < LONGEST_WARM_UP:
            yield self._probe()
            count += 1

    def time(self, run: Run, first: float, best: float = math.inf, hopeless: float = math.inf) -> Timing:
        """Time a candidate whose very first call took `first`.

        One that takes more than `hopeless` times as long as the `best` is cut short at once; a best of zero
        nobody can reach.
        """
        # Every call counts here: most candidates are hopeless, and some take seconds.
        if best == 0 or first > max(_LONG, _CERTAINLY * hopeless * best):
            return Timing((first,), cut_short=True)
        self._settle_down()
        if warming := min(WARMING_CALLS, int(WARMING_SECONDS / max(first, 1e-9))):
            self._take(run, warming)
        (sample,) = self._take(run, 1)
        if self._corrected([sample]) > hopeless * best:
            return Timing((sample.seconds,), cut_short=True)
        samples: list[Sample] = []
        start = self._now()
        while self._now() - start < LONGEST_SAMPLING:
            samples += self._take(run, SAMPLES_AT_ONCE)
            if self._settled(samples) or self._is_no_leader(samples, best):
                break
        return self._timing(samples)

    def compare(self, runs: Sequence[Run]) -> list[Timing]:
        """Time candidates in turns, so that whatever the machine does, it does to all of them."""
        self._settle_down()
        samples: list[list[Sample]] = [[] for _ in runs]
        start, turn, last = self._now(), 0, -1
        rng = np.random.default_rng(0)
        while self._now() - start < LONGEST_TURNS * len(runs):
            # In another order every turn: nobody always follows the same neighbour. Nor ever itself, since it
            # would find in the caches what it has left there, and others would not.
            order = rng.permutation(len(runs))
            order = np.roll(order, -1) if order[0] == last else order
            for position in order:
                samples[position] += self._take(runs[position], 1)
            turn, last = turn + 1, order[-1]
            if turn >= ENOUGH and all(self._settled(taken) for taken in samples):
                break
        return [self._timing(taken) for taken in samples]

    def _settle_down(self) -> None:
        """Keep the cores busy until they run as usual: threads that have slept start on one core together."""
        start = self._now()
        while self._now() - start < LONGEST_WARM_UP:
            if max(self._probe() for _ in range(STEADY_READINGS)) <= AWAKE * self.usual:
                return

    def _take(self, run: Run, count: int) -> Sequence[Sample]:
        taken = run(count)
        self._readings.extend(sample.before for sample in taken)
        self.usual = float(np.quantile(self._readings, _USUAL))
        self.baseline = min(self.baseline, self.usual)
        return taken

    def _quiet(self, samples: Sequence[Sample]) -> list[Sample]:
        limit = QUIET * self.usual
        return [sample for sample in samples if max(sample.before, sample.after) <= limit]

    def _settled(self, samples: Sequence[Sample]) -> bool:
        quiet = self._quiet(samples)
        if len(quiet) >= PLENTY:
            return True
        # Where nothing is ever undisturbed, many samples that agree must do.
        enough = quiet if len(quiet) >= ENOUGH else samples if len(samples) >= MANY else []
        return bool(enough) and half_width([s.seconds for s in enough]) <= self._confidence

    def _is_no_leader(self, samples: Sequence[Sample], best: float) -> bool:
        sure = len(self._quiet(samples)) >= TOO_FEW or len(samples) >= ENOUGH
        return sure and self._corrected(samples) > NO_LEADER * best

    def _corrected(self, samples: Sequence[Sample]) -> float:
        """The time that disturbed samples hint at: each against the reference kernel beside it."""
        hints = [s.seconds * self.baseline / min(s.before, s.after) for s in samples]
        return float(np.quantile(hints, QUARTILE))

    def _timing(self, samples: Sequence[Sample]) -> Timing:
        chosen = self._quiet(samples)
        if len(chosen) < TOO_FEW:
            ordered = sorted(samples, key=lambda sample: max(sample.before, sample.after))
            chosen = ordered[: max(1, len(ordered) // 3)]
        # Only what these samples and even the best moments lately have lost is corrected: a time that is
        # too high costs a candidate its chance, one that is too low leads the whole search astray.
        beside = float(np.median([min(sample.before, sample.after) for sample in chosen]))
        slowness = min(self.usual / self.baseline, beside / self.baseline, _MOST_CORRECTED)
        return Timing(tuple(sample.seconds for sample in chosen), slowness if slowness > QUIET else 1.0)


def half_width(samples: Sequence[float]) -> float:
    """Half the width of the lower quartile's 95 % confidence interval, relative to the quartile.

    The interval lies between two of the sorted samples, whatever their distribution.

    >>> half_width([1.0] * 9 + [1.2, 3.0, 5.0])
    0.0
    """
    low, high = (int(rank) for rank in binom.ppf([0.025, 0.975], len(samples), QUARTILE))
    ordered = sorted(samples)
    quartile = float(np.quantile(ordered, QUARTILE))
    return (ordered[min(high, len(ordered) - 1)] - ordered[max(low - 1, 0)]) / 2 / quartile
