"""The baselines: TVM's own search behind our contract, and the replay of records."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from support.small_workloads import workload
from tpo.measure.contract import Failure, Measurement
from tpo.search.replay import Replay
from tpo.search.tvm_search import TvmEvolutionary
from tpo.space import build_space
from tpo.targets import resolve
from tpo.testing.strategies import check_strategy

NATIVE = resolve("native", threads=2)
SMALL = {"population": 24, "batch": 8}  # TVM evolves every candidate of a population four times


@functools.cache
def space(name: str):
    return build_space(workload(name), NATIVE)


def tvm_search(name: str, seed: int = 0) -> TvmEvolutionary:
    return TvmEvolutionary(space(name), np.random.default_rng(seed), **SMALL)


@pytest.mark.parametrize("name", ["conv to 40 classes", "softmax"])
def test_tvms_search_keeps_the_contract(name):
    check_strategy(lambda rng: TvmEvolutionary(space(name), rng, **SMALL))


def test_tvms_search_proposes_candidates_of_tvms_sketches():
    proposed = tvm_search("conv to 40 classes").propose(8, frozenset())
    assert len(proposed) == 8
    whole = space("conv to 40 classes")
    for candidate in proposed:
        assert whole.replay(candidate.trace_json, candidate.sketch).key == candidate.key
        found = whole.row(candidate)
        if found is None:  # TVM's mutator for a constant of the sketch
            assert "/parallel=" in candidate.sketch
        else:
            again = whole.at(*found)
            assert again is not None and again.key == candidate.key
    assert any(whole.sketch(candidate.sketch) is not None for candidate in proposed)


def test_tvms_search_keeps_to_the_sketches_it_is_given():
    whole = space("conv to 40 classes")
    only = [sketch for sketch in whole.sketches if sketch.name == "tvm/1"]
    strategy = TvmEvolutionary(dataclasses.replace(whole, sketches=only), np.random.default_rng(0), **SMALL)
    proposed = strategy.propose(6, frozenset())
    assert {candidate.sketch.split("/parallel")[0] for candidate in proposed} == {"tvm/1"}


def test_tvms_search_without_sketches_has_nothing_to_propose():
    empty = dataclasses.replace(space("softmax"), sketches=[])
    assert TvmEvolutionary(empty, np.random.default_rng(0), **SMALL).propose(4, frozenset()) == []


def test_tvms_search_hands_out_its_batches_in_parts_and_then_goes_on():
    strategy, known = tvm_search("conv to 40 classes"), set()
    for count in (5, 5, 5):
        proposed = strategy.propose(count, known)
        assert len(proposed) == count
        strategy.observe([(c, Measurement(1e-3)) for c in proposed])
        known.update(c.key for c in proposed)
    assert len(known) == 15


def test_tvms_search_learns_from_what_it_did_not_propose():
    """Records of TVM's sketches are taken; those of other sketches are no harm."""
    strategy, whole = tvm_search("conv to 40 classes"), space("conv to 40 classes")
    drawn = [c for sketch in whole.sketches if (c := whole.sample(sketch, 3)) is not None]
    strategy.observe([(c, Measurement(1e-3)) for c in drawn])
    strategy.observe([(drawn[-1], Measurement.failed(Failure.CRASH, "made up"))])
    assert len(strategy.propose(4, frozenset(c.key for c in drawn))) == 4


def recorded(name: str, count: int = 6):
    whole = space(name)
    drawn = (whole.sample(sketch, seed) for seed in range(1, 5) for sketch in whole.sketches)
    found = {c.key: c for c in drawn if c is not None}
    return list(found.values())[:count]


@pytest.mark.parametrize("stored", [False, True])
def test_replay_keeps_the_contract(stored):
    candidates = recorded("conv to 40 classes")
    given = [(c.trace_json, c.sketch, c.program) for c in candidates] if stored else candidates
    check_strategy(lambda rng: Replay(space("conv to 40 classes"), rng, given))


def test_replay_proposes_in_the_order_of_the_records():
    candidates = recorded("conv to 40 classes")
    stored = [(c.trace_json, c.sketch, c.program) for c in candidates]
    strategy = Replay(space("conv to 40 classes"), np.random.default_rng(0), stored)
    first = strategy.propose(2, frozenset())
    rest = strategy.propose(9, {c.key for c in first})
    assert [c.key for c in (*first, *rest)] == [c.key for c in candidates]
    assert strategy.propose(9, {c.key for c in candidates}) == []


def test_replay_leaves_out_what_cannot_be_replayed(caplog):
    candidate = recorded("conv to 40 classes", 1)[0]
    foreign = recorded("softmax", 1)[0]
    stored = [
        ("not JSON", "broken", None),
        (foreign.trace_json, "foreign", None),
        (candidate.trace_json, candidate.sketch, candidate.program),
    ]
    strategy = Replay(space("conv to 40 classes"), np.random.default_rng(0), stored)
    assert [c.key for c in strategy.propose(3, frozenset())] == [candidate.key]
    assert "broken cannot be replayed" in caplog.text
