"""Code for CPUs this machine may not be: read as assembly, and run by qemu where that is possible."""

import re

import numpy as np
import pytest

from support.assembly import ISAS, count, hot_loop, spills
from support.cross_kernels import build, missing_arm_tools, packed, run_on_arm, scheduled
from support.rule_cases import RULES, case
from support.workloads import matmul
from tpo.targets import resolve

TARGETS = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"]
# The compiler turns tiles of a transpose in registers of 128 bits, on every target, without arithmetic.
COMPUTING = [rule for rule in RULES if rule != "transpose"]
PRODUCTS = ["contraction", "clamped_contraction", "padded_contraction", "grouped_contraction"]


def assembly(rule, target):
    return build(scheduled(rule, case(rule).workload, target).kernel, target).inspect_source("asm")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", TARGETS)
def test_no_instruction_is_of_a_wider_set(rule, name):
    target = resolve(name)
    isa = ISAS[target.hardware.isa]
    assert [line for line in assembly(rule, target).splitlines() if re.search(isa.wider, line)] == []


@pytest.mark.parametrize("rule", COMPUTING)
@pytest.mark.parametrize("name", TARGETS)
def test_arithmetic_fills_the_vector_registers(rule, name):
    target = resolve(name)
    isa = ISAS[target.hardware.isa]
    arithmetic = [line for line in hot_loop(assembly(rule, target), isa) if re.match(isa.arithmetic, line)]
    # The rest is for the lanes of one vector, which the end of a reduction combines.
    assert count(isa.full, arithmetic) >= 0.8 * len(arithmetic) > 0


@pytest.mark.parametrize("rule", PRODUCTS)
@pytest.mark.parametrize("name", TARGETS)
def test_a_register_tile_stays_in_registers(rule, name):
    target = resolve(name)
    isa = ISAS[target.hardware.isa]
    loop = hot_loop(assembly(rule, target), isa)
    if isa.fused:
        assert count(isa.fused, loop) == count(isa.arithmetic, loop) >= 10
    assert spills(loop, isa) == []


# Sizes that make other tiles: as many rows as fit, three vectors, a single one, a single row.
@pytest.mark.parametrize("rows, columns", [(126, 48), (784, 96), (128, 8), (1, 1000), (25, 80)])
@pytest.mark.parametrize("name", TARGETS)
def test_other_tiles_stay_in_registers(name, rows, columns):
    target = resolve(name)
    isa = ISAS[target.hardware.isa]
    split = scheduled("contraction", matmul(rows, columns, depth=64), target)
    loop = hot_loop(build(split.kernel, target).inspect_source("asm"), isa)
    assert count(isa.arithmetic, loop) >= 8
    assert spills(loop, isa) == []


@pytest.mark.skipif(bool(missing_arm_tools()), reason=f"needs {' and '.join(missing_arm_tools())}")
@pytest.mark.parametrize("rule", RULES)
def test_numbers_on_arm_are_those_of_numpy(rule, tmp_path):
    target = resolve("aarch64")
    split = scheduled(rule, case(rule).workload, target)
    arguments = packed(split, case(rule).arguments)
    *_, got = run_on_arm(build(split.kernel, target), arguments, tmp_path)
    want = case(rule).want
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
