"""Gradient-boosted trees that predict speed, as MetaSchedule's own model does: a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tpo.cost.contract import CostModel, Dataset, Features, Prediction, first_line
from tpo.errors import CostModelFileError

ROUNDS = 50


class RegressionModel(CostModel):
    """Predicts the speed of a candidate relative to the best of its group."""

    def __init__(self, seed: int = 0) -> None:
        self._parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": 5,
            "max_bin": 32,
            "eta": 0.1,
            "min_child_weight": 0.5,
            "subsample": 0.9,
            "colsample_bytree": 0.3,
            # Of few measurements, threads would mostly wait for each other, and spin.
            "nthread": 1,
            "seed": seed,
        }
        self._model: Any = None

    @property
    def ready(self) -> bool:
        """Whether it was fitted."""
        return self._model is not None

    def fit(self, data: Dataset) -> None:
        """Learn how fast candidates are, failures being infinitely slow."""
        import xgboost

        matrix = xgboost.DMatrix(data.features, label=data.speeds, nthread=1)
        self._model = xgboost.train(self._parameters, matrix, num_boost_round=ROUNDS)

    def predict(self, features: Features) -> Prediction:
        """Speeds; it does not know how sure they are."""
        if self._model is None:
            raise RuntimeError("the model has not learnt anything yet: ask `ready` first")
        return Prediction(np.asarray(self._model.inplace_predict(features), float), np.zeros(len(features)))

    def save(self, path: Path) -> None:
        """XGBoost's own JSON."""
        path.write_bytes(bytes(self._model.save_raw("json")))

    @classmethod
    def load(cls, path: Path) -> RegressionModel:
        """What `save` wrote."""
        import xgboost

        model = cls()
        try:
            json.loads(path.read_bytes())
            model._model = xgboost.Booster(model._parameters, model_file=bytearray(path.read_bytes()))
        except (OSError, ValueError, xgboost.core.XGBoostError) as error:
            raise CostModelFileError(path=path, why=first_line(error)) from error
        return model
