"""The search: of a population that a cost model has scored, the most promising candidates are measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import numpy as np

from tpo.cost.contract import Extractor
from tpo.cost.online import OnlineModel
from tpo.cost.simulator import Simulator
from tpo.measure.contract import Measurement
from tpo.search.contract import Searchable, SketchLike, Strategy
from tpo.search.population import CHAINS, Key, Pick, Population, Row, flat, ranked
from tpo.space import Space
from tpo.space.space import draw_seed

EXPLORED = 0.1  # share of picks that the model has no say in
MAX_SHARE = 0.6  # of one proposal that a single sketch may take while others have candidates
TVM = "tvm/"  # what names of TVM's own sketches begin with
APART = 2  # decisions in which two picks of a sketch differ, where there are such: neighbours teach little
LOOKED_AT = 2  # of the best of a population, for each that is asked for
FIRST = 32  # how many are looked at where one is chosen without any trial
MORE = 2  # populations that are made in search of the last candidates of a space, where the first has none
ATTEMPTS = 8  # rows that are applied for every candidate asked for, before there seem to be no more


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
        self._tried: set[Key] = set()
        self._proposed: set[str] = set()

    def propose(self, count: int, known: Container[str]) -> list[Any]:
        """The most promising new candidates of a population."""
        if count <= 0:
            return []
        default = self.space.default()
        is_ours = self.space.sketch(default.sketch) is not None or not self.space.sketches
        found = {default.key: default} if is_ours and self._is_new(default, known) else {}
        promising, rest = self.population.divided(self.space.sketches)
        first = chain(self._picks(count, promising), self._picks(count, rest))
        large = [sketch for sketch in self.space.sketches if not self.population.is_small(sketch)]
        last = (self._picks(count, large) for _ in range(MORE) if not found)
        picks = islice(chain(first, chain.from_iterable(last)), ATTEMPTS * count)
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
        best = ranked(sober.candidates(ours or list(self.space.sketches), FIRST))[:ATTEMPTS]
        made = (self.space.at(pick.sketch, pick.row) for pick in best)
        return next((candidate for candidate in made if candidate is not None), self.space.default())

    def observe(self, results: Sequence[tuple[Any, Measurement]]) -> None:
        """Remember what is good and what was tried, and teach the model."""
        measured: dict[str, list[tuple[float, Row]]] = defaultdict(list)
        for candidate, measurement in results:
            self.population.known[candidate.sketch].trials += 1
            place = self.space.row(candidate)
            if place is not None:  # else a default that no sketch has, or a record of rules that have changed
                seconds = np.inf if measurement.seconds is None else measurement.seconds
                measured[candidate.sketch].append((seconds, place[1]))
                self._tried.add(Pick(*place).key)
        features, times = [], []
        for name, found in measured.items():
            rows = np.stack([row for _, row in found])
            sketch = self.space.sketch(name)
            self.population.look_at([Pick(sketch, row) for row in rows])
            features.append(self.extractor.features(sketch, rows))
            times += [seconds for seconds, _ in found]
            self.population.known[name].add(found)
        if features:
            self.model.learn(self.space.key, np.concatenate(features), np.array(times))

    def _is_new(self, candidate: Any, known: Container[str]) -> bool:
        return candidate.key not in known and candidate.key not in self._proposed

    def _picks(self, count: int, sketches: list[SketchLike]) -> Iterator[Pick]:
        """Rows to measure that were not tried, the best first, some by chance, not too many of a sketch."""
        population = self.population.candidates(sketches, LOOKED_AT * count, self._tried)
        rows, ready = flat(population), self.model.ready
        chance = [rows[k] for k in self.rng.permutation(len(rows))]
        # Without a model, what each sketch prefers is its first row; after that, all are alike.
        best, first = (ranked(population),) * 2 if ready else (chance, rows)
        # Models know the order within a sketch better than that of sketches: each is tried once.
        untried: dict[str, Pick] = {}
        for pick in first:
            if not self.population.known[pick.sketch.name].trials:
                untried.setdefault(pick.sketch.name, pick)
        begun = list(untried.values())[: count // 2 if ready else None]
        # Rows with the same features are often the same program.
        seen = {(pick.sketch.name, pick.score) for pick in rows if ready and pick.key in self._tried}
        most, taken = max(1, round(MAX_SHARE * count)), defaultdict[str, list[Row]](list)

        def new(picks: Iterable[Pick], limit: int, apart: int, twice: bool) -> Iterator[Pick]:
            for pick in picks:
                others, look = taken[pick.sketch.name], (pick.sketch.name, pick.score)
                is_new = pick.key not in self._tried and (twice or look not in seen)
                if is_new and len(others) < limit and _differs(pick.row, others, apart):
                    others.append(pick.row)
                    self._tried.add(pick.key)
                    if ready:
                        seen.add(look)
                    yield pick

        for rule in ((most, APART, False), (len(rows), 1, False), (len(rows), 1, True)):
            yield from new(begun, *rule)
            promising, lucky = new(best, *rule), new(chance, *rule)
            # By picks, not by rows: most of the best rows are known already, few of those by chance.
            while picked := next(lucky if self.rng.random() < EXPLORED else promising, None):
                yield picked
            yield from promising

    def _apply(self, chosen: Sequence[Pick]) -> list[Any]:
        """The programs of some rows, in their order; TVM works without the interpreter's lock."""
        seeds = [draw_seed(self.rng) for _ in chosen]
        with ThreadPoolExecutor(self.threads) as pool:
            made = pool.map(lambda pick, seed: self.space.at(pick.sketch, pick.row, seed), chosen, seeds)
            return [candidate for candidate in made if candidate is not None]


def _differs(row: Row, others: Sequence[Row], decisions: int) -> bool:
    """Whether a row differs from each of the others in so many decisions, or in all there are."""
    return not others or int((np.stack(others) != row).sum(axis=1).min()) >= min(decisions, len(row))
