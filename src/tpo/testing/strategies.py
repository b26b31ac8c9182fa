"""A contract suite for search strategies: what `tpo.search.Strategy` promises, tried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tpo.measure.contract import Failure, Measurement
from tpo.search.contract import Strategy
from tpo.space import Candidate

Make = Callable[[np.random.Generator], Strategy]


def check_strategy(make: Make, batch: int = 4, rounds: int = 4) -> None:
    """Assert that strategies made by `make` keep their promises; it must give each a fresh space's worth.

    `make` gets the generator that all randomness has to come from.
    """
    first = _run(make(np.random.default_rng(7)), batch, rounds)
    again = _run(make(np.random.default_rng(7)), batch, rounds)
    assert first == again, "the same seed and the same measurements must give the same proposals"
    _check_edges(make(np.random.default_rng(8)), batch)


def _run(strategy: Strategy, batch: int, rounds: int) -> list[list[str]]:
    """Propose and observe a few times; a third of the measurements are failures."""
    known: set[str] = set()
    history = []
    for _ in range(rounds):
        proposed = strategy.propose(batch, frozenset(known))
        keys = [candidate.key for candidate in proposed]
        assert len(keys) <= batch, f"{len(keys)} candidates were proposed where {batch} were asked for"
        assert len(set(keys)) == len(keys), "a proposal holds the same candidate twice"
        assert not known & set(keys), "a known candidate was proposed again"
        strategy.observe(_measure(proposed))
        known.update(keys)
        history.append(keys)
    assert history and history[0], "nothing was proposed at all"
    return history


def _measure(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Measurement]]:
    """Made-up times that depend on nothing but the candidate."""
    results = []
    for candidate in candidates:
        number = int(candidate.key, 16)
        failed = Measurement.failed(Failure.RUN_ERROR, "made up")
        results.append((candidate, failed if number % 3 == 0 else Measurement(1e-3 + number % 1000 * 1e-6)))
    return results


def _check_edges(strategy: Strategy, batch: int) -> None:
    """Nothing asked for, nothing observed, everything failed, everything known."""
    assert strategy.propose(0, frozenset()) == [], "no candidate was asked for"
    strategy.observe([])
    proposed = strategy.propose(batch, frozenset())
    strategy.observe([(c, Measurement.failed(Failure.CRASH, "made up")) for c in proposed])
    assert strategy.propose(batch, _Everything()) == [], (
        "all candidates are known, and yet some were proposed"
    )


class _Everything(frozenset[str]):
    """A set that holds every key."""

    def __contains__(self, key: object) -> bool:
        return True
