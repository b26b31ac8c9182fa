"""Search replayed in landscapes: how good is the best after so many trials, over many seeds?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tpo.cost.contract import CostModel
from tpo.cost.features import NAMES
from tpo.cost.online import OnlineModel
from tpo.cost.pretrained import pretrained_model
from tpo.cost.ranking import RankingModel
from tpo.cost.regression import RegressionModel
from tpo.errors import UsageError
from tpo.search.contract import Strategy
from tpo.search.evolve import Evolve
from tpo.search.landscape import Landscape
from tpo.search.random import Random

BATCH = 8
CHAINS = 16  # a landscape has a few hundred candidates: as large a part of it as usual is looked at
Curve = NDArray[np.float64]

COSTS: dict[str, Callable[[int], CostModel]] = {
    "pretrained": lambda seed: RankingModel(pretrained_model(), seed=seed),
    "ranking": lambda seed: RankingModel(seed=seed),
    "regression": lambda seed: RegressionModel(seed=seed),
}
STRATEGIES = ("evolutionary", "random")


def make_strategy(name: str, cost: str, landscape: Landscape, seed: int) -> Strategy:
    """A strategy of a name, with a cost model of a name."""
    rng = np.random.default_rng(seed)
    if name == "random":
        return Random(landscape, rng)
    if name not in STRATEGIES:
        raise UsageError(why=f"there is no strategy {name!r}", advice=f"give one of {', '.join(STRATEGIES)}")
    if cost not in COSTS:
        raise UsageError(why=f"there is no cost model {cost!r}", advice=f"give one of {', '.join(COSTS)}")
    if cost == "pretrained" and landscape.about.get("features") != list(NAMES):
        raise UsageError(
            why=f"landscape {landscape.about.get('name')} has other features than the pretrained model",
            advice="record it again (scripts/record_landscapes.py), or give --cost ranking",
        )
    model = OnlineModel(COSTS[cost](seed))
    return Evolve(landscape, model, rng, threads=1, extractor=landscape, chains=CHAINS)


def search(strategy: Strategy, landscape: Landscape, trials: int, batch: int = BATCH) -> Curve:
    """Regret after every trial: how much slower the best so far is than the best there is (0: found it)."""
    known: set[str] = set()
    seconds: list[float] = []
    while len(seconds) < trials:
        proposed = strategy.propose(min(batch, trials - len(seconds)), known)
        if not proposed:
            break
        results = [(candidate, landscape.measure(candidate)) for candidate in proposed]
        strategy.observe(results)
        known.update(candidate.key for candidate in proposed)
        seconds += [np.inf if found.seconds is None else found.seconds for _, found in results]
    best = np.minimum.accumulate(np.array(seconds + [np.inf] * (trials - len(seconds))))
    return np.asarray(best / landscape.best - 1)


@dataclass(frozen=True)
class Regret:
    """Curves of several seeds: the mean regret after every trial, and where it lies with 95 % confidence."""

    mean: Curve
    low: Curve
    high: Curve

    @classmethod
    def of(cls, curves: list[Curve]) -> Regret:
        """The band of some curves; before the first success there is no number."""
        known = np.isfinite(curves)
        count = np.maximum(known.sum(axis=0), 1)
        table = np.where(known, curves, 0.0)
        mean = np.where(known.any(axis=0), table.sum(axis=0) / count, np.nan)
        squares = np.where(known, table - mean, 0.0) ** 2
        freedom = np.maximum(count - 1, 1)
        width = np.sqrt(squares.sum(axis=0) / freedom / count) * stats.t.ppf(0.975, freedom)
        return cls(mean, np.maximum(mean - width, 0), mean + width)
