"""Which task gets the next trials: the one whose improvement is expected to help the whole model most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tpo.hardware import Hardware

# Only ratios between tasks matter before anything is measured: a typical clock and memory will do.
CLOCK_HZ = 3e9
FMA_PIPES = 2
BYTES_PER_SECOND = 2e10
CALL_SECONDS = 2e-6

MIN_TRIALS = 4  # per task, when there are too few for all
OPTIMISM = 0.3  # relative improvement a task is believed to be good for, before it was tried
FORGETTING = 0.5  # weight of the newest batch in a task's rate of improvement
NOTICEABLE = 0.01  # relative improvement below which a batch counts as none


class Sized(Protocol):
    """What is known of a task before measuring; `tpo.tasks.Task` has it."""

    @property
    def flops(self) -> int: ...  # noqa: D102
    @property
    def bytes(self) -> int: ...  # noqa: D102


def estimate_seconds(task: Sized, hw: Hardware) -> float:
    """A rough time of one call, by arithmetic or memory, whichever takes longer."""
    peak = hw.cores * hw.lanes("float32") * FMA_PIPES * (2 if hw.fma else 1) * CLOCK_HZ
    return max(task.flops / peak, task.bytes / BYTES_PER_SECOND) + CALL_SECONDS


@dataclass
class Progress:
    """What the scheduler knows of one task; `best` is in seconds, `rate` a relative improvement per trial."""

    key: str
    weight: int
    estimate: float
    trials: int = 0
    best: float | None = None
    rate: float = 0.0
    idle: int = 0  # trials since the last noticeable improvement
    exhausted: bool = False

    @property
    def share(self) -> float:
        """Seconds of a run of the model that this task takes, as far as known."""
        return self.weight * (self.estimate if self.best is None else self.best)

    @property
    def gain(self) -> float:
        """Seconds of a run of the model that one more trial is expected to save."""
        return self.share * max(self.rate, OPTIMISM / (self.trials + MIN_TRIALS))


class TaskScheduler:
    """Divides a budget of trials (None: no limit) among tasks, in batches.

    Ask `next`, measure, then `report`; a task without noticeable improvement for `patience` trials is
    finished, and so is one that `exhaust` was called for.
    """

    def __init__(
        self,
        tasks: Sequence[tuple[str, int, float]],
        budget: int | None,
        batch: int = 16,
        patience: int = 128,
    ) -> None:
        """Tasks are (key, calls in a run of the model, estimated seconds of a call)."""
        self.budget = budget
        self.batch = batch
        self.patience = patience
        self.tasks = {key: Progress(key, weight, estimate) for key, weight, estimate in tasks}

    @property
    def spent(self) -> int:
        """Trials reported so far."""
        return sum(task.trials for task in self.tasks.values())

    def next(self) -> tuple[str, int] | None:
        """The task to go on with and how many trials to give it; None when there is nothing left to do."""
        left = None if self.budget is None else self.budget - self.spent
        open_tasks = [task for task in self._served() if not self._finished(task)]
        if not open_tasks or (left is not None and left <= 0):
            return None
        untried = [task for task in open_tasks if not task.trials]
        if untried:
            return max(untried, key=lambda task: task.share).key, 1
        best = max(open_tasks, key=lambda task: task.gain)
        return best.key, self.batch if left is None else min(self.batch, left)

    def turns(self) -> list[tuple[str, int]]:
        """Like `next`, but tasks that were never tried get their first trial together, up to a batch."""
        chosen = self.next()
        if chosen is None or self.tasks[chosen[0]].trials:
            return [] if chosen is None else [chosen]
        left = self.batch if self.budget is None else min(self.batch, self.budget - self.spent)
        untried = [task for task in self._served() if not task.trials and not self._finished(task)]
        return [(task.key, 1) for task in sorted(untried, key=lambda task: -task.share)[:left]]

    def report(self, key: str, trials: int, best: float | None) -> None:
        """Some trials of a task are done, and its best time is now `best`, None if nothing has worked yet."""
        task = self.tasks[key]
        before = task.best
        task.trials += trials
        if best is not None and (before is None or best < before):
            task.best = best
        if trials <= 0 or (before is None and task.best is not None):
            return
        improvement = 0.0 if task.best is None or before is None else 1 - task.best / before
        task.rate += FORGETTING * (improvement / trials - task.rate)
        task.idle = 0 if improvement > NOTICEABLE else task.idle + trials

    def exhaust(self, key: str) -> None:
        """The task's space has nothing more to offer."""
        self.tasks[key].exhausted = True

    def state(self) -> dict[str, Any]:
        """Everything needed to go on later, as plain JSON."""
        return {"tasks": [asdict(task) for task in self.tasks.values()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; tasks it does not know start afresh, others of it are ignored."""
        for stored in state["tasks"]:
            if stored["key"] in self.tasks:
                self.tasks[stored["key"]] = Progress(**stored)

    def _served(self) -> list[Progress]:
        """All tasks, or the largest ones if the budget could not even try a few candidates of each."""
        tasks = sorted(self.tasks.values(), key=lambda task: -task.weight * task.estimate)
        if self.budget is None or self.budget >= 2 * len(tasks):
            return tasks
        return tasks[: max(1, self.budget // MIN_TRIALS)]

    def _finished(self, task: Progress) -> bool:
        return task.exhausted or task.idle >= self.patience
