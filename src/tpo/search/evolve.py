"""The search: populations of decisions, scored without being applied, changed and kept by annealing.

Chains of candidates start from what the rules' distributions give, from decisions spread evenly, and from
the best that was measured. Each step changes some decisions of a chain, crosses it with another one or moves
it to another sketch, and is accepted as Metropolis and Hastings have it: always if the model scores it
higher, else by luck that gets less likely as chains cool down. Of all that was scored, a few are measured.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpo.cost.contract import Extractor
from tpo.cost.online import OnlineModel
from tpo.cost.simulator import Simulator
from tpo.measure.contract import Measurement
from tpo.search.contract import Searchable, SketchLike, Strategy
from tpo.space import Space
from tpo.space.decisions import Rows
from tpo.space.space import draw_seed

CHAINS = 256  # fewer where features are costly
STEPS = 4  # of annealing; the last ones accept nothing that scores lower
HOTTEST = 1.0  # temperature of the first step, in standard deviations of the scores
ENUMERATED = 4  # times as many candidates of a sketch as there are chains are simply all scored
PARENTS = 32  # the best measured ones, which chains start from
STARTS = (0.4, 0.3, 0.3)  # shares of chains that start drawn, spread evenly, and at parents
CROSSED, MOVED = 0.2, 0.05  # shares of steps that cross two chains, that move to another sketch
CURIOSITY = 0.3  # how much of its spread is added to a score: what nobody knows may be good
EXPLORED = 0.1  # share of picks that the model has no say in
MAX_SHARE = 0.6  # of one proposal that a single sketch may take while others have candidates
ATTEMPTS = 32  # rows that are applied for every candidate asked for, before there seem to be no more

Row = NDArray[np.int64]
Pick = tuple[SketchLike, Row]


@dataclass
class Scored:
    """Rows of one sketch, and how good they look."""

    sketch: SketchLike
    rows: Rows
    scores: NDArray[np.float64]

    def __getitem__(self, chosen: Any) -> Scored:
        return Scored(self.sketch, self.rows[chosen], self.scores[chosen])

    def __add__(self, other: Scored) -> Scored:
        rows = np.concatenate([self.rows, other.rows])
        return Scored(self.sketch, rows, np.concatenate([self.scores, other.scores]))


class Evolve(Strategy):
    """Proposes the default first, then what each sketch prefers, then what looks best in the population."""

    def __init__(
        self,
        space: Searchable,
        model: OnlineModel,
        rng: np.random.Generator,
        threads: int | None = None,
        extractor: Extractor | None = None,
        chains: int = CHAINS,
    ) -> None:
        if extractor is None or threads is None:
            assert isinstance(space, Space), "nothing else can be simulated, or knows its hardware"
            extractor = extractor or Simulator.of(space)
            threads = threads or space.target.hardware.cores
        self.space, self.model, self.rng = space, model, rng
        self.extractor: Extractor = extractor
        self.threads: int = threads
        self.chains = chains
        self._parents: dict[str, list[tuple[float, Row]]] = defaultdict(list)
        self._trials: Counter[str] = Counter()
        self._tried: set[tuple[str, bytes]] = set()
        self._proposed: set[str] = set()

    def propose(self, count: int, known: Container[str]) -> list[Any]:
        """The most promising new candidates of a population."""
        if count <= 0:
            return []
        default = self.space.default()
        is_ours = self.space.sketch(default.sketch) is not None or not self.space.sketches
        found = {default.key: default} if is_ours and self._is_new(default, known) else {}
        picks = islice(self._picks(count), ATTEMPTS * count)
        while len(found) < count and (chosen := list(islice(picks, count - len(found)))):
            for made in self._apply(chosen):
                if self._is_new(made, known):
                    found.setdefault(made.key, made)
        self._proposed.update(found)
        return list(found.values())

    def observe(self, results: Sequence[tuple[Any, Measurement]]) -> None:
        """Remember the best as parents, how often each sketch was tried, and teach the model."""
        measured: dict[str, list[tuple[float, Row]]] = defaultdict(list)
        for candidate, measurement in results:
            self._trials[candidate.sketch] += 1
            place = self.space.row(candidate)
            if place is not None:  # else a default that no sketch has, or a record of rules that have changed
                seconds = np.inf if measurement.seconds is None else measurement.seconds
                measured[candidate.sketch].append((seconds, place[1]))
                self._tried.add((candidate.sketch, place[1].tobytes()))
        features, times = [], []
        for name, found in measured.items():
            features.append(
                self.extractor.features(self.space.sketch(name), np.stack([row for _, row in found]))
            )
            times += [seconds for seconds, _ in found]
            good = [pair for pair in (*self._parents[name], *found) if np.isfinite(pair[0])]
            self._parents[name] = sorted(good, key=lambda pair: pair[0])[:PARENTS]
        if features:
            self.model.learn(self.space.key, np.concatenate(features), np.array(times))

    def _is_new(self, candidate: Any, known: Container[str]) -> bool:
        return candidate.key not in known and candidate.key not in self._proposed

    # The population -------------------------------------------------------------------------------

    def _population(self) -> list[Scored]:
        """Everything worth a look: all there is of small sketches, of others what chains have visited."""
        if not self.space.sketches:
            return []
        shares = zip(self.space.sketches, self._weights(), strict=True)
        visited = [self._scored(sketch, self._starts(sketch, share)) for sketch, share in shares]
        chains = [part for part in visited if part.sketch.domain.support > ENUMERATED * self.chains]
        for step in range(STEPS if self.model.ready else 0):
            heat = HOTTEST * max(0.0, 1 - 1.5 * step / STEPS)
            chains = [self._step(chain, heat) for chain in self._moved(chains)]
            visited += chains
        return visited

    def _weights(self) -> NDArray[np.float64]:
        """How much of the population each sketch gets: more if it has shown good ones or was tried little."""
        best = np.array(
            [min((t for t, _ in self._parents[s.name]), default=np.inf) for s in self.space.sketches]
        )
        shown = (best.min() / best) ** 4 if np.isfinite(best.min()) else np.zeros(len(best))
        weights = shown + [1 / (1 + self._trials[sketch.name]) for sketch in self.space.sketches]
        return np.asarray(weights / weights.sum())

    def _starts(self, sketch: SketchLike, share: float) -> Rows:
        """Where chains of a sketch begin, or all of a small one; what it prefers comes first."""
        domain = sketch.domain
        if domain.support <= ENUMERATED * self.chains:
            return np.concatenate([sketch.preferred_row, domain.every()])
        drawn, spread, best = (max(2, round(self.chains * part * share)) for part in STARTS)
        rows = [sketch.preferred_row, domain.draw(drawn, self.rng), domain.spread(spread, self.rng)]
        parents = [row for _, row in self._parents[sketch.name]]
        if parents:
            # The minimum of two favours the better half without forgetting the other.
            chosen = self.rng.integers(len(parents), size=(2, best)).min(axis=0)
            rows.append(np.stack([parents[k] for k in chosen]))
        return np.concatenate(rows)

    def _step(self, chain: Scored, heat: float) -> Scored:
        """Every chain of a sketch one step on."""
        domain, rows, count = chain.sketch.domain, chain.rows, len(chain.rows)
        crossed = domain.cross(rows, rows[self.rng.permutation(count)], self.rng)
        is_crossed = (self.rng.random(count) < CROSSED)[:, None]
        offered = self._scored(chain.sketch, np.where(is_crossed, crossed, domain.mutate(rows, self.rng)))
        scale = max(heat * float(chain.scores.std()), 1e-9) if count else 1.0
        accepted = self.rng.random(count) < np.exp(np.minimum(offered.scores - chain.scores, 0.0) / scale)
        return Scored(
            chain.sketch,
            np.where(accepted[:, None], offered.rows, rows),
            np.where(accepted, offered.scores, chain.scores),
        )

    def _moved(self, chains: list[Scored]) -> list[Scored]:
        """Some of the worst chains of every sketch begin anew in the sketch that looks best."""
        if len(chains) < 2:
            return chains
        best = max(chains, key=lambda chain: float(chain.scores.max(initial=-np.inf)))
        result, moving = [], 0
        for chain in (chain for chain in chains if chain is not best):
            leaving = round(MOVED * len(chain.rows))
            result.append(chain[np.argsort(-chain.scores)[: len(chain.rows) - leaving]])
            moving += leaving
        return [best + self._scored(best.sketch, best.sketch.domain.draw(moving, self.rng)), *result]

    def _scored(self, sketch: SketchLike, rows: Rows) -> Scored:
        if not self.model.ready or not len(rows):
            return Scored(sketch, rows, np.zeros(len(rows)))
        found = self.model.predict(self.extractor.features(sketch, rows))
        return Scored(sketch, rows, found.score + CURIOSITY * found.spread)

    # Picking --------------------------------------------------------------------------------------

    def _picks(self, count: int) -> Iterator[Pick]:
        """Rows to measure that were not tried, the best first, some by chance, not too many of a sketch."""
        population = self._population()
        flat = [(part.sketch, row) for part in population for row in part.rows]
        if not flat:
            return
        chance = self.rng.permutation(len(flat))
        if self.model.ready:
            best = np.argsort(-np.concatenate([part.scores for part in population]), kind="stable")
            order = [*np.where(self.rng.random(len(flat)) < EXPLORED, chance, best), *best]
        else:  # what each sketch prefers is its first row; after that, all are alike
            firsts = np.cumsum([0, *(len(part.rows) for part in population)])[:-1]
            order = [*firsts[[len(part.rows) > 0 for part in population]], *chance]
        most, taken = max(1, round(MAX_SHARE * count)), Counter[str]()
        for limit in (most, len(flat)):
            for sketch, row in (flat[k] for k in order):
                key = (sketch.name, row.tobytes())
                if key not in self._tried and taken[sketch.name] < limit:
                    taken[sketch.name] += 1
                    self._tried.add(key)
                    yield sketch, row

    def _apply(self, chosen: Sequence[Pick]) -> list[Any]:
        """The programs of some rows, in their order; TVM works without the interpreter's lock."""
        seeds = [draw_seed(self.rng) for _ in chosen]
        with ThreadPoolExecutor(self.threads) as pool:
            made = pool.map(lambda pick, seed: self.space.at(pick[0], pick[1], seed), chosen, seeds)
            return [candidate for candidate in made if candidate is not None]
