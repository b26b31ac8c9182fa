"""The strategy and the cost model that a configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpo.cost.online import OnlineModel
from tpo.cost.pretrained import pretrained_model
from tpo.cost.ranking import RankingModel
from tpo.cost.regression import RegressionModel
from tpo.cost.simulator import Simulator
from tpo.cost.stores import StoreFeatures
from tpo.search.contract import Strategy
from tpo.search.evolve import Evolve
from tpo.search.random import Random
from tpo.search.replay import Recorded, Replay
from tpo.space import Space
from tpo.tuning import transfer
from tpo.tuning.config import TuneConfig

if TYPE_CHECKING:
    from tpo.tuning.session import Session

APPLIED = 16  # chains of candidates that TVM makes in order to judge them
REPLAYED = 64  # records of every other target that are proposed again


def cost_model(config: TuneConfig, threads: int) -> OnlineModel:
    """The model of a run, which all its tasks share; it is fitted while nothing is measured."""
    match config.cost:
        case "regression":
            return OnlineModel(RegressionModel(config.seed))
        case "ranking":
            return OnlineModel(RankingModel(None, threads, config.seed))
    return OnlineModel(RankingModel(pretrained_model(), threads, config.seed))


def strategy(session: Session, space: Space) -> Strategy:
    """The search of one space."""
    config, rng, threads = session.config, session.rng, session.threads
    match config.strategy:
        case "random":
            return Random(space, rng)
        case "replay":
            return Replay(space, rng, _recorded(session, space))
        case "tvm":
            # It imports what only TVM's own tuner needs.
            from tpo.search.tvm_search import TvmEvolutionary

            return TvmEvolutionary(space, rng, threads=threads)
    if config.cost == "regression":  # every candidate has to be applied to be judged
        return Evolve(space, session.cost, rng, threads, StoreFeatures(space), chains=APPLIED)
    groups = transfer.related(session, space)
    transfer.teach(session, groups)
    guesses = transfer.guesses(session, space, groups)
    return Evolve(space, session.cost, rng, threads, Simulator.of(space), guesses=guesses)


def _recorded(session: Session, space: Space) -> list[Recorded]:
    """The best records of a workload on other targets."""
    records, key = session.records, space.workload.key
    others = [target for target in records.targets() if target != session.target_key]
    trials = [trial for target in others for trial in records.top(key, target, REPLAYED)]
    return [
        (trial.trace, trial.sketch, None if trial.program is None else records.start(trial))
        for trial in trials
    ]
