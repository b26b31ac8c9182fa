"""A tuning run made of events, without any tuning."""

from __future__ import annotations

from collections.abc import Iterator

from tpo.tuning.events import (
    BatchDone,
    BatchStarted,
    Event,
    RunFinished,
    RunStarted,
    TaskConfirmed,
    TaskInfo,
    TaskResult,
    TrialDone,
    Warned,
)

DEFAULT = 1e-3


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def task_info(index: int, **more: object) -> TaskInfo:
    """A task; those with a smaller index take more of the model's time."""
    fields = {
        "name": f"conv2d_add_relu_{index}",
        "operators": ("conv2d", "add", "relu"),
        "shape": "1x55x55x16, 3x3x16x64, 1x1x1x64 -> 1x55x55x64",
        "weight": 2,
        "estimated_seconds": DEFAULT / (index + 1),
        "key": f"{index:016x}",
    }
    return TaskInfo(**(fields | more))  # type: ignore[arg-type]


def scripted_run(
    tasks: int = 3, batches: int = 4, batch: int = 5, seconds: float = 10.0, clock: Clock | None = None
) -> Iterator[Event] | list[Event]:
    """Batches for one task after the other, each taking `seconds`; the third trial of each crashes.

    Candidate n of a task takes 1/n of the default's time. With a clock, events come as time passes.
    """
    made = _events(tasks, batches, batch, seconds, clock or Clock())
    return made if clock is not None else list(made)


def _events(tasks: int, batches: int, batch: int, seconds: float, clock: Clock) -> Iterator[Event]:
    infos = tuple(task_info(index) for index in range(tasks))
    total = batches * batch
    begin = clock.now
    trials = dict.fromkeys((info.name for info in infos), 0)
    best: dict[str, float | None] = dict.fromkeys(trials)

    def model(times: dict[str, float | None]) -> float:
        return sum(info.weight * (times[info.name] or DEFAULT) for info in infos)

    default_model = tasks * 2 * DEFAULT
    yield RunStarted("run-1", "squeezenet", "native", 2, infos, total, 30.0)
    yield Warned("the machine is busy")
    for number in range(batches):
        name = infos[number % tasks].name
        yield BatchStarted(name, batch)
        for position in range(batch):
            clock.now += seconds / batch
            trials[name] += 1
            trial = number * batch + position + 1
            if position == 2:
                yield TrialDone(name, "s1", None, "crash", "killed by signal 11", best[name], trial, False)
                continue
            time = DEFAULT / trials[name]
            best[name] = time
            yield TrialDone(name, "s1", time, None, "", time, trial, True)
        done = (number + 1) * batch
        yield BatchDone(
            name, trials[name], best[name], DEFAULT, model(best), default_model, clock.now - begin, done
        )
    for name, time in best.items():
        if time is not None:
            yield TaskConfirmed(name, time, DEFAULT)
    results = tuple(
        TaskResult(
            info.name,
            2,
            trials[info.name],
            trials[info.name] // batch,
            DEFAULT,
            best[info.name],
            "s1",
            1 / tasks,
        )
        for info in infos
    )
    failures = {"crash": batches}
    yield RunFinished(
        "run-1", "finished", total, failures, clock.now - begin, results, model(best), default_model
    )
