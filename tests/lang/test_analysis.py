"""The questions rules ask, answered for every kind of workload."""

import pytest

from tpo.lang import analysis
from tpo.testing import corpus
from tpo.workload import schedule_of

KINDS = {
    "is_matmul": {
        "matmul",
        "matmul of primes",
        "matmul of 53 rows",
        "batch matmul",
        "batch matmul of rows",
        "batch matmul of primes",
        "int8 dense",
    },
    "is_conv": {
        "conv 3x3",
        "conv 1x1",
        "conv strided",
        "conv of a signal",
        "conv grouped",
        "conv grouped of 34",
    },
    "is_depthwise": {
        "depthwise conv",
        "depthwise conv strided",
        "depthwise conv dilated",
        "int8 depthwise conv",
    },
    "is_transpose": {"matrix transpose", "transpose", "transpose of primes"},
}


@pytest.mark.parametrize("question", KINDS)
def test_kinds_of_blocks(question):
    found = set()
    for name in corpus.NAMES:
        sch = schedule_of(corpus.workload(name).module)
        if any(getattr(analysis, question)(sch, block) for block in analysis.blocks(sch)):
            found.add(name)
    assert found == KINDS[question]


def test_elementwise_blocks_read_what_they_write():
    sch = schedule_of(corpus.workload("elementwise").module)
    assert all(analysis.is_elementwise(sch, block) for block in analysis.blocks(sch))
    sch = schedule_of(corpus.workload("transpose").module)
    assert not any(analysis.is_elementwise(sch, block) for block in analysis.blocks(sch))


def test_the_footprint_of_a_tile():
    sch = schedule_of(corpus.workload("matmul").module)
    block = sch.get_sblock("matmul")
    assert analysis.footprint(sch, block, {}) == {"left": 4, "right": 4, "matmul": 4}
    rows, columns, depth = 4, 16, 8
    touched = analysis.footprint(sch, block, {0: rows, 1: columns, 2: depth})
    assert touched == {"left": 4 * rows * depth, "right": 4 * depth * columns, "matmul": 4 * rows * columns}


def test_the_footprint_of_a_window():
    sch = schedule_of(corpus.workload("max pool").module)
    block = next(block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block))
    touched = analysis.footprint(
        sch, block, {1: 2, 2: 4, 4: 3, 5: 3}
    )  # 2x4 outputs, windows of 3x3, stride 2
    assert max(touched.values()) == 4 * 5 * 9
