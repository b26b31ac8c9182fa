"""Timing on a made-up machine, whose speed and noise are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tpo.measure.timing import FEWEST_SAMPLES, MOST_SAMPLES, Clock, Run, half_width, sample


class Machine:
    """A computer whose clock only moves when something runs on it."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.slowness = 1.0
        self._noise = noise
        self._rng = np.random.default_rng(seed)

    def program(self, seconds: float) -> Run:
        def run(count: int) -> Sequence[float]:
            noise = self._rng.exponential(self._noise, count) if self._noise else np.zeros(count)
            return [seconds * self.slowness * (1 + extra) for extra in noise]

        return run


def clock(machine: Machine, confidence: float = 0.02) -> Clock:
    return Clock(machine.program(250e-6), confidence)


def test_a_steady_machine_needs_the_fewest_samples() -> None:
    machine = Machine()
    timing = clock(machine).time(machine.program(2e-3), 2e-3)
    assert len(timing.samples) == FEWEST_SAMPLES
    assert timing.seconds == pytest.approx(2e-3) and not timing.cut_short


def test_noise_is_answered_with_more_samples_within_limits() -> None:
    quiet, noisy = Machine(noise=0.01), Machine(noise=0.5)
    few = clock(quiet).time(quiet.program(1e-3), 1e-3)
    many = clock(noisy).time(noisy.program(1e-3), 1e-3)
    assert FEWEST_SAMPLES <= len(few.samples) < len(many.samples) <= MOST_SAMPLES + FEWEST_SAMPLES


def test_the_stated_confidence_is_reached_unless_it_costs_too_much() -> None:
    machine = Machine(noise=0.1)
    samples = sample(machine.program(0.5e-3), 0.03)
    assert half_width(samples) <= 0.03


def test_a_slower_machine_is_noticed_and_corrected() -> None:
    machine = Machine()
    watch = clock(machine)
    machine.slowness = 1.25
    timing = watch.time(machine.program(2e-3), 2e-3)
    assert timing.drift == pytest.approx(1.25)
    assert timing.seconds == pytest.approx(2e-3)
    assert timing.samples[0] == pytest.approx(2.5e-3)


def test_samples_are_taken_again_when_the_speed_changes_meanwhile() -> None:
    machine = Machine()
    watch = clock(machine)
    seen = []

    def changing(count: int) -> Sequence[float]:
        seen.append(count)
        if len(seen) == 2:  # in the middle of the first attempt
            machine.slowness = 2.0
        return machine.program(1e-3)(count)

    timing = watch.time(changing, 1e-3)
    assert timing.seconds == pytest.approx(1e-3)
    assert timing.drift == pytest.approx(2.0)
    assert len(seen) == 3


def test_hopeless_candidates_are_not_called_again() -> None:
    machine = Machine()
    watch = clock(machine)

    def never(count: int) -> Sequence[float]:
        raise AssertionError("it was called again")

    timing = watch.time(never, first=1.0, limit=0.1)
    assert timing.cut_short and timing.samples == (1.0,)


def test_a_slow_first_call_is_not_held_against_a_candidate() -> None:
    machine = Machine()
    timing = clock(machine).time(machine.program(1e-3), first=1.4e-3, limit=1.2e-3)
    assert not timing.cut_short and timing.seconds == pytest.approx(1e-3)
    slow = clock(machine).time(machine.program(2e-3), first=1.4e-3, limit=1.2e-3)
    assert slow.cut_short and slow.samples == (pytest.approx(2e-3),)


def test_a_limit_counts_in_corrected_seconds() -> None:
    machine = Machine()
    watch = clock(machine)
    machine.slowness = 1.5
    assert not watch.time(machine.program(1.0), first=1.5, limit=1.2).cut_short


def test_comparison_puts_candidates_in_the_right_order_on_a_wandering_machine() -> None:
    machine = Machine(noise=0.05)
    watch = clock(machine)
    turns = 0

    def wandering(seconds: float) -> Run:
        def run(count: int) -> Sequence[float]:
            nonlocal turns
            turns += 1
            machine.slowness = 1.0 + 0.5 * ((turns // 12) % 2)
            return machine.program(seconds)(count)

        return run

    times = [timing.seconds for timing in watch.compare([wandering(s) for s in (1.0e-3, 1.1e-3, 0.9e-3)])]
    assert times[2] < times[0] < times[1]


def test_a_known_baseline_is_kept() -> None:
    machine = Machine()
    assert Clock(machine.program(1e-3), 0.02, baseline=2e-3).baseline == 2e-3
