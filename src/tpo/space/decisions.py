"""The decisions of a sketch as rows of numbers: drawing, changing and counting whole populations of them.

A *row* has one number for every site: which of the site's decisions was made, by its position in a table.
So constraints, mutation and everything that judges candidates work on matrices, before anything is built.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from tpo.lang import Choice, ComputeLocation, Constraint, Distribution, PartitionedTile, PerfectTile
from tpo.lang.distributions import Decision
from tpo.lang.sites import names, sampling

MAX_CHANGED = 3  # sites that one mutation changes
ATTEMPTS = 64  # draws before a sketch counts as impossible
CHANGES = 8  # mutations of a row before constraints count as forbidding all of them
COUNTED = 20_000  # rows that are counted one by one; more are estimated
ESTIMATED_FROM = 2_000
DEEPEST = 16  # loops among which a compute location of a stored trace may lie

Rows = NDArray[np.int64]
Values = dict[tuple[str, int], NDArray[np.int64]]


@dataclass(frozen=True)
class Site:
    """A random variable of a sketch. Without a distribution, TVM alone can draw it."""

    name: str
    distribution: Distribution | None

    @cached_property
    def decisions(self) -> tuple[Decision | None, ...]:
        """The table of its decisions."""
        return (None,) if self.distribution is None else tuple(self.distribution.all())

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """How likely each is drawn."""
        if self.distribution is None:
            return np.ones(1)
        return np.array(self.distribution.probabilities(self.distribution.all()))

    @cached_property
    def values(self) -> NDArray[np.int64]:
        """The numbers a rule sees, a line for each decision."""
        if self.distribution is None:
            return np.zeros((1, 0), np.int64)
        return np.array([self.distribution.values(decision) for decision in self.distribution.all()])

    @cached_property
    def positions(self) -> dict[Decision | None, int]:
        """Where each decision is in the table."""
        return {decision: k for k, decision in enumerate(self.decisions)}

    @cached_property
    def _close(self) -> dict[int, tuple[list[int], list[float]]]:
        return {}

    def mutate(self, position: int, luck: float) -> int:
        """The position of a decision close to another one, by a random number below one."""
        if position not in self._close:
            self._close[position] = self._find_close(self.decisions[position])
        others, limits = self._close[position]
        if not others:
            return position
        return others[min(bisect(limits, luck), len(others) - 1) if limits else int(luck * len(others))]

    def _find_close(self, decision: Decision | None) -> tuple[list[int], list[float]]:
        """Positions of decisions close to one, and how likely each is, summed up to there; [] if alike."""
        if self.distribution is None or decision is None:
            return [], []
        others = self.distribution.neighbours(decision)
        weights = self.distribution.probabilities(others) if others else []
        alike = not weights or min(weights) == max(weights)
        return [self.positions[other] for other in others], [] if alike else list(accumulate(weights))


@dataclass(frozen=True)
class Size:
    """Candidates of a sketch: all rows, and the share of them that keeps the constraints."""

    support: int
    share: float
    exact: bool

    @property
    def allowed(self) -> int:
        """Rows that keep the constraints, exactly or about."""
        return round(self.support * self.share)


@dataclass(frozen=True)
class Domain:
    """All rows of a sketch: its sites, and the constraints between them."""

    sites: tuple[Site, ...]
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many decisions every site has."""
        return np.array([len(site.decisions) for site in self.sites], np.int64)

    @property
    def support(self) -> int:
        """How many rows there are, before constraints."""
        return math.prod(int(size) for size in self.sizes)

    @cached_property
    def size(self) -> Size:
        """How many rows there are, before and after constraints."""
        if not self.constraints:
            return Size(self.support, 1.0, True)
        exact = self.support <= COUNTED
        rows = self._grid() if exact else self._draw(ESTIMATED_FROM, np.random.default_rng(0))
        return Size(self.support, float(self.allowed(rows).mean()), exact)

    def every(self) -> Rows:
        """All rows that keep the constraints; only for a domain that is small."""
        rows = self._grid()
        return np.asarray(rows[self.allowed(rows)])

    def draw(self, count: int, rng: np.random.Generator) -> Rows:
        """Rows as the rules' distributions have it that keep the constraints; fewer if that is hard."""
        return self._kept(count, lambda: self._draw(count, rng))

    def spread(self, count: int, rng: np.random.Generator) -> Rows:
        """Rows that are spread evenly over all decisions, and keep the constraints; fewer if that is hard."""
        if not self.sites:
            return np.zeros((min(count, 1), 0), np.int64)
        sampler = qmc.Halton(len(self.sites), rng=rng)
        return self._kept(count, lambda: (sampler.random(count) * self.sizes).astype(np.int64))

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """One to three decisions of every row changed; rows stay as they are where constraints forbid it."""
        result: Rows = rows.copy()
        movable = np.flatnonzero(self.sizes > 1)
        left = np.arange(len(rows)) if len(movable) else np.zeros(0, np.int64)
        for _ in range(CHANGES):
            if not len(left):
                break
            numbers = rng.integers(1, min(MAX_CHANGED, len(movable)) + 1, len(left)).tolist()
            order = movable[rng.random((len(left), len(movable))).argsort(axis=1)[:, :MAX_CHANGED]].tolist()
            luck = rng.random((len(left), MAX_CHANGED)).tolist()
            lines = rows[left].tolist()
            for line, number, sites, chances in zip(lines, numbers, order, luck, strict=True):
                for k, chance in zip(sites[:number], chances, strict=False):
                    line[k] = self.sites[k].mutate(line[k], chance)
            changed = np.array(lines, np.int64)
            good = self.allowed(changed)
            result[left[good]] = changed[good]
            left = left[~good]
        return result

    def cross(self, left: Rows, right: Rows, rng: np.random.Generator) -> Rows:
        """Every site from either of two parents; the left one itself where constraints forbid the child."""
        child = np.where(rng.random(left.shape) < 0.5, left, right)
        return np.asarray(np.where(self.allowed(child)[:, None], child, left))

    def allowed(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows keep all constraints."""
        result = np.ones(len(rows), np.bool_)
        values = self.values(rows) if self.constraints else {}
        for constraint in self.constraints:
            result &= constraint.holds(values)
        return result

    def values(self, rows: Rows) -> Values:
        """The numbers rules see, by the name of a site and the position of the value in it."""
        return {
            (site.name, position): column
            for site, at in zip(self.sites, rows.T, strict=True)
            for position, column in enumerate(site.values[at].T)
        }

    def decisions(self, row: NDArray[np.int64]) -> list[Decision | None]:
        """What TVM stores for a row."""
        return [site.decisions[int(k)] for site, k in zip(self.sites, row, strict=True)]

    def row(self, decisions: Sequence[Decision | None]) -> NDArray[np.int64] | None:
        """The row of some decisions; None if one of them is none of ours."""
        if len(decisions) != len(self.sites):
            return None
        found = [
            site.positions.get(decision) if site.distribution is not None else 0
            for site, decision in zip(self.sites, decisions, strict=True)
        ]
        known = [k for k in found if k is not None]
        return np.array(known, np.int64) if len(known) == len(found) else None

    def nearest(self, values: Mapping[str, Sequence[int]], otherwise: Rows) -> Rows:
        """A row as close as can be to the numbers that sites of a name have had, `otherwise` at all others.

        None if they were other kinds of sites, or if no row near there is allowed.
        """
        row: Rows = otherwise[:1].copy()
        for k, site in enumerate(self.sites):
            wanted = values.get(site.name)
            if wanted is not None and len(wanted) != site.values.shape[1]:
                return row[:0]
            if wanted is not None and len(row):
                row[0, k] = np.abs(_scale(site.values) - _scale(np.array(wanted))).sum(axis=1).argmin()
        if len(row) and not self.allowed(row)[0]:
            row = self.mutate(row, np.random.default_rng(0))
        return np.asarray(row[self.allowed(row)])

    def _grid(self) -> Rows:
        if not self.sites:
            return np.zeros((1, 0), np.int64)
        return np.asarray(np.indices(tuple(self.sizes), np.int64).reshape(len(self.sites), -1).T)

    def _draw(self, count: int, rng: np.random.Generator) -> Rows:
        columns = [rng.choice(len(site.decisions), count, p=site.probabilities) for site in self.sites]
        return np.stack(columns, axis=1) if columns else np.zeros((min(count, 1), 0), np.int64)

    def _kept(self, count: int, make: Any) -> Rows:
        """As many rows that keep the constraints as some attempts give, at most `count`."""
        found = [rows[self.allowed(rows)] for rows in self._attempts(count, make)]
        return np.concatenate(found)[:count] if found else np.zeros((0, len(self.sites)), np.int64)

    def _attempts(self, count: int, make: Any) -> Iterator[Rows]:
        missing = count
        for _ in range(ATTEMPTS):
            if missing <= 0:
                return
            rows = make()
            yield rows
            missing -= int(self.allowed(rows).sum()) if self.sites else missing


def _scale(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Twice as much is as far as half as much; below zero as above."""
    return np.asarray(np.sign(values) * np.log2(np.abs(values) + 1.0))


def sites_of(trace: Any) -> tuple[Site, ...]:
    """The sites of a trace, with the distributions its instructions and decisions tell."""
    found = zip(sampling(trace), names(trace), strict=True)
    return tuple(Site(name, _distribution(inst, trace.decisions.get(inst))) for inst, name in found)


def decisions_of(trace: Any) -> list[Decision | None]:
    """What a trace has decided, site by site."""
    found = (trace.decisions.get(inst) for inst in sampling(trace))
    return [None if raw is None else as_decision(raw) for raw in found]


def as_decision(raw: Any) -> Decision:
    """A decision of TVM's as plain numbers."""
    try:
        return tuple(int(factor) for factor in raw)
    except TypeError:
        return int(raw)


def _distribution(inst: Any, decision: Any) -> Distribution | None:
    """What a sampling instruction draws from; extents are read off its decision."""
    match inst.kind.name, decision:
        case "SampleCategorical", _:
            options, weights = ([float(item) for item in attr] for attr in inst.attrs)
            return Choice([int(option) for option in options], weights)
        case "SampleComputeLocation", _:
            return ComputeLocation(DEEPEST)
        case _, None:
            return None
        case "SamplePerfectTile", factors:
            parts, max_inner = (int(attr) for attr in inst.attrs)
            return PerfectTile(math.prod(map(int, factors)), parts, max_inner)
        case "SamplePartitionedTile", factors:
            parts, partition, multiple = (int(attr) for attr in inst.attrs)
            extent = math.prod(map(int, factors))
            return PartitionedTile(extent, parts, partition=partition, inner_multiple=multiple)
    return None
