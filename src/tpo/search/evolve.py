"""Random candidates and mutations of the best, ranked by a model of what was measured so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tpo.cost.features import Features, extract
from tpo.cost.ranker import Ranker
from tpo.measure.contract import Measurement
from tpo.search.contract import Strategy
from tpo.space import Candidate, Sketch, Space
from tpo.space.space import draw_seed

SCORED_PER_PICK = 3  # candidates that compete for one measurement
ROUNDS = 3  # of drawing, before the space counts as exhausted
PARENTS = 12  # the best measured ones, which mutations start from
MUTATED = 0.7  # share of mutations, once there are parents
EPSILON = 0.1  # share of picks that the ranker has no say in
MAX_SHARE = 0.5  # of one proposal that a single sketch may take while others have candidates

Draw = Callable[[], Candidate | None]


class Evolve(Strategy):
    """Proposes the default first, then what each rule prefers, then what looks best among random draws."""

    def __init__(
        self, space: Space, ranker: Ranker, rng: np.random.Generator, threads: int | None = None
    ) -> None:
        self.space = space
        self.ranker = ranker
        self.rng = rng
        self.threads = threads or space.target.hardware.cores
        self._unvisited = list(space.sketches)
        self._parents: list[tuple[float, Candidate]] = []
        self._trials: Counter[str] = Counter()
        self._best: dict[str, float] = {}
        self._spare: list[Candidate] = []  # drawn before, and outranked
        self._rows: dict[str, Features] = {}  # of the spare ones and of those being measured

    def propose(self, count: int, known: Container[str]) -> list[Candidate]:
        """The most promising new candidates of a bounded number of draws."""
        first = self.space.default()
        earlier = [first, *self._spare]
        pool = {candidate.key: candidate for candidate in earlier if candidate.key not in known}
        wanted = count * SCORED_PER_PICK if self.ranker.ready else count
        for _ in range(ROUNDS):
            if len(pool) >= wanted:
                break
            drawn = self._run(self._draws(wanted - len(pool)))
            pool.update({c.key: c for c in drawn if c.key not in known and c.key not in pool})
        ranked = self._rank(list(pool.values()), count, first)
        self._spare = ranked[count : count + wanted // 2]
        self._rows = {c.key: self._rows[c.key] for c in ranked[: count + wanted // 2] if c.key in self._rows}
        return ranked[:count]

    def observe(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Remember the best as parents, how each sketch does, and teach the ranker."""
        if not results:
            return
        for candidate, measurement in results:
            self._trials[candidate.sketch] += 1
            if measurement.seconds is not None:
                self._parents.append((measurement.seconds, candidate))
                best = self._best.get(candidate.sketch, measurement.seconds)
                self._best[candidate.sketch] = min(best, measurement.seconds)
        self._parents = sorted(self._parents, key=lambda pair: pair[0])[:PARENTS]
        self._unvisited = [sketch for sketch in self._unvisited if not self._trials[sketch.name]]
        speeds = [0.0 if m.seconds is None else 1 / m.seconds for _, m in results]
        features = self._features([candidate for candidate, _ in results])
        self.ranker.learn(self.space.workload.key, features, speeds)

    def _draws(self, count: int) -> list[Draw]:
        """What to draw, decided here and now so that threads cannot change it."""
        # Once each: what a rule prefers may be known already, and would be drawn again and again.
        fresh, self._unvisited = self._unvisited[:count], self._unvisited[count:]
        draws: list[Draw] = [_preferred(self.space, sketch) for sketch in fresh]
        sketches = self.space.sketches
        if not sketches:
            return draws
        weights = self._weights()
        while len(draws) < count:
            if self._parents and self.rng.random() < MUTATED:
                # The minimum of two favours the better half without forgetting the other.
                rank = int(self.rng.integers(len(self._parents), size=2).min())
                draws.append(_mutation(self.space, self._parents[rank][1], draw_seed(self.rng)))
            else:
                sketch = sketches[int(self.rng.choice(len(sketches), p=weights))]
                draws.append(_sample(self.space, sketch, draw_seed(self.rng)))
        return draws

    def _run(self, draws: Sequence[Draw]) -> list[Candidate]:
        """The candidates of some draws, in their order; TVM works without the interpreter's lock."""
        with ThreadPoolExecutor(self.threads) as pool:
            found = list(pool.map(lambda draw: draw(), draws))
        return [candidate for candidate in found if candidate is not None]

    def _weights(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How likely each sketch is drawn: by the best it has shown, and the less it was tried."""
        overall = min(self._best.values(), default=0.0)
        weights = [
            (overall / self._best[sketch.name] if sketch.name in self._best else 0.0) ** 4
            + 1 / (1 + self._trials[sketch.name])
            for sketch in self.space.sketches
        ]
        return np.array(weights) / sum(weights)

    def _rank(self, pool: list[Candidate], count: int, first: Candidate | None) -> list[Candidate]:
        """The pool, best first: by the ranker, with some luck, and not too many of one sketch in front."""
        order = list(range(len(pool)))
        if self.ranker.ready and len(pool) > count > 0:
            scores = self.ranker.predict(self._features(pool))
            order.sort(key=lambda k: -float(scores[k]))
            lucky = [int(k) for k in self.rng.permutation(len(pool))[: round(EPSILON * count)]]
            order = [k for k in order if k not in lucky]
            order[count - len(lucky) : count - len(lucky)] = lucky
        order.sort(key=lambda k: pool[k] is not first)
        most = max(1, round(MAX_SHARE * count))
        taken: Counter[str] = Counter()
        front: list[Candidate] = []
        back: list[Candidate] = []
        for candidate in (pool[k] for k in order):
            taken[candidate.sketch] += 1
            (front if taken[candidate.sketch] <= most else back).append(candidate)
        return [*front, *back]

    def _features(self, candidates: Sequence[Candidate]) -> Features:
        missing = [candidate for candidate in candidates if candidate.key not in self._rows]
        rows = extract(self.space, missing)
        self._rows.update({candidate.key: row for candidate, row in zip(missing, rows, strict=True)})
        return np.stack([self._rows[candidate.key] for candidate in candidates])


def _preferred(space: Space, sketch: Sketch) -> Draw:
    return lambda: space.preferred(sketch)


def _sample(space: Space, sketch: Sketch, seed: int) -> Draw:
    return lambda: space.sample(sketch, seed)


def _mutation(space: Space, parent: Candidate, seed: int) -> Draw:
    return lambda: space.mutate(parent, np.random.default_rng(seed))
