"""The ranker learns an order, stands on another one, and survives being stored."""

import numpy as np
import pytest

from tpo.cost.contract import Dataset
from tpo.cost.ranking import RankingModel
from tpo.cost.training import Quality, leave_one_out
from tpo.errors import CostModelFileError
from tpo.space.stored import stored_decisions

NAMES = [f"f{k}" for k in range(6)]


def made_up(rows: int, groups: int = 4, seed: int = 0, column: int = 0) -> Dataset:
    """Times that grow with one feature, on another scale in every group; every tenth fails."""
    rng = np.random.default_rng(seed)
    features = rng.random((rows, 6), dtype=np.float32)
    group = rng.integers(groups, size=rows)
    seconds = np.exp(2 * features[:, column]) * 1e-3 * 10.0**group
    seconds[9::10] = np.inf
    return Dataset(features, seconds, tuple(f"workload{k}" for k in group))


def correlation(scores, features, column=0) -> float:
    return float(np.corrcoef(scores, features[:, column])[0, 1])


def test_it_learns_the_order_within_groups():
    model = RankingModel(names=NAMES)
    assert not model.ready
    model.fit(made_up(400))
    unseen = made_up(100, seed=1).features
    found = model.predict(unseen)
    assert correlation(found.score, unseen) < -0.8
    assert np.all(found.spread >= 0) and found.spread.max() > 0
    assert next(iter(model.importance())) == "f0"
    assert sum(model.importance().values()) == pytest.approx(1)


def test_what_stands_on_another_model_predicts_like_it_until_it_learns():
    base = RankingModel(names=NAMES)
    base.fit(made_up(400))
    model = RankingModel(base, names=NAMES)
    unseen = made_up(100, seed=1).features
    assert model.ready
    np.testing.assert_array_equal(model.predict(unseen).score, base.predict(unseen).score)
    # Here it is the other way around: the run at hand is right.
    few = made_up(60, groups=1, seed=2)
    times = np.where(np.isfinite(few.seconds), 1 / few.seconds, np.inf)
    reversed_times = Dataset(few.features, times, few.groups)
    model.fit(reversed_times)
    assert (
        correlation(model.predict(unseen).score, unseen)
        > correlation(base.predict(unseen).score, unseen) + 0.3
    )


def test_the_same_seed_gives_the_same_model():
    models = [RankingModel(seed=3, names=NAMES) for _ in range(2)]
    for model in models:
        model.fit(made_up(100))
    unseen = made_up(30, seed=1).features
    np.testing.assert_array_equal(*(model.predict(unseen).score for model in models))


def test_a_stored_model_predicts_the_same(tmp_path):
    model = RankingModel(names=NAMES)
    model.about = {"trials": 100}
    model.fit(made_up(100))
    model.save(tmp_path / "model.zip")
    again = RankingModel.load(tmp_path / "model.zip")
    unseen = made_up(30, seed=1).features
    np.testing.assert_array_equal(again.predict(unseen).score, model.predict(unseen).score)
    assert again.names == tuple(NAMES) and again.about == model.about


@pytest.mark.parametrize("content", [None, b"", b"rubbish"])
def test_rubbish_is_no_model(tmp_path, content):
    path = tmp_path / "model.zip"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CostModelFileError, match=r"model\.zip") as caught:
        RankingModel.load(path)
    assert caught.value.exit_code == 2


def test_leaving_workloads_out_tells_a_good_model_from_chance():
    data = made_up(400)
    ranked = Quality.mean(list(leave_one_out(data, lambda: RankingModel(names=NAMES)).values()))
    chance = Quality.mean(list(leave_one_out(data, lambda: None).values()))
    assert ranked.top1 > chance.top1 + 0.2 and ranked.top5 > 0.9
    assert ranked.correlation > 0.5 > abs(chance.correlation)
    assert 0 <= chance.top1 <= chance.top5 <= 1


def test_decisions_of_a_stored_trace_are_read_without_tvm():
    trace = '[[["GetSBlock",[],["root","main"],["b0"]],["SamplePerfectTile",["l1"],[2,64],["v2","v3"]],'
    trace += '["SampleCategorical",[],[[1,2],[0.5,0.5]],["v4"]]],[[1,[4,8]],[2,1]]]'
    assert stored_decisions(trace) == [(4, 8), 1]
