"""How much a run may still do: trials, time, or whichever ends first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Budget:
    """Counts trials and seconds; `elapsed` and `trials` of an interrupted run are added by `resume`."""

    def __init__(
        self, trials: int | None, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_trials = math.inf if trials is None else trials
        self._most_seconds = math.inf if minutes is None else minutes * 60
        self._clock = clock
        self._start = clock()
        self.trials = 0

    def resume(self, trials: int, elapsed: float) -> None:
        """Count what the interrupted run already used."""
        self.trials += trials
        self._start -= elapsed

    @property
    def elapsed(self) -> float:
        """Seconds of the run so far."""
        return self._clock() - self._start

    @property
    def trials_left(self) -> float:
        """Trials that may still be made."""
        return max(0.0, self._most_trials - self.trials)

    def seconds_left(self, reserve: float = 0.0) -> float:
        """Seconds that may still be used, if some are kept for later."""
        return max(0.0, self._most_seconds - reserve - self.elapsed)

    def allows(self, count: int, reserve: float = 0.0) -> int:
        """How many of `count` trials may be started now."""
        return 0 if self.seconds_left(reserve) == 0 else int(min(count, self.trials_left))
