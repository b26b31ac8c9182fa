"""Ranks candidates by what was measured so far, of this workload and of all others in the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpo.cost.features import Features

MIN_ROWS = 16  # below, a model would only repeat what it was told
MAX_ROWS = 2000  # the newest count, so that a refit stays well below a second
REFIT_SHARE = 0.03  # of new rows, before the model is fitted again
ROUNDS = 50


class Ranker:
    """Gradient-boosted trees over the features of candidates; a higher prediction is a faster candidate."""

    def __init__(self, threads: int = 1, seed: int = 0) -> None:
        self._parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": 5,
            "max_bin": 32,
            "eta": 0.1,
            "min_child_weight": 0.5,
            "subsample": 0.9,
            "colsample_bytree": 0.3,
            "nthread": threads,
            "seed": seed,
        }
        self._model: Any = None
        self._features: list[Features] = []
        self._speeds: list[float] = []
        self._groups: list[str] = []
        self._fitted = 0  # rows known at the last fit

    @property
    def ready(self) -> bool:
        """Whether enough is known to predict at all."""
        return self._model is not None

    def learn(self, group: str, features: Features, speeds: Sequence[float]) -> None:
        """Remember measurements of one workload, as runs a second, 0 for failures; fit if it is worth it."""
        self._features.extend(features)
        self._speeds.extend(speeds)
        self._groups.extend([group] * len(speeds))
        known = len(self._speeds)
        if known >= MIN_ROWS and known - self._fitted >= REFIT_SHARE * min(known, MAX_ROWS):
            self._fitted = known
            newest = slice(-MAX_ROWS, None)
            rows = np.stack(self._features[newest])
            self.fit(rows, np.array(self._speeds[newest]), self._groups[newest])

    def fit(self, features: Features, scores: NDArray[np.float64], groups: Sequence[str]) -> None:
        """Learn that higher scores are better; they are made relative to the best of their group."""
        import xgboost

        names, group_of = np.unique(np.asarray(groups), return_inverse=True)
        best = np.zeros(len(names))
        np.maximum.at(best, group_of, scores)
        relative = scores / np.where(best > 0, best, 1)[group_of]
        data = xgboost.DMatrix(features, label=relative, nthread=int(self._parameters["nthread"]))  # type: ignore[call-overload]
        self._model = xgboost.train(self._parameters, data, num_boost_round=ROUNDS)

    def predict(self, features: Features) -> NDArray[np.float32]:
        """A score for every row, comparable within one workload; only when `ready`."""
        if self._model is None:
            raise RuntimeError("the ranker has not learned anything yet: ask `ready` first")
        return np.asarray(self._model.inplace_predict(features), np.float32)
