"""What TVM generates for a GPU, and how the host calls it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import te

from support.small_workloads import workload
from tpo.measure.cuda import Emulator, program_of
from tpo.space import build_space
from tpo.targets import resolve
from tpo.testing import emulation
from tpo.workload import Workload, schedule_of

TARGET = resolve("cuda")


def bound(sch):
    for name in ("first", "second"):
        block = sch.get_sblock(name)
        loop, inner = sch.split(sch.get_loops(block)[0], [None, 32])
        sch.bind(loop, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    return sch.mod


def two_functions() -> Workload:
    data = te.placeholder((96,), name="data")
    first = te.compute((96,), lambda i: data[i] + 1.0, name="first")
    second = te.compute((96,), lambda i: first[95 - i] * 2.0, name="second")
    return Workload.of(te.create_prim_func([data, second], index_dtype_override="int64"))


def test_kernels_are_launched_with_the_buffers_between_them():
    made = program_of(bound(schedule_of(two_functions().module)), TARGET.tvm)
    assert made.parameters == 2 and made.sizes == (384, 384, 384)
    assert [launch.block for launch in made.launches] == [(32, 1, 1)] * 2
    assert [launch.grid for launch in made.launches] == [(3, 1, 1)] * 2
    assert made.launches[0].threads == 32
    values = np.arange(96, dtype=np.float32)
    with Emulator(made) as emulator:
        _, found = emulator.run([values, np.zeros_like(values)], [1])
    np.testing.assert_array_equal(found, (values[::-1] + 1) * 2)


def test_a_difference_is_said():
    work = two_functions()
    made = program_of(bound(schedule_of(work.module)), TARGET.tvm)
    assert emulation.difference(work, made) == ""
    wrong = replace(made, source=made.source.replace("0x1p+1f", "0x1p+2f"))
    assert "elements differ" in emulation.difference(work, wrong)


@pytest.mark.parametrize("name", ["conv3x3", "softmax"])
def test_tvms_own_candidates_compute_the_right_numbers(name):
    work = workload(name)
    space = build_space(work, TARGET)
    sketches = [sketch for sketch in space.sketches if sketch.name.startswith("tvm/")]
    assert sketches, [problem.message for problem in space.problems]
    for sketch in sketches[:2]:
        found = next((c for seed in range(1, 60) if (c := space.sample(sketch, seed)) is not None), None)
        if found is not None:
            assert emulation.difference(work, program_of(found.module, TARGET.tvm)) == ""
