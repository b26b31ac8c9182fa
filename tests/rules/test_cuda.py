"""The rules for CUDA: what they make is right in the emulator, and keeps the device's limits."""

from __future__ import annotations

import re

import pytest

from tpo.lang.library import shipped_rule
from tpo.measure.cuda import program_of
from tpo.resources import folder
from tpo.schedule import default_schedule
from tpo.space import build_space
from tpo.targets import resolve
from tpo.testing import corpus
from tpo.testing.rules import RuleContract

TARGET = resolve("cuda")


class TestBlockTiles(RuleContract):
    rule = shipped_rule("block_tiles", "cuda")
    applies_to = ("matmul", "batch matmul of primes", "conv 3x3", "conv grouped", "matmul of halves")


class TestTensorCore(RuleContract):
    rule = shipped_rule("tensor_core", "cuda")
    applies_to = (
        *("matmul of halves", "matmul of halves in halves", "matmul of halves of primes"),
        *("matmul of bytes", "conv of halves"),
    )


class TestRowThreads(RuleContract):
    rule = shipped_rule("row_threads", "cuda")
    applies_to = ("softmax", "softmax of 197", "layer norm")


class TestPointThreads(RuleContract):
    rule = shipped_rule("point_threads", "cuda")
    applies_to = ("elementwise", "transpose", "max pool", "depthwise conv", "sum of all")


@pytest.mark.parametrize("name", corpus.GPU_NAMES)
def test_every_function_has_a_default_that_builds(name):
    found = default_schedule(corpus.workload(name).module, TARGET.device)
    assert found is not None
    made = program_of(found.sch.mod, TARGET.tvm)
    assert all(launch.threads <= TARGET.gpu.max_threads_per_block for launch in made.launches)
    assert all(launch.dynamic_shared <= TARGET.gpu.shared_bytes for launch in made.launches)


@pytest.mark.parametrize("name", ["matmul", "matmul of halves", "conv 3x3"])
def test_samples_keep_the_limits_of_the_device(name):
    small = resolve("cuda", arch="sm_60")  # 48 KiB of shared memory
    space = build_space(corpus.workload(name), small)
    ours = [sketch for sketch in space.sketches if not sketch.name.startswith("tvm/")]
    assert ours, space.problems
    for sketch in ours:
        for seed in range(1, 6):
            candidate = space.sample(sketch, seed)
            assert candidate is not None
            for launch in program_of(candidate.module, small.tvm).launches:
                assert launch.threads <= 1024 and launch.dynamic_shared <= 48 * 1024


def test_the_rule_for_tensor_cores_is_short():
    text = (folder("schedule_rules") / "cuda" / "tensor_core.py").read_text()
    assert len(text.splitlines()) <= 90


def test_copies_overlap_where_the_device_can():
    space = build_space(corpus.workload("matmul of halves in halves"), TARGET)
    steps = {found[1] for s in space.sketches if (found := re.search(r"tensor_core/steps=(\d)", s.name))}
    assert steps == {"1", "2", "3"}
    sketch = space.sketch("tensor_core/steps=3")
    assert "cp.async" in program_of(space.sample(sketch, 1).module, TARGET.tvm).source
