"""The baseline learns speeds; a run's model is fitted again between batches."""

import numpy as np
import pytest

from tpo.cost.contract import Dataset
from tpo.cost.online import MIN_ROWS, OnlineModel
from tpo.cost.regression import RegressionModel
from tpo.errors import CostModelFileError


def made_up(rows: int, groups: int = 1, seed: int = 0) -> Dataset:
    """Times that grow with the first feature, on another scale in every group; every tenth fails."""
    rng = np.random.default_rng(seed)
    features = rng.random((rows, 6), dtype=np.float32)
    group = np.arange(rows) % groups
    seconds = (1 + 4 * features[:, 0]) * 1e-3 * 10.0**group
    seconds[9::10] = np.inf
    return Dataset(features, seconds, tuple(f"workload{k}" for k in group))


def test_it_tells_fast_from_slow():
    model = RegressionModel()
    assert not model.ready
    model.fit(made_up(300, groups=2))
    found = model.predict(made_up(50, seed=1).features)
    assert model.ready and np.all(found.spread == 0)
    assert np.corrcoef(found.score, made_up(50, seed=1).features[:, 0])[0, 1] < -0.7


def test_speeds_are_relative_to_the_best_of_each_group():
    data = Dataset(
        np.zeros((5, 1), np.float32), np.array([1.0, 2.0, np.inf, 30.0, 10.0]), ("a", "a", "a", "b", "b")
    )
    np.testing.assert_allclose(data.speeds, [1, 0.5, 0, 1 / 3, 1])


def test_a_group_without_a_success_teaches_nothing_wrong():
    data = Dataset(np.zeros((2, 1), np.float32), np.array([np.inf, np.inf]), ("a", "a"))
    assert data.speeds.tolist() == [0, 0]


def test_nothing_is_predicted_before_something_was_learnt():
    with pytest.raises(RuntimeError, match="ready"):
        RegressionModel().predict(np.zeros((1, 6), np.float32))


def test_a_stored_model_predicts_the_same(tmp_path):
    model = RegressionModel()
    model.fit(made_up(100))
    model.save(tmp_path / "model.json")
    features = made_up(20, seed=2).features
    again = RegressionModel.load(tmp_path / "model.json").predict(features)
    np.testing.assert_array_equal(again.score, model.predict(features).score)


def test_rubbish_is_no_model(tmp_path):
    path = tmp_path / "model.json"
    for content in (b"", b"rubbish", b"{}"):
        path.write_bytes(content)
        with pytest.raises(CostModelFileError, match=r"model\.json"):
            RegressionModel.load(path)
    with pytest.raises(CostModelFileError):
        RegressionModel.load(tmp_path / "missing.json")


def test_a_runs_model_is_fitted_as_soon_as_there_is_enough():
    online = OnlineModel(RegressionModel())
    data = made_up(MIN_ROWS)
    online.learn("a", data.features[:-1], data.seconds[:-1])
    assert not online.ready
    online.learn("a", data.features[-1:], data.seconds[-1:])
    assert online.ready
    online.learn("a", data.features[:0], data.seconds[:0])
    assert len(online.predict(data.features).score) == MIN_ROWS
