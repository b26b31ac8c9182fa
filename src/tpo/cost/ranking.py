"""Gradient-boosted trees that learn an order (LambdaRank): the model that searches use.

A ranker may stand on another one: what was learnt from many workloads before says where to begin, and trees
for the residual learn from the few measurements of the run at hand.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpo.cost.contract import CostModel, Dataset, Features, Prediction, Scores, first_line
from tpo.cost.features import NAMES
from tpo.errors import CostModelFileError

LEVELS = 24  # of relevance: finer differences are noise
SLOWEST = 8.0  # times the best time, from which on all candidates are equally bad
MEMBERS = 3  # models that are fitted with different luck: where they disagree, nobody knows
ROUNDS, RESIDUAL_ROUNDS = 80, 24
MANY = 20_000  # measurements from which on threads help: with few, they mostly wait for each other, and spin
_META = "model.json"


class RankingModel(CostModel):
    """An ensemble of LambdaRank models, on top of a `base` if there is one."""

    def __init__(
        self, base: RankingModel | None = None, threads: int = 1, seed: int = 0, names: Sequence[str] = NAMES
    ) -> None:
        self.base = base
        self.names = tuple(names)
        self.about: dict[str, Any] = {}
        self.members: list[Any] = []
        self._threads, self._seed = threads, seed

    @property
    def ready(self) -> bool:
        """Whether it, or what it stands on, has learnt anything."""
        return bool(self.members) or (self.base is not None and self.base.ready)

    def fit(self, data: Dataset) -> None:
        """Learn the order of candidates within each group."""
        import xgboost

        order = np.argsort(np.asarray(data.groups), kind="stable")
        sorted_data = data[order]
        _, groups = np.unique(np.asarray(sorted_data.groups), return_inverse=True)
        threads = self._threads if len(data) >= MANY else 1
        matrix = xgboost.DMatrix(
            sorted_data.features, label=relevance(sorted_data), qid=groups, nthread=threads
        )
        if self.base is not None and self.base.ready:
            matrix.set_base_margin(self.base.predict(sorted_data.features).score)
        rounds = ROUNDS if self.base is None else RESIDUAL_ROUNDS
        self.members = [
            xgboost.train(self._parameters(self._seed + k, threads), matrix, num_boost_round=rounds)
            for k in range(MEMBERS)
        ]
        for member in self.members:
            member.set_param({"nthread": 1})

    def predict(self, features: Features) -> Prediction:
        """The mean and the spread of the members' scores."""
        if not self.ready:
            raise RuntimeError("the model has not learnt anything yet: ask `ready` first")
        below = self.base.predict(features) if self.base is not None and self.base.ready else None
        if not self.members:
            assert below is not None
            return below
        base = np.zeros(len(features)) if below is None else below.score
        found = base + np.stack([self._margins(member, features) for member in self.members])
        spread = found.std(axis=0) if below is None else np.hypot(found.std(axis=0), below.spread)
        return Prediction(found.mean(axis=0), spread)

    def importance(self) -> dict[str, float]:
        """How much each feature contributes to telling candidates apart, as shares of one."""
        total = dict.fromkeys(self.names, 0.0)
        for member in self.members:
            for key, gain in member.get_score(importance_type="total_gain").items():
                total[self.names[int(key[1:])]] += float(gain)
        everything = sum(total.values()) or 1.0
        return {name: gain / everything for name, gain in sorted(total.items(), key=lambda item: -item[1])}

    def save(self, path: Path) -> None:
        """One file: the members, and what they are about."""
        temporary = path.with_name(path.name + ".part")
        meta = {"names": self.names, "members": len(self.members), "about": self.about}
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_META, json.dumps(meta, indent=1))
            for k, member in enumerate(self.members):
                archive.writestr(f"{k}.ubj", bytes(member.save_raw("ubj")))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> RankingModel:
        """What `save` wrote."""
        import xgboost

        try:
            with zipfile.ZipFile(path) as archive:
                meta = json.loads(archive.read(_META))
                model = cls(names=meta["names"])
                model.about = meta["about"]
                for k in range(int(meta["members"])):
                    member = xgboost.Booster({"nthread": 1})
                    member.load_model(bytearray(archive.read(f"{k}.ubj")))
                    model.members.append(member)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, xgboost.core.XGBoostError) as error:
            raise CostModelFileError(path=path, why=first_line(error)) from error
        return model

    def _margins(self, member: Any, features: Features) -> Scores:
        # On a base, a member only adds to it: its own start is taken off.
        return np.asarray(member.inplace_predict(features, predict_type="margin"), np.float64)

    def _parameters(self, seed: int, threads: int) -> dict[str, Any]:
        return {
            "objective": "rank:ndcg",
            "ndcg_exp_gain": True,  # the order among the fastest is what counts
            "lambdarank_pair_method": "mean",
            "lambdarank_num_pair_per_sample": 8,
            "tree_method": "hist",
            "max_bin": 64,
            "max_depth": 6 if self.base is None else 4,
            "eta": 0.15 if self.base is None else 0.2,
            # XGBoost normalises the second derivatives of LambdaRank: sums of them are far below one.
            "min_child_weight": 1e-4,
            "lambda": 0.02,
            "subsample": 0.8,
            "colsample_bynode": 0.5,
            "base_score": 0.0,
            "nthread": threads,
            "seed": seed,
        }


def relevance(data: Dataset) -> Scores:
    """How relevant candidates are: the best of a group most, those far slower and failures not at all.

    >>> data = Dataset(np.zeros((4, 1), np.float32), np.array([1.0, 2.0, 9.0, np.inf]), ("a",) * 4)
    >>> relevance(data).tolist()
    [24.0, 16.0, 0.0, 0.0]
    """
    speeds = np.maximum(data.speeds, 1 / SLOWEST)
    return np.asarray(np.round(LEVELS * (1 + np.log(speeds) / np.log(SLOWEST))))
