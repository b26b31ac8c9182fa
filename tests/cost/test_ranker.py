"""The ranker orders candidates as their measurements do, whatever their workload."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from tpo.cost.ranker import MAX_ROWS, MIN_ROWS, Ranker


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32)


def speed(features: np.ndarray) -> np.ndarray:
    """A made-up rule: the second feature helps, the fifth hurts, both bend."""
    return np.exp(features[:, 1] - np.abs(features[:, 4]))


def test_it_says_when_it_knows_nothing():
    ranker = Ranker()
    assert not ranker.ready
    with pytest.raises(RuntimeError, match="ready"):
        ranker.predict(rows(1))
    ranker.learn("a", rows(MIN_ROWS - 1), [1.0] * (MIN_ROWS - 1))
    assert not ranker.ready
    ranker.learn("a", rows(1), [1.0])
    assert ranker.ready


def test_unseen_candidates_come_out_in_order():
    ranker, known, unseen = Ranker(), rows(300), rows(100, seed=1)
    ranker.fit(known, speed(known), ["a"] * 300)
    assert spearmanr(ranker.predict(unseen), speed(unseen))[0] > 0.6


def test_workloads_of_different_sizes_count_alike():
    """A thousand times slower workload teaches as much: scores are relative to its own best."""
    ranker, quick, slow, unseen = Ranker(), rows(20), rows(300, seed=1), rows(100, seed=2)
    scores = np.concatenate([1000 * speed(quick), speed(slow)])
    ranker.fit(np.concatenate([quick, slow]), scores, ["quick"] * 20 + ["slow"] * 300)
    assert spearmanr(ranker.predict(unseen), speed(unseen))[0] > 0.55


def test_failures_are_the_worst():
    ranker, known = Ranker(), rows(200)
    failing = known[:, 7] > 0
    ranker.fit(known, np.where(failing, 0.0, 1.0), ["a"] * 200)
    predicted = ranker.predict(known)
    assert predicted[failing].max() < predicted[~failing].min()


def test_a_workload_where_everything_failed_does_no_harm():
    ranker = Ranker()
    ranker.learn("a", rows(MIN_ROWS), [0.0] * MIN_ROWS)
    assert np.isfinite(ranker.predict(rows(3))).all()


def test_learning_in_pieces_and_in_two_processes_is_the_same():
    known = rows(64)
    predictions = []
    for _ in range(2):
        ranker = Ranker()
        for start in range(0, 64, 16):
            ranker.learn("a", known[start : start + 16], list(speed(known[start : start + 16])))
        predictions.append(ranker.predict(known))
    np.testing.assert_array_equal(*predictions)


def test_only_the_newest_measurements_are_fitted(monkeypatch):
    ranker, seen = Ranker(), []
    monkeypatch.setattr(ranker, "fit", lambda features, scores, groups: seen.append(len(features)))
    ranker.learn("a", rows(MAX_ROWS), [1.0] * MAX_ROWS)
    ranker.learn("a", rows(1), [1.0])  # too little news
    ranker.learn("a", rows(500), [1.0] * 500)
    assert seen == [MAX_ROWS, MAX_ROWS]
