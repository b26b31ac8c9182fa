"""Timing on a made-up machine, whose speed and noise are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tpo.measure.timing import (
    ENOUGH,
    LONGEST_SAMPLING,
    LONGEST_WARM_UP,
    PLENTY,
    SAMPLES_AT_ONCE,
    Clock,
    Run,
    Sample,
    half_width,
)

USUAL = 200e-6  # the reference kernel, undisturbed


class Machine:
    """A computer whose clock only moves when something runs on it; `disturbed` calls are slower."""

    def __init__(self, noise: float = 0.0, disturbance: float = 0.0, seed: int = 0) -> None:
        self.now = 0.0
        self.slowness = 1.0
        self._noise, self._disturbance = noise, disturbance
        self._rng = np.random.default_rng(seed)

    def clock(self, confidence: float = 0.02) -> Clock:
        return Clock(lambda: self.spend(USUAL), confidence, lambda: self.now)

    def spend(self, seconds: float, disturbed: bool | None = None) -> float:
        if disturbed is None:
            disturbed = self._rng.random() < self._disturbance
        extra = 1.6 if disturbed else 1.0
        took = seconds * self.slowness * extra * (1 + self._rng.exponential(self._noise or 1e-9))
        self.now += took
        return float(took)

    def program(self, seconds: float) -> Run:
        def run(count: int) -> Sequence[Sample]:
            states = self._rng.random(count) < self._disturbance
            return [
                Sample(
                    self.spend(seconds, bool(state)),
                    self.spend(USUAL, bool(state)),
                    self.spend(USUAL, bool(state)),
                )
                for state in states
            ]

        return run


def test_a_steady_machine_needs_few_samples() -> None:
    machine = Machine()
    timing = machine.clock().time(machine.program(2e-3), 2e-3)
    assert ENOUGH <= len(timing.samples) <= 2 * SAMPLES_AT_ONCE
    assert timing.seconds == pytest.approx(2e-3) and not timing.cut_short and timing.drift == 1.0


def test_noise_is_answered_with_more_samples_within_limits() -> None:
    quiet, noisy = Machine(noise=0.001), Machine(noise=0.08)
    spent = []
    for machine in (quiet, noisy):
        clock, start = machine.clock(), machine.now
        timing = clock.time(machine.program(1e-3), 1e-3)
        assert len(timing.samples) <= PLENTY + SAMPLES_AT_ONCE
        spent.append(machine.now - start)
    assert spent[0] < spent[1]


def test_the_stated_confidence_is_reached() -> None:
    machine = Machine(noise=0.02)
    timing = machine.clock(confidence=0.03).time(machine.program(0.5e-3), 0.5e-3)
    assert half_width(timing.samples) <= 0.03


@pytest.mark.parametrize("disturbance", [0.3, 0.7])
def test_disturbed_samples_are_set_aside(disturbance: float) -> None:
    machine = Machine(noise=0.01, disturbance=disturbance)
    timing = machine.clock().time(machine.program(1e-3), 1e-3)
    assert timing.seconds == pytest.approx(1e-3, rel=0.03)
    assert max(timing.samples) < 1.3e-3


def test_a_machine_that_became_slower_is_noticed_and_corrected() -> None:
    machine = Machine()
    watch = machine.clock()
    machine.slowness = 1.08
    first, *_, timing = (watch.time(machine.program(4e-3), 4e-3) for _ in range(12))
    assert first.seconds == pytest.approx(4.32e-3)  # it may be a burst of somebody else's work
    assert timing.drift == pytest.approx(1.08)
    assert timing.seconds == pytest.approx(4e-3)
    assert timing.samples[0] == pytest.approx(4.32e-3)


def test_a_reference_that_loses_twice_as_much_makes_nobody_look_fast() -> None:
    """Another virtual machine may halve the speed of plain arithmetic, and not that of reading memory."""
    machine = Machine()
    watch = machine.clock()
    machine.slowness = 2.0
    *_, timing = (watch.time(machine.program(1e-3), 2e-3) for _ in range(4))
    assert timing.drift <= 1.1 and timing.seconds > 1.8e-3


def test_sampling_ends_although_nothing_is_ever_undisturbed() -> None:
    machine = Machine()
    watch = machine.clock()
    machine.slowness = 1.25
    start = machine.now
    timing = watch.time(machine.program(20e-3), 20e-3)
    longest = LONGEST_WARM_UP + 1.5 * LONGEST_SAMPLING
    assert LONGEST_SAMPLING < machine.now - start < longest and timing.samples


@pytest.mark.parametrize("disturbance", [0.3, 0.9, 1.0])
def test_no_disturbance_makes_a_candidate_look_faster_than_it_is(disturbance: float) -> None:
    machine = Machine(noise=0.01)
    watch = machine.clock()
    machine._disturbance = disturbance
    for _ in range(4):
        assert watch.time(machine.program(1e-3), 1e-3).seconds > 0.99e-3


def test_a_bad_start_of_the_clock_makes_nobody_look_fast() -> None:
    machine = Machine()
    watch = machine.clock()
    machine.slowness = 2.0
    watch.time(machine.program(20e-3), 20e-3)
    machine.slowness = 1.0
    assert watch.time(machine.program(1e-3), 1e-3).seconds == pytest.approx(1e-3)


def test_hopeless_candidates_are_not_called_again() -> None:
    machine = Machine()

    def never(count: int) -> Sequence[Sample]:
        raise AssertionError("it was called again")

    timing = machine.clock().time(never, first=1.0, best=0.1, hopeless=3.0)
    assert timing.cut_short and timing.samples == (1.0,)


def test_a_slow_first_call_is_not_held_against_a_candidate() -> None:
    machine = Machine()
    timing = machine.clock().time(machine.program(1e-3), first=4e-3, best=1e-3, hopeless=3.0)
    assert not timing.cut_short and timing.seconds == pytest.approx(1e-3)
    slow = machine.clock().time(machine.program(4e-3), first=4e-3, best=1e-3, hopeless=3.0)
    assert slow.cut_short and slow.samples == (pytest.approx(4e-3),)


def test_what_is_certainly_not_among_the_best_is_not_measured_carefully() -> None:
    machine = Machine(noise=0.05, disturbance=0.8)
    careful, rough = Machine(noise=0.05, disturbance=0.8), machine
    careful.clock().time(careful.program(1e-3), first=1e-3, best=1e-3, hopeless=3.0)
    timing = rough.clock().time(rough.program(1.5e-3), first=1.5e-3, best=1e-3, hopeless=3.0)
    assert not timing.cut_short and rough.now < careful.now


def test_a_disturbed_candidate_is_not_hopeless() -> None:
    machine = Machine()
    watch = machine.clock()
    machine.slowness = 1.4
    assert not watch.time(machine.program(1e-3), first=1.4e-3, best=0.4e-3, hopeless=3.0).cut_short


@pytest.mark.parametrize("disturbance", [0.0, 0.5])
def test_comparison_puts_candidates_in_the_right_order(disturbance: float) -> None:
    machine = Machine(noise=0.02, disturbance=disturbance)
    programs = [machine.program(seconds) for seconds in (1.0e-3, 1.05e-3, 0.95e-3)]
    times = [timing.seconds for timing in machine.clock().compare(programs)]
    assert times[2] < times[0] < times[1]


def test_nobody_follows_itself_when_compared() -> None:
    """It would find in the caches what it has left there, and look faster than others."""
    machine, turns = Machine(), list[int]()

    def program(number: int) -> Run:
        def run(count: int) -> Sequence[Sample]:
            turns.append(number)
            return machine.program(1e-3)(count)

        return run

    machine.clock().compare([program(number) for number in range(3)])
    neighbours = set(pairwise(turns))
    assert len(turns) >= 3 * ENOUGH and all(one != other for one, other in neighbours)
    assert len(neighbours) == 6, "everybody follows everybody else some time"


def test_first_calls_warm_the_caches_and_say_nothing() -> None:
    machine, calls = Machine(), [0]

    def run(count: int) -> Sequence[Sample]:
        cold = [8, 4, 2, 1.5, 1.2]
        found = []
        for _ in range(count):
            slowness = cold[calls[0]] if calls[0] < len(cold) else 1
            calls[0] += 1
            found += machine.program(0.1e-3 * slowness)(1)
        return found

    timing = machine.clock().time(run, first=0.8e-3, best=0.1e-3, hopeless=3.0)
    assert not timing.cut_short and timing.seconds == pytest.approx(0.1e-3)


def test_nothing_to_compare_is_fine() -> None:
    assert Machine().clock().compare([]) == []


def test_nobody_is_timed_against_a_best_of_zero() -> None:
    machine = Machine()
    watch = machine.clock()
    before = machine.now
    timing = watch.time(machine.program(1e-3), first=1e-3, best=0.0, hopeless=3.0)
    assert timing.cut_short and timing.samples == (1e-3,) and machine.now == before
