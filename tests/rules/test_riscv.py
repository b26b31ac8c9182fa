"""The rules for RISC-V: every structure computes the right numbers in QEMU, by groups of registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.riscv import needs_riscv
from tpo import targets
from tpo.measure import BuildInput
from tpo.measure.cross.places import Qemu
from tpo.measure.cross.runner import CrossRunner
from tpo.measure.kernels import compiled
from tpo.schedule import default_schedule
from tpo.space import build_space
from tpo.testing import corpus, riscv
from tpo.workload import schedule_of

TARGET = targets.resolve("riscv", vlen=256)
FEW = 6  # structures of a workload that are run


@needs_riscv
@pytest.mark.parametrize("name", corpus.NAMES)
def test_structures_compute_the_right_numbers(name):
    workload = corpus.workload(name)
    space = build_space(workload, TARGET)
    ours = [sketch for sketch in space.sketches if not sketch.name.startswith("tvm/")]
    assert ours, [problem.message for problem in space.problems]
    chosen = np.random.default_rng(0).permutation(len(ours))[:FEW]
    found = [space.preferred(ours[k]) or space.sample(ours[k], 1) for k in chosen]
    candidates = [space.default(), *(candidate for candidate in found if candidate is not None)]
    with CrossRunner(TARGET.tvm, Qemu(256)) as runner:
        measured = dict(runner.measure([BuildInput(workload, c.module) for c in candidates]))
    failed = {candidates[k].sketch: f"{m.failure}: {m.message}" for k, m in measured.items() if not m.ok}
    assert not failed


@needs_riscv
@pytest.mark.parametrize("operator", riscv.operators(), ids=lambda operator: operator.name)
def test_suites_are_the_same_in_numpy_and_in_tvm(operator):
    """What kernels are compared on computes the same for everybody."""
    workload = operator.workload
    with CrossRunner(TARGET.tvm, Qemu(256)) as runner:
        ((_, found),) = runner.measure([BuildInput(workload, build_space(workload, TARGET).default().module)])
        assert found.ok, found.message
        _, arrays = runner._known_of(BuildInput(workload, workload.module))
    expected = operator.reference(arrays[0], arrays[1])
    np.testing.assert_allclose(arrays[2], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vlen", [128, 256, 512, 1024])
def test_every_group_of_registers_is_a_structure(vlen):
    space = build_space(corpus.workload("matmul"), targets.resolve("riscv", vlen=vlen))
    groups = {int(found[1]) for s in space.sketches if (found := re.search(r"contraction/lmul=(\d)", s.name))}
    assert len(groups) >= 3, groups


@pytest.mark.parametrize("lmul", [1, 2, 4])
def test_code_uses_the_group_that_was_chosen(lmul):
    space = build_space(corpus.workload("matmul"), TARGET)
    sketch = next(
        s for s in space.sketches if s.name.startswith(f"rvv_contraction/lmul={lmul},columns={8 * lmul}x1")
    )
    candidate = space.preferred(sketch)
    assert candidate is not None
    assembly = compiled(candidate.module["main"], targets.for_compiling(TARGET.tvm)).inspect_source("asm")
    used = set(re.findall(r"vset\w+\s.*e32, (m\d)", assembly))
    assert f"m{lmul}" in used and "vfmacc.vf" in assembly


@pytest.mark.parametrize(
    "name", ["matmul 64x64x64 int8", "conv 14x14 64->64 3x3 int8", "matmul 64x64x64 int16"]
)
def test_small_integers_are_multiplied_by_widening_instructions(name):
    operator = next(item for item in riscv.operators() if item.name == name)
    applied = default_schedule(operator.workload.module, TARGET.hardware)
    assert applied is not None
    assembly = compiled(applied.sch.mod["main"], targets.for_compiling(TARGET.tvm)).inspect_source("asm")
    assert "vwmacc" in assembly


def test_groups_leave_fewer_registers():
    hw = TARGET.hardware
    assert [(hw.grouped(k).lanes("float32"), hw.grouped(k).vector_registers) for k in hw.lmuls] == [
        (8, 32), (16, 16), (32, 8), (64, 4),
    ]  # fmt: skip
    assert hw.grouped(8).grouped(2) == hw.grouped(2) and hw.grouped(4).vlen == hw.vlen == 256
    with pytest.raises(ValueError, match="cannot be grouped by 3"):
        hw.grouped(3)


def test_the_generic_rules_stay_available():
    space = build_space(corpus.workload("matmul"), TARGET)
    assert any(sketch.name.startswith("tvm/") for sketch in space.sketches)
    assert schedule_of(space.default().module) is not None
