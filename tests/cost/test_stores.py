"""Every candidate has one row of finite numbers, which tells it from others."""

import numpy as np

from support.small_workloads import workload
from tpo.cost.stores import LENGTH, extract
from tpo.space import Candidate, build_space
from tpo.targets import resolve

NATIVE = resolve("native", threads=2)
SPACE = build_space(workload("conv3x3"), NATIVE)
DRAWN = [candidate for k, s in enumerate(SPACE.sketches) if (candidate := SPACE.sample(s, k + 1))]


def test_one_finite_row_per_candidate():
    rows = extract(SPACE, DRAWN)
    assert rows.shape == (len(DRAWN), LENGTH)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert all(row.any() for row in rows), "every sketch can be analysed"


def test_different_programs_have_different_features():
    rows = extract(SPACE, DRAWN)
    assert len(np.unique(rows, axis=0)) == len({candidate.key for candidate in DRAWN})


def test_a_row_depends_on_nothing_but_the_candidate():
    np.testing.assert_array_equal(extract(SPACE, DRAWN)[3], extract(SPACE, DRAWN[3:4])[0])


def test_no_candidates_are_no_rows():
    assert extract(SPACE, []).shape == (0, LENGTH)


def test_a_program_tvm_cannot_analyse_costs_the_others_nothing():
    empty = Candidate("broken", None, None)
    rows = extract(SPACE, [DRAWN[0], empty, DRAWN[1]])
    np.testing.assert_array_equal(rows[[0, 2]], extract(SPACE, DRAWN[:2]))
    assert not rows[1].any()
