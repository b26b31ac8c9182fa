"""One row of numbers per candidate, from the features TVM computes for every store of a program: a baseline.

Programs have to be made first, which takes thousands of times longer than simulating them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tpo.lang import analysis
from tpo.schedule import moves
from tpo.space import Candidate, Sketch, Space
from tpo.space.decisions import Rows

_log = logging.getLogger(__name__)
_STORES = ms.feature_extractor.PerStoreFeature()
_PER_STORE = int(_STORES.feature_vector_length)
_ARITHMETIC = slice(0, 7)  # TVM counts floating point operations in the first columns
LENGTH = 3 * _PER_STORE + 1

Features = NDArray[np.float32]


class StoreFeatures:
    """TVM's features of candidates of a space, which are made for that."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def features(self, sketch: Sketch, rows: Rows) -> Features:
        """A line for every row; zeros for what TVM refuses."""
        made = [self._space.at(sketch, row) for row in rows]
        found = iter(extract(self._space, [candidate for candidate in made if candidate is not None]))
        lines = [np.zeros(LENGTH, np.float32) if candidate is None else next(found) for candidate in made]
        return np.stack(lines) if lines else np.zeros((0, LENGTH), np.float32)

    def watch(self, sketch: Sketch, rows: Rows, most: int | None = None) -> bool:
        """There is nothing to get to know: features are always of the program itself."""
        return False


def extract(space: Space, candidates: Sequence[Candidate]) -> Features:
    """The features of some candidates of a space, one row of `LENGTH` finite numbers each."""
    if not candidates:
        return np.zeros((0, LENGTH), np.float32)
    try:
        tables = _stores(space, candidates)
    except Exception as error:  # one program TVM cannot analyse must not cost the others theirs
        if len(candidates) == 1:
            _log.debug("no features for a candidate of %s: %s", candidates[0].sketch, error)
            return np.zeros((1, LENGTH), np.float32)
        return np.concatenate([extract(space, [candidate]) for candidate in candidates])
    return np.stack([_pool(table) for table in tables])


def _stores(space: Space, candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
    """TVM's table of every candidate: a row per store."""
    measured = [ms.MeasureCandidate(_schedule(candidate), []) for candidate in candidates]
    return [table.numpy() for table in _STORES.extract_from(space.context, measured)]


def _schedule(candidate: Candidate) -> Any:
    """The candidate as TVM analyses it: packing of weights it expects to be a copy, not padding as well."""
    sch = s_tir.Schedule(candidate.module)
    for block in analysis.blocks(sch):
        packs = moves.AT_COMPILE_TIME in sch.get(block).annotations
        if packs and not analysis.is_copy(sch, block):
            sch.unannotate(block, moves.AT_COMPILE_TIME)
    return sch


def _pool(table: NDArray[np.float64]) -> Features:
    """Mean and maximum over all stores, the store with most arithmetic, and how many there are."""
    busiest = table[np.argmax(table[:, _ARITHMETIC].sum(axis=1))]
    row = np.concatenate([table.mean(axis=0), table.max(axis=0), busiest, [len(table)]])
    return np.asarray(np.nan_to_num(row, nan=0.0, posinf=1e9, neginf=-1e9), np.float32)
