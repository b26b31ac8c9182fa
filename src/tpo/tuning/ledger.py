"""What is known of each task while a run goes on, and what it says about the whole model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tpo.measure import Measurement
from tpo.tuning.events import TaskInfo, TaskResult
from tpo.tuning.groups import TaskGroup


@dataclass
class Entry:
    """One group of tasks: times of its leader, trials and failures so far."""

    group: TaskGroup
    estimated_seconds: float
    default_seconds: float | None = None
    best_seconds: float | None = None
    sketch: str | None = None
    trials: int = 0
    failed: int = 0

    @property
    def name(self) -> str:
        """The leader's name."""
        return self.group.leader.task.name

    @property
    def key(self) -> str:
        """The leader's workload."""
        return self.group.leader.workload.key

    @property
    def weight(self) -> int:
        """Calls in one run of the model."""
        return self.group.weight

    @property
    def seconds(self) -> float:
        """The best time there is, measured or estimated."""
        return self.best_seconds or self.default_seconds or self.estimated_seconds

    def count(self, measurement: Measurement, sketch: str, is_default: bool) -> bool:
        """Take a measurement in; whether it is the best so far."""
        self.trials += 1
        if measurement.seconds is None:
            self.failed += 1
            return False
        if is_default:
            self.default_seconds = measurement.seconds
        improved = not measurement.cut_short and (
            self.best_seconds is None or measurement.seconds < self.best_seconds
        )
        if improved:
            self.best_seconds, self.sketch = measurement.seconds, sketch
        return improved

    def info(self) -> TaskInfo:
        """The task as a run's start announces it."""
        task = self.group.leader.task
        return TaskInfo(
            name=task.name,
            operators=task.operators,
            shape=task.shape,
            weight=self.weight,
            estimated_seconds=self.estimated_seconds,
            key=self.key,
            also=tuple(member.task.name for member in self.group.followers),
            default_seconds=self.default_seconds,
            best_seconds=self.best_seconds,
            trials=self.trials,
            failed=self.failed,
        )


@dataclass
class Ledger:
    """All tasks of a run."""

    entries: list[Entry]
    failures: Counter[str] = field(default_factory=Counter)
    trials: int = 0

    def count(self, entry: Entry, measurement: Measurement, sketch: str, is_default: bool = False) -> bool:
        """Take a measurement in; whether it is its task's best so far."""
        self.trials += 1
        if measurement.failure is not None:
            self.failures[str(measurement.failure)] += 1
        return entry.count(measurement, sketch, is_default)

    @property
    def model_seconds(self) -> float | None:
        """Estimated latency of the model now; None as long as some task has no time at all."""
        return self._total([entry.best_seconds for entry in self.entries])

    @property
    def default_model_seconds(self) -> float | None:
        """The same on default schedules."""
        return self._total([entry.default_seconds for entry in self.entries])

    def results(self) -> tuple[TaskResult, ...]:
        """The final table, the largest share first."""
        total = sum(entry.seconds * entry.weight for entry in self.entries) or 1.0
        rows = [
            TaskResult(
                name=entry.name,
                weight=entry.weight,
                trials=entry.trials,
                failures=entry.failed,
                default_seconds=entry.default_seconds,
                best_seconds=entry.best_seconds,
                sketch=entry.sketch,
                share=entry.seconds * entry.weight / total,
            )
            for entry in self.entries
        ]
        return tuple(sorted(rows, key=lambda row: -row.share))

    def _total(self, seconds: list[float | None]) -> float | None:
        total = 0.0
        for entry, time in zip(self.entries, seconds, strict=True):
            if time is None:
                return None
            total += time * entry.weight
        return total
