"""Strategies keep their contract, find what is good, and end on spaces that are small."""

import dataclasses
import functools

import numpy as np
import pytest

from support.small_workloads import workload
from tpo.cost.contract import Prediction
from tpo.cost.features import NAMES, rough_cycles
from tpo.cost.online import OnlineModel
from tpo.cost.ranking import RankingModel
from tpo.cost.regression import RegressionModel
from tpo.cost.simulator import Simulator
from tpo.cost.stores import StoreFeatures
from tpo.measure.contract import Failure, Measurement
from tpo.search.evolve import APART, Evolve
from tpo.search.population import HOPELESS, Population
from tpo.search.random import Random
from tpo.space import build_space
from tpo.space.candidate import plain
from tpo.targets import resolve
from tpo.testing.strategies import check_strategy

NATIVE = resolve("native", threads=2)


@functools.cache
def space(name: str):
    return build_space(workload(name), NATIVE)


def evolve(name: str, seed: int = 0, **rest) -> Evolve:
    return Evolve(space(name), OnlineModel(RankingModel()), np.random.default_rng(seed), **rest)


def made_up(candidate) -> Measurement:
    """Seconds that grow with the distance of the decisions from the middle, and with the sketch's name."""
    decisions = np.hstack([np.ravel(plain(d)) for d in candidate.trace.decisions.values()] or [[0]])
    return Measurement(1e-4 * (1 + np.abs(decisions - 2).mean()) * (3 if "tvm" in candidate.sketch else 1))


def search(strategy, rounds: int, batch: int = 8) -> list[float]:
    known: set[str] = set()
    seconds = []
    for _ in range(rounds):
        results = [(c, made_up(c)) for c in strategy.propose(batch, known)]
        strategy.observe(results)
        known.update(c.key for c, _ in results)
        seconds.extend(m.seconds for _, m in results)
    return seconds


@pytest.mark.parametrize("name", ["max pool", "conv to 40 classes"])
def test_evolve_keeps_the_contract(name):
    check_strategy(lambda rng: Evolve(space(name), OnlineModel(RankingModel()), rng))


@pytest.mark.parametrize("name", ["max pool", "softmax"])
def test_random_keeps_the_contract(name):
    check_strategy(lambda rng: Random(space(name), rng))


def test_the_contract_suite_notices_a_strategy_that_repeats_itself():
    class Stubborn(Random):
        def propose(self, count, known):
            return super().propose(min(count, 1), frozenset())

    with pytest.raises(AssertionError, match="known candidate"):
        check_strategy(lambda rng: Stubborn(space("transpose"), rng))


def test_the_first_candidate_is_the_default():
    strategy = evolve("conv3x3")
    first, *_ = strategy.propose(4, set())
    assert first is space("conv3x3").default()
    assert first.key not in {c.key for c in strategy.propose(4, {first.key})}


def test_nothing_is_proposed_twice_even_if_nobody_says_that_it_is_known():
    strategy = evolve("conv3x3")
    keys = [candidate.key for _ in range(3) for candidate in strategy.propose(8, set())]
    assert len(set(keys)) == len(keys) == 24


def test_the_first_proposals_visit_every_sketch_ours_first():
    strategy = evolve("conv to 40 classes")
    sketches = [sketch.name for sketch in space("conv to 40 classes").sketches]
    proposed = strategy.propose(len(sketches) + 1, set())
    # The default is what one of them prefers, and after all were visited draws are random.
    names = [candidate.sketch for candidate in proposed][: len(sketches)]
    assert set(names) == set(sketches)
    assert names == sorted(names, key=lambda name: name.startswith("tvm"))


def test_search_finds_better_candidates_than_chance():
    """Medians over seeds of the last quarter of each search: random does not improve."""
    name = "conv to 40 classes"
    chance = [np.median(search(Random(space(name), np.random.default_rng(k)), 3)) for k in range(2)]
    evolved = [np.median(search(evolve(name, k), 7)[-16:]) for k in range(2)]
    assert max(evolved) < min(chance)


def test_picks_of_a_sketch_differ_in_several_decisions_while_there_are_such():
    strategy = evolve("conv3x3")
    strategy.observe([(c, made_up(c)) for c in strategy.propose(16, set())])
    rows = {}
    for candidate in strategy.propose(16, set()):
        sketch, row = space("conv3x3").row(candidate)
        rows.setdefault(sketch.name, []).append(row)
    for several in rows.values():
        apart = [(one != other).sum() for k, one in enumerate(several) for other in several[:k]]
        assert min(apart, default=APART) >= min(APART, len(several[0]))


def test_sketches_far_behind_are_looked_at_now_and_then():
    strategy = evolve("conv to 40 classes")
    sketches = space("conv to 40 classes").sketches
    behind, *others = [sketch.name for sketch in sketches]
    strategy.population.known[behind].trials = strategy.population.known[others[0]].trials = 9
    strategy.population.known[behind].parents = [(1.0, np.zeros(1))]
    strategy.population.known[others[0]].parents = [(0.1, np.zeros(1))]
    looks = [strategy.population.divided(sketches) for _ in range(200)]
    assert all(len(promising) + len(rest) == len(sketches) for promising, rest in looks)
    left_out = [[sketch.name for sketch in rest] for _, rest in looks]
    assert set(map(tuple, left_out)) == {(), (behind,)}
    assert 100 < sum(bool(names) for names in left_out) < 190


def test_threads_do_not_change_the_search():
    assert search(evolve("max pool", threads=1), 4) == search(evolve("max pool", threads=4), 4)


@pytest.mark.parametrize(
    "make", [lambda: evolve("transpose"), lambda: Random(space("transpose"), np.random.default_rng(1))]
)
def test_a_tiny_space_is_exhausted(make):
    """The search of a space with a handful of programs ends, and has then seen all of them."""
    strategy, known = make(), set()
    for _ in range(20):
        proposed = strategy.propose(16, known)
        known.update(candidate.key for candidate in proposed)
        strategy.observe([(candidate, made_up(candidate)) for candidate in proposed])
        if not proposed:
            break
    everything = {space("transpose").default().key}
    for sketch in space("transpose").sketches:
        everything.update(space("transpose").sample(sketch, seed).key for seed in range(1, 40))
    assert not proposed
    assert known >= everything - {space("transpose").default().key}


def test_stored_records_teach_as_measurements_do():
    """A resumed search observes replayed candidates; it continues from the best of them."""
    name = "conv to 40 classes"
    strategy = evolve(name)
    drawn = [space(name).sample(sketch, 9) for sketch in space(name).sketches]
    replayed = [space(name).replay(c.trace_json, c.sketch, c.program) for c in drawn if c is not None]
    failure = Measurement.failed(Failure.CRASH, "segmentation fault")
    strategy.observe([(replayed[0], failure), *((c, made_up(c)) for c in replayed[1:])])
    proposed = strategy.propose(8, {c.key for c in replayed})
    assert len(proposed) == 8


def test_a_sketch_that_never_wins_gets_fewer_draws():
    strategy = evolve("conv to 40 classes")
    good, bad = space("conv to 40 classes").sketches[0], space("conv to 40 classes").sketches[-1]
    for seed in range(1, 13):
        for sketch, seconds in ((good, 1e-4), (bad, 5e-4)):
            candidate = space("conv to 40 classes").sample(sketch, seed)
            strategy.observe([(candidate, Measurement(seconds))])
    sketches = list(strategy.space.sketches)
    found = strategy.population._weights(sketches)
    weights = dict(zip((s.name for s in sketches), found, strict=True))
    assert weights[bad.name] < weights[good.name] / 5
    assert weights[bad.name] > 0


def test_a_default_that_another_process_is_measuring_does_not_end_the_search():
    strategy = evolve("conv3x3")
    default = space("conv3x3").default()
    assert len(strategy.propose(1, {default.key})) == 1


def test_a_space_without_sketches_has_only_its_default():
    """Even when the model has learnt from other tasks."""
    whole = space("conv3x3")
    strategy = evolve("conv3x3")
    strategy.observe([(c, made_up(c)) for c in strategy.propose(16, set())])
    assert strategy.model.ready
    empty = Evolve(dataclasses.replace(whole, sketches=[]), strategy.model, np.random.default_rng(0))
    assert [candidate.key for candidate in empty.propose(4, set())] == [whole.default().key]
    assert empty.propose(4, set()) == []


def test_features_of_applied_candidates_work_as_well():
    """MetaSchedule's way, with few chains, since every candidate is made in order to be judged."""
    whole = space("max pool")
    model = OnlineModel(RegressionModel())
    strategy = Evolve(whole, model, np.random.default_rng(0), 2, StoreFeatures(whole), chains=4)
    seconds = search(strategy, 3)
    assert len(seconds) >= 16 and model.ready


def test_without_a_model_the_first_choice_is_the_default():
    assert evolve("conv3x3").first_choice() is space("conv3x3").default()


def test_the_first_choice_is_what_the_model_scores_highest():
    """A model that likes one tile of one small sketch, and is not ready to be curious."""
    whole = space("conv to 40 classes")
    sketch = min((s for s in whole.sketches if not s.name.startswith("tvm")), key=lambda s: s.domain.support)
    extractor = Simulator.of(whole)
    liked = extractor.features(sketch, sketch.domain.every()[-1:])

    class Likes(RankingModel):
        ready = True

        def predict(self, features):
            return Prediction(-np.abs(features - liked).sum(axis=1).astype(float), np.zeros(len(features)))

    strategy = Evolve(whole, OnlineModel(Likes()), np.random.default_rng(0))
    chosen = strategy.first_choice()
    found, row = whole.row(chosen)
    np.testing.assert_array_equal(extractor.features(found, row[None]), liked)


class Counted:
    """An extractor that guesses more cycles the further a row is from zero."""

    def __init__(self, per_step: float) -> None:
        self.per_step = per_step

    def features(self, sketch, rows):
        lines = np.zeros((len(rows), len(NAMES)), np.float32)
        lines[:, NAMES.index("total.cycles")] = 10 + self.per_step * rows.sum(axis=1)
        return lines

    def watch(self, sketch, rows, most=None):
        return False


@pytest.mark.parametrize(("per_step", "is_hopeless"), [(HOPELESS / 1.5, True), (0.0, False)])
def test_what_would_take_far_too_long_is_no_candidate(per_step, is_hopeless):
    whole = space("conv to 40 classes")
    model, rng = OnlineModel(RankingModel()), np.random.default_rng(0)
    population = Population(model, Counted(per_step), rng, chains=64)
    rows = [row for part in population.candidates(list(whole.sketches), 8) for row in part.rows]
    assert rows and (max(row.sum() for row in rows) <= 1) == is_hopeless


def test_features_of_another_kind_have_no_guess():
    assert np.isnan(rough_cycles(np.ones((3, 5), np.float32))).all()
    assert np.isnan(rough_cycles(np.zeros((3, len(NAMES)), np.float32))).all()


def test_a_model_does_not_keep_a_sketch_from_being_tried():
    name = "conv to 40 classes"
    taught = evolve(name)
    search(taught, 3)
    assert taught.model.ready
    strategy = Evolve(space(name), taught.model, np.random.default_rng(0))
    known: set[str] = set()
    names: set[str] = set()
    for _ in range(3):
        proposed = strategy.propose(10, known)
        strategy.observe([(candidate, made_up(candidate)) for candidate in proposed])
        known.update(candidate.key for candidate in proposed)
        names |= {candidate.sketch for candidate in proposed}
    assert names >= {sketch.name for sketch in space(name).sketches}


def test_what_was_tried_does_not_leave_more_to_chance():
    """Most of the best rows are known after a while: the next best are still better than any."""
    whole = space("conv to 40 classes")
    extractor = Simulator.of(whole)

    class LikesFewLoops(RankingModel):
        ready = True

        def fit(self, data):
            pass

        def predict(self, features):
            score = -features[:, NAMES.index("total.cycles")].astype(float)
            return Prediction(score, np.zeros(len(features)))

    strategy = Evolve(whole, OnlineModel(LikesFewLoops()), np.random.default_rng(0), 2, extractor)
    known: set[str] = set()
    for _ in range(3):
        proposed = strategy.propose(16, known)
        known.update(candidate.key for candidate in proposed)
        strategy.observe([(candidate, made_up(candidate)) for candidate in proposed])
    everything = np.concatenate([part.cycles for part in strategy.population.candidates(whole.sketches, 8)])
    rows = [place for place in map(whole.row, proposed) if place is not None]
    lines = np.concatenate([extractor.features(sketch, row[None]) for sketch, row in rows])
    assert np.mean(rough_cycles(lines) <= np.median(everything)) >= 0.75
