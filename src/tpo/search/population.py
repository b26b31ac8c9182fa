"""Chains of candidates: scored without being applied, changed step by step, and kept by annealing.

Chains start from what the rules' distributions give, from decisions spread evenly, from what is good for
other workloads, and from the best that was measured. Each step changes some decisions of a chain, crosses it
with another one or moves it to another sketch, and is accepted as Metropolis and Hastings have it: always if
the model scores it higher, else by luck that gets less likely as chains cool down. What would obviously take
far too long, such as a tile computed again for every element, is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpo.cost.contract import Extractor, Features
from tpo.cost.features import rough_cycles
from tpo.cost.online import OnlineModel
from tpo.search.contract import SketchLike
from tpo.space.decisions import Rows

CHAINS = 256  # fewer where features are costly
STEPS = 4  # of annealing; the last ones accept nothing that scores lower
HOTTEST = 1.0  # temperature of the first step, in standard deviations of the scores
ENUMERATED = 4  # times as many candidates of a sketch as there are chains are simply all scored
FEW_SKETCHES = 2  # that go on in any case
# Sketches that were tried so often, and whose best is so many times slower than the best of all, are looked
# at with this probability: each look costs by the sketch.
TRIED, BEHIND, SECOND_LOOK = 2, 2.0, 0.25
STRUCTURES = 4  # of a new sketch that are watched before chains begin; of others, those of good rows
LOOKS = 8  # at the best of a population, until none is new
PARENTS = 32  # the best measured ones, which chains start from
STARTS = (0.4, 0.3, 0.3)  # shares of chains that start drawn, spread evenly, and at parents
CROSSED, MOVED = 0.2, 0.05  # shares of steps that cross two chains, that move to another sketch
HOPELESS = 5.0  # logarithm of how many times slower than the best a guess may be: guesses are rough
CURIOSITY = 0.3  # how much of its spread is added to a score: what nobody knows may be good

Row = NDArray[np.int64]
Key = tuple[str, bytes]


class Pick(NamedTuple):
    """A row of a sketch, and how good it looks."""

    sketch: SketchLike
    row: Row
    score: float = 0.0

    @property
    def key(self) -> Key:
        """Its identity."""
        return self.sketch.name, self.row.tobytes()


@dataclass
class Scored:
    """Rows of one sketch, how good they look, and a rough guess of their cycles (see `rough_cycles`)."""

    sketch: SketchLike
    rows: Rows
    scores: NDArray[np.float64]
    cycles: NDArray[np.float64]

    def __getitem__(self, chosen: Any) -> Scored:
        return Scored(self.sketch, self.rows[chosen], self.scores[chosen], self.cycles[chosen])

    def __add__(self, other: Scored) -> Scored:
        return Scored(
            self.sketch,
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.cycles, other.cycles]),
        )

    def replaced(self, other: Scored, chosen: NDArray[np.bool_]) -> Scored:
        """With some rows of another one in their places."""
        return Scored(
            self.sketch,
            np.where(chosen[:, None], other.rows, self.rows),
            np.where(chosen, other.scores, self.scores),
            np.where(chosen, other.cycles, self.cycles),
        )


@dataclass
class Known:
    """What is known of one sketch: its best rows with their times, how often it was tried, good guesses."""

    parents: list[tuple[float, Row]] = field(default_factory=list)
    trials: int = 0
    guesses: list[Row] = field(default_factory=list)  # rows that were good for other workloads

    @property
    def best(self) -> float:
        """Its shortest time."""
        return self.parents[0][0] if self.parents else np.inf

    def add(self, measured: list[tuple[float, Row]]) -> None:
        """Remember the best as parents."""
        good = [pair for pair in (*self.parents, *measured) if np.isfinite(pair[0])]
        self.parents = sorted(good, key=lambda pair: pair[0])[:PARENTS]


class Population:
    """Makes the candidates of some sketches that are worth a look."""

    def __init__(
        self,
        model: OnlineModel,
        extractor: Extractor,
        rng: np.random.Generator,
        chains: int,
        curiosity: float = CURIOSITY,
    ) -> None:
        self.model, self.extractor, self.rng, self.chains = model, extractor, rng, chains
        self.curiosity = curiosity
        self.known: dict[str, Known] = defaultdict(Known)
        self._whole: dict[str, Features] = {}

    def divided(self, sketches: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """Sketches that were tried little or came near the best, some others now and then; and the rest."""
        best = min((known.best for known in self.known.values()), default=np.inf)
        parts: tuple[list[Any], list[Any]] = ([], [])
        for sketch in sketches:
            known = self.known[sketch.name]
            near = known.trials < TRIED or known.best <= BEHIND * best
            parts[0 if near or self.rng.random() < SECOND_LOOK else 1].append(sketch)
        return parts

    def candidates(self, sketches: list[Any], looks: int, tried: Container[Key] = ()) -> list[Scored]:
        """All there is of small sketches, of others what chains have visited, but for what has no chance.

        So many of the best untried are looked at: the best of thousands of guesses is often wrong.
        """
        found = self._visited(sketches)
        for _ in range(LOOKS if self.model.ready else 0):
            best = (pick for pick in ranked(_with_a_chance(found)) if pick.key not in tried)
            if not self.look_at(islice(best, looks)):
                break
            found = self._scored([(part.sketch, part.rows) for part in found])
        return _with_a_chance(found)

    def look_at(self, picks: Iterable[Pick]) -> bool:
        """Get to know some rows; whether others may look different now."""
        rows: dict[str, list[Row]] = defaultdict(list)
        sketches = {}
        for sketch, row, _ in picks:
            sketches[sketch.name] = sketch
            rows[sketch.name].append(row)
        new = [
            name for name, sketch in sketches.items() if self.extractor.watch(sketch, np.stack(rows[name]))
        ]
        for name in new:
            self._whole.pop(name, None)
        return bool(new)

    def _visited(self, sketches: list[Any]) -> list[Scored]:
        """All rows of small sketches, of others those at which chains were."""
        if not sketches:
            return []
        shares = zip(sketches, self._weights(sketches), strict=True)
        starts = [(sketch, self._starts(sketch, share)) for sketch, share in shares]
        for sketch, rows in starts:
            if not self.known[sketch.name].trials:
                self.extractor.watch(sketch, rows, STRUCTURES)
        visited = self._scored(starts)
        chains = [part for part in visited if not self.is_small(part.sketch)]
        for step in range(STEPS if self.model.ready else 0):
            heat = HOTTEST * max(0.0, 1 - 1.5 * step / STEPS)
            chains = self._step(self._moved(_promising(chains)), heat)
            visited += chains
        return visited

    def _weights(self, sketches: list[Any]) -> NDArray[np.float64]:
        """How much of the population each sketch gets: more if it has shown good ones or was tried little."""
        known = [self.known[sketch.name] for sketch in sketches]
        best = np.array([sketch.best for sketch in known])
        shown = (best.min() / best) ** 4 if np.isfinite(best.min()) else np.zeros(len(best))
        weights = shown + [1 / (1 + sketch.trials) for sketch in known]
        return np.asarray(weights / weights.sum())

    def _starts(self, sketch: SketchLike, share: float) -> Rows:
        """Where chains of a sketch begin, or all of a small one; what it prefers comes first."""
        domain, known = sketch.domain, self.known[sketch.name]
        if self.is_small(sketch):
            return np.concatenate([sketch.preferred_row, domain.every()])
        drawn, spread, best = (max(2, round(self.chains * part * share)) for part in STARTS)
        rows = [sketch.preferred_row, *(guess[None] for guess in known.guesses)]
        rows += [domain.draw(drawn, self.rng), domain.spread(spread, self.rng)]
        if known.parents:
            # The minimum of two favours the better half without forgetting the other.
            chosen = self.rng.integers(len(known.parents), size=(2, best)).min(axis=0)
            rows.append(np.stack([known.parents[k][1] for k in chosen]))
        return np.concatenate(rows)

    def is_small(self, sketch: SketchLike) -> bool:
        """Whether all its rows are visited at once."""
        return sketch.domain.support <= ENUMERATED * self.chains

    def _step(self, chains: list[Scored], heat: float) -> list[Scored]:
        """Every chain one step on."""
        offers = self._scored([(chain.sketch, self._changed(chain)) for chain in chains])
        return [self._accepted(*pair, heat) for pair in zip(chains, offers, strict=True)]

    def _changed(self, chain: Scored) -> Rows:
        """Each chain of a sketch crossed with another one, or mutated."""
        domain, rows, count = chain.sketch.domain, chain.rows, len(chain.rows)
        crossed = domain.cross(rows, rows[self.rng.permutation(count)], self.rng)
        is_crossed = (self.rng.random(count) < CROSSED)[:, None]
        return np.where(is_crossed, crossed, domain.mutate(rows, self.rng))

    def _accepted(self, chain: Scored, offered: Scored, heat: float) -> Scored:
        """As Metropolis and Hastings have it."""
        count = len(chain.rows)
        scale = max(heat * float(chain.scores.std()), 1e-9) if count else 1.0
        accepted = self.rng.random(count) < np.exp(np.minimum(offered.scores - chain.scores, 0.0) / scale)
        return chain.replaced(offered, accepted)

    def _moved(self, chains: list[Scored]) -> list[Scored]:
        """Some of the worst chains of every sketch begin anew in the sketch that looks best.

        Each look costs, and the next step changes them anyway: nobody looks at where they begin.
        """
        if len(chains) < 2:
            return chains
        best = max(chains, key=lambda chain: float(chain.scores.max(initial=-np.inf)))
        result, moving = [], 0
        for chain in (chain for chain in chains if chain is not best):
            leaving = round(MOVED * len(chain.rows))
            result.append(chain[np.argsort(-chain.scores)[: len(chain.rows) - leaving]])
            moving += leaving
        begun = best.sketch.domain.draw(moving, self.rng)
        lowest, unknown = np.full(len(begun), best.scores.min(initial=0.0)), np.full(len(begun), np.nan)
        return [best + Scored(best.sketch, begun, lowest, unknown), *result]

    def _scored(self, parts: list[tuple[SketchLike, Rows]]) -> list[Scored]:
        """Rows of several sketches, of which the model is asked at once: each question costs."""
        lines = [self._features(sketch, rows) if len(rows) else None for sketch, rows in parts]
        known = [features for features in lines if features is not None]
        scores = np.zeros(sum(len(features) for features in known))
        if self.model.ready and len(scores):
            found = self.model.predict(np.concatenate(known))
            scores = found.score + self.curiosity * found.spread
        ends = np.cumsum([len(rows) for _, rows in parts])
        cycles = [np.zeros(0) if features is None else rough_cycles(features) for features in lines]
        return [
            Scored(sketch, rows, scores[end - len(rows) : end], guesses)
            for (sketch, rows), end, guesses in zip(parts, ends, cycles, strict=True)
        ]

    def _features(self, sketch: SketchLike, rows: Rows) -> Features:
        """Those of a whole small sketch are only computed once."""
        if not self.is_small(sketch):
            return self.extractor.features(sketch, rows)
        if sketch.name not in self._whole:
            self._whole[sketch.name] = self.extractor.features(sketch, rows)
        return self._whole[sketch.name]


def _promising(chains: list[Scored]) -> list[Scored]:
    """The half of the sketches whose chains look best, and at least a few: each step costs by the sketch."""
    ordered = sorted(chains, key=lambda chain: -float(chain.scores.max(initial=-np.inf)))
    return ordered[: max(FEW_SKETCHES, -(-len(chains) // 2))]


def _with_a_chance(parts: list[Scored]) -> list[Scored]:
    """Without rows whose guess is far beyond the least one."""
    guesses = np.concatenate([part.cycles for part in parts]) if parts else np.zeros(0)
    most = np.nanmin(guesses) + HOPELESS if np.isfinite(guesses).any() else np.inf
    return [part[~(part.cycles > most)] for part in parts]


def flat(parts: Sequence[Scored]) -> list[Pick]:
    """All rows, one by one."""
    return [
        Pick(part.sketch, row, float(score))
        for part in parts
        for row, score in zip(part.rows, part.scores, strict=True)
    ]


def ranked(parts: Sequence[Scored]) -> list[Pick]:
    """All rows, the best first."""
    return sorted(flat(parts), key=lambda pick: -pick.score)
