"""The search: of a population that a cost model has scored, the most promising candidates are measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import numpy as np

from tpo.cost.contract import Extractor
from tpo.cost.online import OnlineModel
from tpo.cost.simulator import Simulator
from tpo.measure.contract import Measurement
from tpo.search.contract import Searchable, SketchLike, Strategy
from tpo.search.population import CHAINS, Population, Row
from tpo.space import Space
from tpo.space.space import draw_seed

EXPLORED = 0.1  # share of picks that the model has no say in
MAX_SHARE = 0.6  # of one proposal that a single sketch may take while others have candidates
TVM = "tvm/"  # what names of TVM's own sketches begin with
APART = 2  # decisions in which two picks of a sketch differ, where there are such: neighbours teach little
ATTEMPTS = 32  # rows that are applied for every candidate asked for, before there seem to be no more

Pick = tuple[SketchLike, Row]


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
        guesses: Sequence[tuple[str, Row]] = (),
    ) -> None:
        """`guesses` are rows that may be good, by the names of their sketches."""
        if extractor is None or threads is None:
            assert isinstance(space, Space), "nothing else can be simulated, or knows its hardware"
            extractor = extractor or Simulator.of(space)
            threads = threads or space.target.hardware.cores
        self.space, self.model, self.rng = space, model, rng
        self.extractor: Extractor = extractor
        self.threads: int = threads
        self.population = Population(model, extractor, rng, chains)
        for sketch, row in guesses:
            self.population.known[sketch].guesses.append(row)
        self._tried: set[tuple[str, bytes]] = set()
        self._proposed: set[str] = set()

    def propose(self, count: int, known: Container[str]) -> list[Any]:
        """The most promising new candidates of a population."""
        if count <= 0:
            return []
        default = self.space.default()
        is_ours = self.space.sketch(default.sketch) is not None or not self.space.sketches
        found = {default.key: default} if is_ours and self._is_new(default, known) else {}
        promising, rest = self.population.divided(self.space.sketches)
        picks = islice(chain(self._picks(count, promising), self._picks(count, rest)), ATTEMPTS * count)
        while len(found) < count and (chosen := list(islice(picks, count - len(found)))):
            for made in self._apply(chosen):
                if self._is_new(made, known):
                    found.setdefault(made.key, made)
        self._proposed.update(found)
        return list(found.values())

    def first_choice(self) -> Any:
        """What to use without any trial: what looks best of the rules' sketches; the default without a model.

        Sketches of TVM's have good candidates among many that are far slower: unmeasured, they are a risk.
        """
        if not self.model.ready:
            return self.space.default()
        sober = Population(self.model, self.extractor, self.rng, self.population.chains, curiosity=0.0)
        sober.known = self.population.known
        ours = [sketch for sketch in self.space.sketches if not sketch.name.startswith(TVM)]
        population = sober.candidates(ours or list(self.space.sketches))
        scores = np.concatenate([part.scores for part in population]) if population else np.zeros(0)
        flat = [(part.sketch, row) for part in population for row in part.rows]
        best = [flat[k] for k in np.argsort(-scores, kind="stable")[:ATTEMPTS]]
        made = (self.space.at(sketch, row) for sketch, row in self._looked_at_again(best))
        return next((candidate for candidate in made if candidate is not None), self.space.default())

    def _looked_at_again(self, picks: Sequence[Pick]) -> list[Pick]:
        """Some picks, the best first by exact features: the best of thousands is often one misjudged."""
        lines = [self.extractor.exact(sketch, row[None]) for sketch, row in picks]
        if not lines:
            return []
        order = np.argsort(-self.model.predict(np.concatenate(lines)).score, kind="stable")
        return [picks[k] for k in order]

    def observe(self, results: Sequence[tuple[Any, Measurement]]) -> None:
        """Remember what is good and what was tried, and teach the model."""
        measured: dict[str, list[tuple[float, Row]]] = defaultdict(list)
        for candidate, measurement in results:
            self.population.known[candidate.sketch].trials += 1
            place = self.space.row(candidate)
            if place is not None:  # else a default that no sketch has, or a record of rules that have changed
                seconds = np.inf if measurement.seconds is None else measurement.seconds
                measured[candidate.sketch].append((seconds, place[1]))
                self._tried.add((candidate.sketch, place[1].tobytes()))
        features, times = [], []
        for name, found in measured.items():
            rows = np.stack([row for _, row in found])
            features.append(self.extractor.exact(self.space.sketch(name), rows))
            times += [seconds for seconds, _ in found]
            self.population.known[name].add(found)
        if features:
            self.model.learn(self.space.key, np.concatenate(features), np.array(times))

    def _is_new(self, candidate: Any, known: Container[str]) -> bool:
        return candidate.key not in known and candidate.key not in self._proposed

    def _picks(self, count: int, sketches: list[SketchLike]) -> Iterator[Pick]:
        """Rows to measure that were not tried, the best first, some by chance, not too many of a sketch."""
        population = self.population.candidates(sketches)
        flat = [(part.sketch, row) for part in population for row in part.rows]
        if not flat:
            return
        chance = self.rng.permutation(len(flat))
        if self.model.ready:
            best = np.argsort(-np.concatenate([part.scores for part in population]), kind="stable")
            order = [*np.where(self.rng.random(len(flat)) < EXPLORED, chance, best), *best]
        else:  # what each sketch prefers is its first row; after that, all are alike
            best, order = np.arange(len(flat)), [*chance]
        # Models know the order within a sketch better than that of sketches: each is tried once.
        untried: dict[str, int] = {}
        for k in best:
            if not self.population.known[flat[k][0].name].trials:
                untried.setdefault(flat[k][0].name, k)
        order = [*list(untried.values())[: count // 2 if self.model.ready else None], *order]
        most, taken = max(1, round(MAX_SHARE * count)), defaultdict[str, list[Row]](list)
        for limit, apart in ((most, APART), (len(flat), 1)):
            for sketch, row in (flat[k] for k in order):
                key, others = (sketch.name, row.tobytes()), taken[sketch.name]
                if key not in self._tried and len(others) < limit and _differs(row, others, apart):
                    others.append(row)
                    self._tried.add(key)
                    yield sketch, row

    def _apply(self, chosen: Sequence[Pick]) -> list[Any]:
        """The programs of some rows, in their order; TVM works without the interpreter's lock."""
        seeds = [draw_seed(self.rng) for _ in chosen]
        with ThreadPoolExecutor(self.threads) as pool:
            made = pool.map(lambda pick, seed: self.space.at(pick[0], pick[1], seed), chosen, seeds)
            return [candidate for candidate in made if candidate is not None]


def _differs(row: Row, others: Sequence[Row], decisions: int) -> bool:
    """Whether a row differs from each of the others in so many decisions, or in all there are."""
    return not others or int((np.stack(others) != row).sum(axis=1).min()) >= min(decisions, len(row))
