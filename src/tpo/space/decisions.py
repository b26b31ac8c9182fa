"""Decision vectors: drawing, changing and counting them, with constraints, before anything is built."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpo.lang import Choice, ComputeLocation, Constraint, Distribution, PartitionedTile, PerfectTile
from tpo.lang.distributions import Decision
from tpo.lang.sites import names, sampling

MAX_CHANGED = 3  # sites that one mutation changes
ATTEMPTS = 64  # draws before a sketch counts as impossible
COUNTED = 20_000  # decision vectors that are counted one by one; more are estimated
ESTIMATED_FROM = 2_000
DEEPEST = 16  # loops among which a compute location of a stored trace may lie

Decisions = Sequence[Decision | None]


@dataclass(frozen=True)
class Site:
    """A random variable of a sketch. Without a distribution, TVM alone can draw it."""

    name: str
    distribution: Distribution | None


@dataclass(frozen=True)
class Size:
    """Candidates of a sketch: all decision vectors, and the share that keeps the constraints."""

    support: int
    share: float
    exact: bool

    @property
    def allowed(self) -> int:
        """Decision vectors that keep the constraints, exactly or about."""
        return round(self.support * self.share)


def sites_of(trace: Any) -> tuple[Site, ...]:
    """The sites of a trace, with the distributions its instructions and decisions tell."""
    found = zip(sampling(trace), names(trace), strict=True)
    return tuple(Site(name, _distribution(inst, trace.decisions.get(inst))) for inst, name in found)


def as_decision(raw: Any) -> Decision:
    """A decision of TVM's as plain numbers."""
    try:
        return tuple(int(factor) for factor in raw)
    except TypeError:
        return int(raw)


def draw(
    sites: Sequence[Site], constraints: Sequence[Constraint], rng: np.random.Generator
) -> list[Decision | None] | None:
    """A random decision vector that keeps the constraints; None if there seems to be none."""
    for _ in range(ATTEMPTS):
        drawn = [None if site.distribution is None else site.distribution.draw(rng) for site in sites]
        if allowed(sites, constraints, [drawn])[0]:
            return drawn
    return None


def mutate(
    sites: Sequence[Site],
    constraints: Sequence[Constraint],
    decisions: Sequence[Decision],
    rng: np.random.Generator,
) -> list[Decision | None]:
    """One to three decisions changed, if the constraints allow it."""
    changed: list[Decision | None] = list(decisions)
    for _ in range(ATTEMPTS):
        chosen = rng.choice(len(sites), int(rng.integers(1, min(MAX_CHANGED, len(sites)) + 1)), replace=False)
        changed = list(decisions)
        for k in map(int, chosen):
            distribution = sites[k].distribution
            changed[k] = None if distribution is None else distribution.mutate(decisions[k], rng)
        if allowed(sites, constraints, [changed])[0]:
            break
    return changed


def allowed(
    sites: Sequence[Site], constraints: Sequence[Constraint], population: Sequence[Decisions]
) -> NDArray[np.bool_]:
    """Which decision vectors of a population keep all constraints."""
    result = np.ones(len(population), np.bool_)
    if not constraints:
        return result
    values: dict[tuple[str, int], NDArray[np.int64]] = {}
    for k, site in enumerate(sites):
        if site.distribution is not None:
            rows = [site.distribution.values(row[k]) for row in population]  # type: ignore[arg-type]
            for position, column in enumerate(np.array(rows, np.int64).T):
                values[site.name, position] = column
    for constraint in constraints:
        result &= constraint.holds(values)
    return result


def count(sites: Sequence[Site], constraints: Sequence[Constraint], seed: int = 0) -> Size:
    """How many decision vectors there are, and what share of them keeps the constraints."""
    known = [site for site in sites if site.distribution is not None]
    support = math.prod(site.distribution.support() for site in known if site.distribution is not None)
    if not constraints:
        return Size(support, 1.0, True)
    every = _all_vectors(known) if support <= COUNTED else None
    if every is not None:
        return Size(support, float(allowed(known, constraints, every).mean()), True)
    rng = np.random.default_rng(seed)
    drawn = [
        [s.distribution.draw(rng) for s in known if s.distribution is not None] for _ in range(ESTIMATED_FROM)
    ]
    return Size(support, float(allowed(known, constraints, drawn).mean()), False)


def _all_vectors(sites: Sequence[Site]) -> list[Decisions] | None:
    ranges: list[Sequence[Decision]] = []
    for site in sites:
        match site.distribution:
            case Choice() as choice:
                ranges.append([k for k, p in enumerate(choice.probabilities) if p > 0])
            case PerfectTile() as tile:
                ranges.append(tile.all())
            case _:
                return None
    return list(itertools.product(*ranges))


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
