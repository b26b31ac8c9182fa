"""The model that comes with tpo: it has seen many workloads before the first trial of a run."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from tpo.cost.features import NAMES
from tpo.cost.ranking import RankingModel

PATH = Path(__file__).parent / "pretrained.zip"
_log = logging.getLogger(__name__)


@cache
def pretrained_model() -> RankingModel | None:
    """The shipped model; None if it was trained for other features than this version has."""
    if not PATH.exists():
        return None
    model = RankingModel.load(PATH)
    if model.names != NAMES:
        _log.warning(
            "the shipped cost model is for other features; train it with scripts/train_cost_model.py"
        )
        return None
    return model
