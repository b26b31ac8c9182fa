"""MetaSchedule's rules in our language make the sketches that TVM's C++ rules make."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing import te_workload
from tvm.s_tir.schedule import Trace

from tpo.hardware import Gpu, Hardware
from tpo.lang.library import metaschedule_rules
from tpo.lang.sites import sampling
from tpo.space.compose import compose
from tpo.space.tvm_rules import LeanContext, register_intrinsics

OPERATORS = ["C1D", "C2D", "C3D", "DEP", "DIL", "GMM", "GRP", "T2D", "CBR", "TBG", "NRM", "SFM"]
TARGETS = {
    "cpu": tvm.target.Target({"kind": "llvm", "num-cores": 16, "mcpu": "skylake-avx512"}),
    "cuda": tvm.target.Target("nvidia/geforce-rtx-3070"),
    "older cuda": tvm.target.Target("nvidia/geforce-rtx-2080-ti"),
}
_CXX = {"cpu": "llvm", "vnni": "llvm", "cuda": "cuda"}


def workload(operator: str):
    function, sizes = te_workload.CONFIGS[operator]
    return tvm.IRModule({"main": te.create_prim_func(function(*sizes[0]))})


def theirs(module, target, kind):
    rules = [
        rule
        for rule in ms.schedule_rule.ScheduleRule.create(_CXX[kind])
        if not isinstance(rule, ms.schedule_rule.ApplyCustomRule)
    ]
    if kind == "vnni":
        reuse = ms.schedule_rule.ReuseType(req="may", levels=[1, 2], scope="global")
        around = ms.schedule_rule.MultiLevelTilingWithIntrin(
            "dot_16x4_vnni", "SSRSRS", max_innermost_factor=64, reuse_write=reuse
        )
        tiling = [type(rule).__name__ for rule in rules].index("MultiLevelTiling")
        rules.insert(tiling, around)
    generator = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=[], mutator_probs={})
    context = LeanContext(module, target, generator, threads=1)
    return [sch.trace.simplified(remove_postproc=True) for sch in context.generate_design_space()]


def ours(module, target, kind):
    hw = Gpu.from_target(target) if kind == "cuda" else Hardware.from_target(target)
    problems = []
    drafts = compose(module, metaschedule_rules(kind), hw, problems.append)
    assert not problems
    return [draft.sch.trace.simplified(remove_postproc=True) for draft in drafts]


def program(module, trace):
    sch = s_tir.Schedule(module, error_render_level="fast")
    trace.apply_to_schedule(sch, remove_postproc=True)
    return sch.mod


def forced(trace, like):
    """A trace with the decisions of another one; None if their sites are not alike."""
    sites, others = sampling(trace), sampling(like)
    if [site.kind.name for site in sites] != [other.kind.name for other in others]:
        return None
    return Trace(trace.insts, {s: like.decisions[o] for s, o in zip(sites, others, strict=True)})


def makes(module, trace, like, wanted):
    """Whether a trace gives the wanted program when it decides like another one."""
    decided = forced(trace, like)
    if decided is None:
        return False
    try:
        return tvm_ffi.structural_equal(program(module, decided), wanted)
    except Exception:  # decisions of another structure may be impossible here
        return False


def assert_same_sketches(module, target, kind):
    want, found = (f(module, target, kind) for f in (theirs, ours))
    assert len(found) == len(want)
    for trace in want:
        wanted = program(module, trace)
        matching = [k for k, mine in enumerate(found) if makes(module, mine, trace, wanted)]
        assert matching, f"no sketch of ours is\n{trace}"
        found.pop(matching[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_sketches_are_those_of_tvm(operator, target):
    assert_same_sketches(workload(operator), TARGETS[target], target.split()[-1])


def dense_int8():
    left = te.placeholder((64, 128), dtype="uint8", name="left")
    right = te.placeholder((48, 128), dtype="int8", name="right")
    k = te.reduce_axis((0, 128), name="k")
    product = te.compute(
        (64, 48),
        lambda i, j: te.sum(left[i, k].astype("int32") * right[j, k].astype("int32"), axis=k),
        name="product",
    )
    return tvm.IRModule({"main": te.create_prim_func([left, right, product])})


@pytest.mark.parametrize("module", [dense_int8(), workload("GMM")], ids=["int8", "float32"])
def test_tensorized_sketches_are_those_of_tvm(module):
    register_intrinsics("x86_64")
    target = tvm.target.Target({"kind": "llvm", "num-cores": 16, "mcpu": "cascadelake"})
    assert_same_sketches(module, target, "vnni")
    used = ["dot_16x4_vnni" in str(trace) for trace in ours(module, target, "vnni")]
    assert all(used) if "int8" in module.script() else not any(used)
