"""What a site may be: each distribution emits TVM's sampling instruction, and knows its own values.

A *decision* is what TVM stores for a site: the factors of a tile, the index of a categorical, the number
of a loop. The *values* of a decision are the numbers a rule sees. A new distribution is one class that
says how it is emitted, which decisions there are, which of them are close, and what their values are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Decision = int | tuple[int, ...]

ROOT, INLINE = -1, -2  # what TVM calls the two compute locations that are no loop


class Distribution(ABC):
    """A random variable of a rule."""

    @abstractmethod
    def emit(self, sch: Any, decision: Decision | None = None) -> Any:
        """Emit the sampling instruction and return what it samples: one variable, or a list of them."""

    @abstractmethod
    def all(self) -> Sequence[Decision]:
        """Every decision that can be drawn; where only TVM knows which are possible, those that may be."""

    @abstractmethod
    def neighbours(self, decision: Decision) -> Sequence[Decision]:
        """Other decisions close to a given one; from each, all are reached step by step."""

    @abstractmethod
    def values(self, decision: Decision) -> tuple[int, ...]:
        """The numbers a rule sees when this is decided, always equally many."""

    def probabilities(self, decisions: Sequence[Decision]) -> list[float]:
        """How likely each of some decisions is drawn, relative to the others; all alike by default."""
        return [1 / len(decisions)] * len(decisions)

    def support(self) -> int:
        """How many decisions there are."""
        return len(self.all())

    def draw(self, rng: np.random.Generator) -> Decision:
        """A random decision."""
        return self._pick(self.all(), rng)

    def mutate(self, decision: Decision, rng: np.random.Generator) -> Decision:
        """Another decision close to a given one; the same only where there is no other."""
        others = self.neighbours(decision)
        return self._pick(others, rng) if others else decision

    def _pick(self, decisions: Sequence[Decision], rng: np.random.Generator) -> Decision:
        return decisions[int(rng.choice(len(decisions), p=self.probabilities(decisions)))]

    def encode(self, decision: Decision) -> tuple[float, ...]:
        """A decision as features: the logarithms of its values."""
        return tuple(math.log2(max(value, 0) + 1) for value in self.values(decision))

    def constant(self, value: Any) -> Any:
        """What a rule gets instead of a random variable where the site is conditioned on `value`."""
        raise ValueError(f"a {type(self).__name__} cannot be conditioned")


@dataclass(frozen=True)
class Choice(Distribution):
    """One of some numbers, with weights (equal ones by default); `preferred` is what the rule itself takes.

    >>> unroll = Choice([0, 16, 64, 512])
    >>> unroll.support(), unroll.values(2)
    (4, (64,))
    >>> unroll.mutate(2, np.random.default_rng(0)) != 2
    True
    """

    options: Sequence[int]
    weights: Sequence[float] | None = None
    preferred: int | None = None

    def __post_init__(self) -> None:
        if not self.options or len(set(self.options)) != len(self.options):
            raise ValueError(f"a choice needs options that differ, not {list(self.options)}")
        weights = self.weights
        if weights is not None and (
            len(weights) != len(self.options) or min(weights) < 0 or not sum(weights)
        ):
            raise ValueError(f"{len(self.options)} options need as many weights >= 0, not {list(weights)}")
        if self.preferred is not None and self.preferred not in self.options:
            raise ValueError(f"{self.preferred} is preferred, but not among {list(self.options)}")

    def probabilities(self, decisions: Sequence[Decision]) -> list[float]:
        """The weights of some options, made to sum up to one."""
        weights = [1.0 if self.weights is None else self.weights[_index(k)] for k in decisions]
        return [weight / sum(weights) for weight in weights]

    def emit(self, sch: Any, decision: Decision | None = None) -> Any:
        """TVM's SampleCategorical."""
        if decision is None and self.preferred is not None:
            decision = list(self.options).index(self.preferred)
        weights = self.probabilities(range(len(self.options)))
        return sch.sample_categorical(list(self.options), weights, decision=decision)

    def all(self) -> Sequence[Decision]:
        """The indices of options that can be drawn."""
        return [k for k in range(len(self.options)) if self.weights is None or self.weights[k] > 0]

    def neighbours(self, decision: Decision) -> Sequence[Decision]:
        """All others."""
        return [k for k in self.all() if k != decision]

    def values(self, decision: Decision) -> tuple[int, ...]:
        """The chosen number."""
        return (int(self.options[_index(decision)]),)

    def constant(self, value: Any) -> Any:
        """One of the options."""
        if value not in self.options:
            raise ValueError(f"{value!r} is not among {list(self.options)}")
        return value


def IntRange(low: int, high: int, step: int = 1) -> Choice:  # noqa: N802 (it makes a distribution)
    """Any of low, low + step, ... up to and including high.

    >>> IntRange(2, 8, 2).options
    [2, 4, 6, 8]
    """
    return Choice(list(range(low, high + 1, step)))


def PowerOfTwo(low: int, high: int) -> Choice:  # noqa: N802 (it makes a distribution)
    """Any power of two from low to high.

    >>> PowerOfTwo(4, 40).options
    [4, 8, 16, 32]
    """
    return Choice([1 << k for k in range(high.bit_length()) if low <= 1 << k <= high])


@dataclass(frozen=True)
class PerfectTile(Distribution):
    """`parts` factors whose product is `extent`, the last of them at most `max_inner`.

    `loop` is what TVM samples for; without one, a tile can be drawn and counted but not emitted. `preferred`
    is what the rule itself takes; without it, TVM draws one.

    >>> PerfectTile(12, parts=2, max_inner=4).all()
    ((12, 1), (6, 2), (4, 3), (3, 4))
    >>> PerfectTile(12, parts=2).neighbours((6, 2))
    [(1, 12), (2, 6), (3, 4), (12, 1)]
    """

    extent: int
    parts: int
    max_inner: int = 64
    loop: Any = None
    preferred: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        sch: Any,
        loop: Any,
        parts: int,
        max_inner: int = 64,
        preferred: tuple[int, ...] | None = None,
    ) -> PerfectTile:
        """Tiles of a loop of a schedule."""
        return cls(int(sch.get(loop).extent), parts, max_inner, loop, preferred)

    def emit(self, sch: Any, decision: Decision | None = None) -> Any:
        """TVM's SamplePerfectTile."""
        decision = self.preferred if decision is None else decision
        given = None if decision is None else list(_tuple(decision))
        return sch.sample_perfect_tile(self.loop, self.parts, self.max_inner, decision=given)

    def all(self) -> tuple[tuple[int, ...], ...]:
        """Ways to write the extent as such a product."""
        return tuple(factors for factors in _factorings(self.extent, self.parts) if self._allows(factors))

    def neighbours(self, decision: Decision) -> Sequence[Decision]:
        """Those where a divisor moves from one factor to another."""
        return [factors for factors in _moved(_tuple(decision)) if self._allows(factors)]

    def values(self, decision: Decision) -> tuple[int, ...]:
        """The factors."""
        return _tuple(decision)

    def constant(self, value: Any) -> Any:
        """All factors, of which one may be None; or just the last one of two."""
        factors = [None, value] if isinstance(value, int) and self.parts == 2 else list(value)
        known = math.prod(factor for factor in factors if factor is not None)
        full = tuple(self.extent // known if factor is None else factor for factor in factors)
        if len(full) != self.parts or math.prod(full) != self.extent or not self._allows(full):
            raise ValueError(f"{value!r} is no tile of {self.extent} in {self.parts} parts")
        return list(full)

    def _allows(self, factors: tuple[int, ...]) -> bool:
        return self.max_inner < 0 or self.parts == 1 or factors[-1] <= self.max_inner


@dataclass(frozen=True)
class PartitionedTile(PerfectTile):
    """Factors of which those from position `partition` on make a multiple of `inner_multiple`.

    >>> PartitionedTile(24, parts=2, max_inner=-1, partition=1, inner_multiple=4).all()
    ((6, 4), (3, 8), (2, 12), (1, 24))
    """

    partition: int = 1
    inner_multiple: int = 1

    def emit(self, sch: Any, decision: Decision | None = None) -> Any:
        """TVM's SamplePartitionedTile, which has no limit of the last factor."""
        given = None if decision is None else list(_tuple(decision))
        return sch.sample_partitioned_tile(
            self.loop, self.parts, self.partition, self.inner_multiple, decision=given
        )

    def _allows(self, factors: tuple[int, ...]) -> bool:
        return math.prod(factors[self.partition :]) % self.inner_multiple == 0


@dataclass(frozen=True)
class ComputeLocation(Distribution):
    """A loop of its consumer at which to compute a block, or the root, or inlined.

    TVM alone knows which of the `loops` are possible: it takes the nearest that is.

    >>> ComputeLocation(loops=4).support()
    6
    """

    loops: int
    block: Any = None

    @classmethod
    def of(cls, sch: Any, block: Any) -> ComputeLocation:
        """Locations of a block of a schedule, below its first consumer's loops."""
        consumers = sch.get_consumers(block)
        return cls(len(sch.get_loops(consumers[0])) if consumers else 0, block)

    def emit(self, sch: Any, decision: Decision | None = None) -> Any:
        """TVM's SampleComputeLocation."""
        return sch.sample_compute_location(self.block, decision=decision)

    def all(self) -> Sequence[Decision]:
        """All loops, the root and inlining."""
        return range(INLINE, self.loops)

    def neighbours(self, decision: Decision) -> Sequence[Decision]:
        """All others."""
        return [k for k in self.all() if k != decision]

    def values(self, decision: Decision) -> tuple[int, ...]:
        """The position of the loop, or what stands for the root and for inlining."""
        return (_index(decision),)

    def encode(self, decision: Decision) -> tuple[float, ...]:
        """How deep, and whether it is a loop at all."""
        (location,) = self.values(decision)
        return (max(location, 0) / max(self.loops, 1), float(location == ROOT), float(location == INLINE))


def _index(decision: Decision) -> int:
    assert isinstance(decision, int)
    return decision


def _tuple(decision: Decision) -> tuple[int, ...]:
    return (decision,) if isinstance(decision, int) else tuple(int(factor) for factor in decision)


@cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(k for k in range(1, number + 1) if number % k == 0)


@cache
def _moved(factors: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The same product with a divisor moved from one factor to another."""
    found = set()
    for source, amount in enumerate(factors):
        for divisor in _divisors(amount)[1:]:
            for target in range(len(factors)):
                if target != source:
                    moved = list(factors)
                    moved[source] //= divisor
                    moved[target] *= divisor
                    found.add(tuple(moved))
    return tuple(sorted(found))


@cache
def _factorings(number: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """All ordered products of so many factors, those with a small last factor first."""
    if parts == 1:
        return ((number,),)
    return tuple(
        (*outer, last) for last in _divisors(number) for outer in _factorings(number // last, parts - 1)
    )
