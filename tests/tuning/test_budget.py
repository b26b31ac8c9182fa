from __future__ import annotations

from tpo.tuning.budget import Budget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_whichever_ends_first() -> None:
    clock = Clock()
    budget = Budget(100, 1.0, clock)
    assert budget.allows(16) == 16
    budget.trials = 90
    assert budget.allows(16) == 10
    clock.now = 61.0
    assert budget.allows(16) == 0


def test_time_can_be_kept_for_later() -> None:
    clock = Clock()
    budget = Budget(None, 1.0, clock)
    clock.now = 55.0
    assert budget.allows(16) == 16 and budget.allows(16, reserve=10.0) == 0
    assert budget.seconds_left(10.0) == 0.0


def test_an_interrupted_run_is_counted() -> None:
    clock = Clock()
    budget = Budget(100, 1.0, clock)
    budget.resume(40, 50.0)
    assert budget.trials_left == 60 and budget.elapsed == 50.0
    clock.now = 10.5
    assert budget.allows(1) == 0


def test_without_limits_everything_is_allowed() -> None:
    assert Budget(None, None).allows(5) == 5
