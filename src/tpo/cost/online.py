"""A cost model that learns while a run goes on: it is told every batch, and fitted again between batches."""

from __future__ import annotations

import numpy as np

from tpo.cost.contract import CostModel, Dataset, Features, Prediction, Scores

MIN_ROWS = 8  # below, a model would only repeat what it was told
MAX_ROWS = 2000  # the newest count, so that a refit stays well below a second
REFIT_SHARE = 0.03  # of new rows, before the model is fitted again


class OnlineModel:
    """All measurements of a run, of all its workloads, and a model fitted to them."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._parts: list[Dataset] = []
        self._rows = 0
        self._fitted = 0

    @property
    def ready(self) -> bool:
        """Whether it can predict."""
        return self.model.ready

    def learn(self, group: str, features: Features, seconds: Scores) -> None:
        """Remember measurements of one workload, infinite where they failed; fit if it is worth it."""
        if not len(seconds):
            return
        self._parts.append(Dataset(features, seconds, (group,) * len(seconds)))
        self._rows += len(seconds)
        if self._rows >= MIN_ROWS and self._rows - self._fitted >= REFIT_SHARE * min(self._rows, MAX_ROWS):
            self._fitted = self._rows
            known = Dataset.join(self._parts)
            self.model.fit(known[np.arange(len(known))[-MAX_ROWS:]])

    def predict(self, features: Features) -> Prediction:
        """Judge candidates; only when `ready`."""
        return self.model.predict(features)
