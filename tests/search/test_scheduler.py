"""The task scheduler, on made-up improvement curves and without TVM."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpo.hardware import Hardware
from tpo.search.scheduler import TaskScheduler, estimate_seconds

TASKS = [("large", 1, 1e-3), ("middle", 4, 1e-4), ("small", 1, 1e-5)]


class Curve:
    """A task whose best time falls from `start` towards `floor`, halving the rest every `half` trials."""

    def __init__(self, start: float, floor: float, half: float = 16) -> None:
        self.start, self.floor, self.half, self.trials = start, floor, half, 0

    def run(self, trials: int) -> float:
        self.trials += trials
        return self.floor + (self.start - self.floor) * 0.5 ** ((self.trials - 1) / self.half)


def simulate(
    scheduler: TaskScheduler, curves: dict[str, Curve], steps: int = 10_000
) -> list[tuple[str, int]]:
    turns = []
    while (turn := scheduler.next()) is not None and len(turns) < steps:
        key, count = turn
        turns.append(turn)
        scheduler.report(key, count, curves[key].run(count))
    return turns


def curves(**floors: float) -> dict[str, Curve]:
    """Curves of `TASKS` that start at their estimates and fall by the given factors."""
    return {key: Curve(estimate, estimate * floors.get(key, 0.5)) for key, _, estimate in TASKS}


def test_every_task_first_gets_one_trial_the_largest_first():
    turns = simulate(TaskScheduler(TASKS, budget=100), curves())
    assert turns[:3] == [("large", 1), ("middle", 1), ("small", 1)]
    assert sum(count for _, count in turns) == 100


@pytest.mark.parametrize(
    "budget, served", [(1, {"large"}), (4, {"large"}), (5, {"large"}), (6, {"large", "middle", "small"})]
)
def test_a_small_budget_goes_to_the_largest_tasks(budget, served):
    turns = simulate(TaskScheduler(TASKS, budget=budget), curves())
    assert {key for key, _ in turns} == served
    assert sum(count for _, count in turns) == budget


def test_a_budget_below_the_number_of_tasks_is_spent_on_the_most_important():
    tasks = [(f"t{k}", 1, 1e-3 / (k + 1)) for k in range(30)]
    turns = simulate(TaskScheduler(tasks, budget=20), {key: Curve(s, s / 2) for key, _, s in tasks})
    assert {key for key, _ in turns} == {"t0", "t1", "t2", "t3", "t4"}


def test_measured_times_replace_estimates():
    """A task that turns out to be slow gets more than one that only looked so."""
    surprise = {"large": Curve(1e-5, 5e-6), "middle": Curve(1e-4, 5e-5), "small": Curve(5e-3, 1e-3)}
    turns = simulate(TaskScheduler(TASKS, budget=200), surprise)
    spent = {key: sum(n for k, n in turns if k == key) for key in surprise}
    assert spent["small"] > spent["middle"] > spent["large"]


def test_a_stalled_task_loses_its_turns():
    stalled = simulate(TaskScheduler(TASKS, budget=400), curves(large=1.0, middle=0.05))
    improving = simulate(TaskScheduler(TASKS, budget=400), curves(large=0.05, middle=0.05))
    spent = [sum(n for key, n in turns if key == "large") for turns in (stalled, improving)]
    assert spent[0] < spent[1]


def test_a_task_without_improvement_is_finished_after_its_patience():
    scheduler = TaskScheduler(TASKS, budget=None, batch=8, patience=32)
    turns = simulate(scheduler, curves(large=1.0, middle=1.0, small=1.0))
    assert scheduler.next() is None
    assert all(task.trials == 1 + 32 for task in scheduler.tasks.values())
    assert len(turns) == 3 + 3 * 4


def test_an_exhausted_task_gets_nothing_more():
    scheduler = TaskScheduler(TASKS, budget=None)
    scheduler.exhaust("large")
    assert scheduler.next() == ("middle", 1)
    for key in ("middle", "small"):
        scheduler.exhaust(key)
    assert scheduler.next() is None


def test_a_task_where_nothing_works_is_given_up():
    scheduler = TaskScheduler([("only", 1, 1e-3)], budget=None, batch=8, patience=24)
    for _ in range(100):
        turn = scheduler.next()
        if turn is None:
            break
        scheduler.report(*turn, None)
    assert scheduler.next() is None
    assert scheduler.spent <= 40


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(1e-6, 1e-1)), min_size=1, max_size=12),
    st.integers(0, 300),
    st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_is_never_exceeded(sizes, budget, batch):
    tasks = [(f"t{k}", weight, estimate) for k, (weight, estimate) in enumerate(sizes)]
    scheduler = TaskScheduler(tasks, budget, batch)
    turns = simulate(scheduler, {key: Curve(s, s / 3) for key, _, s in tasks})
    assert sum(count for _, count in turns) <= budget
    assert all(1 <= count <= batch for _, count in turns)


def test_a_restored_scheduler_goes_on_as_if_nothing_had_happened():
    whole, first = curves(), curves()
    expected = simulate(TaskScheduler(TASKS, budget=300), whole)
    scheduler = TaskScheduler(TASKS, budget=300)
    turns = simulate(scheduler, first, steps=7)
    turns.append(scheduler.next())
    scheduler.report(*turns[-1], first[turns[-1][0]].run(turns[-1][1]))
    stored = json.loads(json.dumps(scheduler.state()))
    resumed = TaskScheduler(TASKS, budget=300)
    resumed.restore(stored)
    assert turns + simulate(resumed, first) == expected


def test_restoring_knows_nothing_of_other_tasks():
    scheduler = TaskScheduler(TASKS[:2], budget=10)
    other = TaskScheduler([*TASKS[1:], ("new", 1, 1e-3)], budget=10)
    scheduler.report("middle", 3, 5e-5)
    other.restore(scheduler.state())
    assert set(other.tasks) == {"middle", "small", "new"}
    assert other.tasks["middle"].best == 5e-5


def test_estimates_follow_arithmetic_or_memory_whichever_is_more():
    hw = Hardware.from_features("box", "x86_64", {"avx2", "fma"}, cores=2)
    arithmetic = SimpleNamespace(flops=10**9, bytes=10**5)
    memory = SimpleNamespace(flops=10**5, bytes=10**9)
    assert estimate_seconds(arithmetic, hw) == pytest.approx(10**9 / (2 * 8 * 2 * 2 * 3e9), rel=0.01)
    assert estimate_seconds(memory, hw) == pytest.approx(10**9 / 2e10, rel=0.01)
    assert estimate_seconds(SimpleNamespace(flops=0, bytes=0), hw) > 0


def test_first_trials_come_together_and_later_ones_alone():
    tasks = [(f"t{k}", 1, 1e-3 / (k + 1)) for k in range(5)]
    scheduler = TaskScheduler(tasks, budget=40, batch=3)
    assert scheduler.turns() == [("t0", 1), ("t1", 1), ("t2", 1)]
    for key, count in scheduler.turns():
        scheduler.report(key, count, 1e-3)
    assert scheduler.turns() == [("t3", 1), ("t4", 1)]
    for key, count in scheduler.turns():
        scheduler.report(key, count, 1e-3)
    assert scheduler.turns() == [scheduler.next()]
    assert TaskScheduler(tasks, budget=0).turns() == []
