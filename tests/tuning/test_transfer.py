"""What a store knows of other workloads helps a search to begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import relax

from support.small_workloads import conv, made
from tpo import targets
from tpo.cost.online import OnlineModel
from tpo.cost.ranking import RankingModel
from tpo.measure.contract import Measurement
from tpo.records import Records, RunInfo, target_key
from tpo.search.evolve import Evolve
from tpo.space import build_space
from tpo.tuning import transfer

TARGET = targets.resolve("x86-64-v3", 2)
KEY = target_key(TARGET.tvm)


@pytest.fixture(scope="module")
def spaces():
    known, new, other = (
        made((1, 9, 9, 8), conv(8, 64)),
        made((1, 18, 18, 8), conv(8, 64)),
        made((1, 64), relax.op.exp),
    )
    return {name: build_space(w, TARGET) for name, w in (("known", known), ("new", new), ("other", other))}


@pytest.fixture
def session(spaces, tmp_path: Path):
    space = spaces["known"]
    with Records.open(tmp_path / "run.db") as records:
        run = records.begin_run(RunInfo("a model", "", "", KEY, 2, 0))
        records.add_workload(space.workload, "known", 1000)
        records.add_workload(spaces["new"].workload, "new", 4000)
        shared = {sketch.name for sketch in spaces["new"].sketches}
        sketch = next(s for s in space.sketches if "contraction" in s.name and s.name in shared)
        rows = sketch.domain.spread(24, np.random.default_rng(0))
        for seconds, row in enumerate(rows, 1):
            candidate = space.at(sketch, row)
            if candidate is not None:
                records.add(run, space.key, KEY, candidate, Measurement(1e-4 * seconds))
        cost = OnlineModel(RankingModel())
        yield SimpleNamespace(records=records, target=TARGET, target_key=KEY, cost=cost, taught=set())


def test_the_best_of_a_related_workload_are_guesses(spaces, session):
    groups = transfer.related(session, spaces["new"])
    found = transfer.guesses(session, spaces["new"], groups)
    assert 1 <= len(found) <= transfer.BEST
    for name, row in found:
        assert spaces["new"].sketch(name).domain.allowed(row[None])[0]
    strategy = Evolve(spaces["new"], session.cost, np.random.default_rng(0), guesses=found)
    visited = [
        (part.sketch.name, row.tobytes())
        for part in strategy.population.candidates(list(spaces["new"].sketches), 8)
        for row in part.rows
    ]
    assert {(name, row.tobytes()) for name, row in found} <= set(visited)


def test_the_cost_model_hears_of_it_once(spaces, session):
    assert not session.cost.ready
    groups = transfer.related(session, spaces["new"])
    transfer.teach(session, groups)
    assert session.cost.ready and session.taught == {spaces["known"].key}
    learnt = len(session.cost._parts)
    transfer.teach(session, groups)
    assert len(session.cost._parts) == learnt


def test_what_shares_no_sketch_is_no_relative(spaces, session):
    assert not transfer.related(session, spaces["other"])
    assert not transfer.related(session, spaces["known"])  # only its own trials
