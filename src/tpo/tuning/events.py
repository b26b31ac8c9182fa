"""What a tuning run tells while it runs: one frozen dataclass for each kind of news.

All `seconds` are of one call of a function, except `model_seconds`, which are of a whole run of the
model, estimated from its functions. `elapsed` counts the seconds of the run, those of an interrupted
run it continues included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from typing import Any

from tpo.records.record import SECONDS


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class Event:
    """Something that happened; `time` is when, and no part of what."""

    time: datetime = field(default_factory=_now, kw_only=True, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The event as one JSON object; numbers JSON has no word for (infinity, NaN) become text.

        >>> list(BatchStarted("softmax", 16).to_json().items())[2:]
        [('task', 'softmax'), ('count', 16)]
        """
        what = {item.name: _plain(getattr(self, item.name)) for item in fields(self) if item.name != "time"}
        return {"event": type(self).__name__, "time": self.time.isoformat(timespec="milliseconds"), **what}


@dataclass(frozen=True)
class TaskInfo:
    """A task about to be tuned.

    `also` names the tasks that get its results, because they share its anchor; `weight` counts their
    calls too. The last four are what an interrupted run already found.
    """

    name: str
    operators: tuple[str, ...]
    shape: str
    weight: int
    estimated_seconds: float | None
    key: str
    also: tuple[str, ...] = ()
    default_seconds: float | None = None
    best_seconds: float | None = None
    trials: int = 0
    failed: int = 0


@dataclass(frozen=True)
class TaskResult:
    """What came out for a task; `failures` are trials without a time, `share` is of the model's time now."""

    name: str
    weight: int
    trials: int
    failures: int
    default_seconds: float | None
    best_seconds: float | None
    sketch: str | None
    share: float


@dataclass(frozen=True)
class RunStarted(Event):
    """Tuning begins. `trials` and `minutes` are the budget, of the whole run where one is continued.

    `unit` is what all seconds of this run's candidates really are: modelled cycles, if an emulator runs them.
    """

    run: str
    model: str
    target: str
    threads: int
    tasks: tuple[TaskInfo, ...]
    trials: int | None
    minutes: float | None
    resumed_trials: int = 0
    elapsed: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    unit: str = SECONDS


@dataclass(frozen=True)
class BatchStarted(Event):
    """`count` candidates of a task are about to be measured."""

    task: str
    count: int


@dataclass(frozen=True)
class TrialDone(Event):
    """One candidate was measured, or failed for the reason `failure` names; `trial` counts in the run."""

    task: str
    sketch: str
    seconds: float | None
    failure: str | None
    message: str
    best_seconds: float | None
    trial: int
    improved: bool
    candidate: str = ""


@dataclass(frozen=True)
class BatchDone(Event):
    """A batch is stored. `trials` are those of the task so far, `trials_done` those of the run."""

    task: str
    trials: int
    best_seconds: float | None
    default_seconds: float | None
    model_seconds: float | None
    default_model_seconds: float | None
    elapsed: float
    trials_done: int


@dataclass(frozen=True)
class TaskConfirmed(Event):
    """A task's leaders and its default schedule were timed again, side by side."""

    task: str
    seconds: float
    default_seconds: float | None


@dataclass(frozen=True)
class Warned(Event):
    """Something a user should know, and nothing stops for."""

    message: str


@dataclass(frozen=True)
class RunFinished(Event):
    """The end. `status` is "finished" when the budget is used up, or says in a word why it ended earlier."""

    run: str
    status: str
    trials: int
    failures: Mapping[str, int]
    elapsed: float
    tasks: tuple[TaskResult, ...]
    model_seconds: float | None
    default_model_seconds: float | None
    unit: str = SECONDS


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
