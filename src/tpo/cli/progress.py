"""What a tuning run has come to, gathered from its events; and a plain line for every batch of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpo.cli.units import MILLISECONDS, unit_called
from tpo.tuning import events
from tpo.tuning.events import Event, TaskInfo

Clock = Callable[[], float]

# A line waits until this part of the time so far has passed since the last one: a run of a minute and a
# run of a night are both told in a few hundred lines at most.
QUIET = 0.02


@dataclass
class Row:
    """A task as far as it is known."""

    info: TaskInfo
    default: float | None
    best: float | None
    trials: int
    failed: int

    @property
    def share(self) -> float:
        """How much of the model's time it was before tuning, in seconds."""
        return self.info.weight * (self.info.estimated_seconds or 0.0)


class Progress:
    """The state of a run; call it with every event."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.started: events.RunStarted | None = None
        self.rows: dict[str, Row] = {}
        self.active: str | None = None
        self.activity = "starting"
        self.done = 0
        self.failures: Counter[str] = Counter()
        self.model: float | None = None
        self.default_model: float | None = None
        self.unit = MILLISECONDS
        self._synchronise(0.0)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case events.RunStarted():
                self._start(event)
            case events.BatchStarted():
                self.active = event.task
                self.activity = f"measuring {event.count} of {event.task}"
            case events.TrialDone():
                self._count(event)
            case events.BatchDone():
                row = self.rows[event.task]
                row.trials, row.best, row.default = event.trials, event.best_seconds, event.default_seconds
                self.model, self.default_model = event.model_seconds, event.default_model_seconds
                self.done = event.trials_done
                self._synchronise(event.elapsed)
            case events.TaskConfirmed():
                row = self.rows[event.task]
                row.best, row.default = event.seconds, event.default_seconds
                self.active = event.task
                self.activity = "measuring the best again"
            case events.RunFinished():
                self.active, self.activity = None, event.status
                self.done = event.trials
                self.model, self.default_model = event.model_seconds, event.default_model_seconds
                self._synchronise(event.elapsed)

    def _start(self, event: events.RunStarted) -> None:
        self.started = event
        self.unit = unit_called(event.unit)
        self.done = event.resumed_trials
        self.failures = Counter(event.failures)
        rows = [
            Row(info, info.default_seconds, info.best_seconds, info.trials, info.failed)
            for info in event.tasks
        ]
        self.rows = {row.info.name: row for row in sorted(rows, key=lambda row: -row.share)}
        self._synchronise(event.elapsed)

    def _count(self, event: events.TrialDone) -> None:
        row = self.rows[event.task]
        self.done = event.trial
        row.trials += 1
        row.best = event.best_seconds
        if event.failure is not None:
            row.failed += 1
            self.failures[str(event.failure)] += 1

    def _synchronise(self, elapsed: float) -> None:
        """Events say what time the run has; between them our own clock goes on."""
        self._elapsed, self._heard = elapsed, self._clock()

    @property
    def elapsed(self) -> float:
        """Seconds of the run until now."""
        return self._elapsed + self._clock() - self._heard

    @property
    def session(self) -> float:
        """Seconds until now of what is not the run this one continues."""
        return self.elapsed - (self.started.elapsed if self.started else 0.0)

    @property
    def left(self) -> float | None:
        """Seconds until the first of the budgets ends, if that can be told."""
        if self.started is None:
            return None
        limits = []
        if self.started.minutes is not None:
            limits.append(self.started.minutes * 60 - self.elapsed)
        fresh = self.done - self.started.resumed_trials
        if self.started.trials is not None and fresh > 0:
            pace = self.session / fresh
            limits.append((self.started.trials - self.done) * pace)
        return max(0.0, min(limits)) if limits else None


class Display(ABC):
    """Shows a run while it lasts; it is called with every event."""

    def __enter__(self) -> Display:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Let go of the terminal."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take note of an event, and show it if it is time."""


class PlainDisplay(Display):
    """Progress as lines, for logs and pipes: at most one for a batch, and fewer as the run grows long."""

    def __init__(self, write: Callable[[str], None], clock: Clock = time.monotonic) -> None:
        self._write = write
        self._progress = Progress(clock)
        self._spoke = 0.0

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def __call__(self, event: Event) -> None:
        """Take note of an event, and say so if it is worth a line."""
        self._progress(event)
        match event:
            case events.RunStarted():
                self._write(headline(event))
                self._spoke = event.elapsed
            case events.BatchDone() if event.elapsed - self._spoke >= QUIET * self._progress.session:
                self._write(self._line(event))
                self._spoke = event.elapsed
            case events.Warned():
                self._write(f"warning: {event.message}")

    def _line(self, event: events.BatchDone) -> str:
        row, unit = self._progress.rows[event.task], self._progress.unit
        text = f"[{budget(self._progress)}] {event.task}: "
        if event.best_seconds is None:
            text += "nothing that works yet"
        else:
            text += unit.with_label(event.best_seconds)
        if event.default_seconds is not None:
            text += f" (default {unit.with_label(event.default_seconds)}"
            text += f", {speed_up(event.default_seconds, event.best_seconds)})" if event.best_seconds else ")"
        text += f", {event.trials} trials, {row.failed} failed"
        if event.model_seconds is not None:
            text += f"; model {unit.with_label(event.model_seconds)}"
            if event.default_model_seconds is not None:
                text += f" ({speed_up(event.default_model_seconds, event.model_seconds)})"
        return text


def headline(event: events.RunStarted) -> str:
    """A run in a line."""
    text = f"tuning {event.model} for {event.target}, {counted(event.threads, 'thread')}, "
    text += counted(len(event.tasks), "task")
    limits = [] if event.trials is None else [counted(event.trials, "trial")]
    limits += [] if event.minutes is None else [f"{event.minutes:g} min"]
    text += f": {' or '.join(limits)}" if limits else ""
    if event.resumed_trials:
        text += f", of which {event.resumed_trials} in {duration(event.elapsed)} are done"
    return text


def budget(progress: Progress) -> str:
    """Trials and time used up, of constant width while a run lasts."""
    total = progress.started.trials if progress.started else None
    done = f"{progress.done}" if total is None else f"{progress.done:{len(str(total))}}/{total}"
    return f"{done} {duration(progress.elapsed):>6}"


def failures(counts: Mapping[str, int]) -> str:
    """Kinds of failure, the most frequent first.

    >>> failures({"crash": 1, "build-error": 12})
    '12 build-error, 1 crash'
    """
    return ", ".join(f"{count} {kind}" for kind, count in Counter(counts).most_common())


def speed_up(before: float | None, after: float | None) -> str:
    """How many times faster, `-` if that is unknown.

    >>> speed_up(0.7, 0.512), speed_up(None, 0.5)
    ('1.37x', '-')
    """
    return f"{before / after:.2f}x" if before and after else "-"


def duration(seconds: float) -> str:
    """A time span as a clock shows it.

    >>> duration(83.4), duration(3723)
    ('1:23', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "task"), counted(1000, "trial")
    ('1 task', '1000 trials')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
