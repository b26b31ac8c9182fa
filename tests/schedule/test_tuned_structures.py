"""The structures of the rules for contractions, deployed: weights packed, and padded, at compile time."""

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import GenericConst

from support.converter_runs import run_module
from support.small_workloads import WORKLOADS, relax_module
from tpo.frontend import lower
from tpo.lang import Applied, Declined, analysis, apply_rule
from tpo.lang.library import shipped_rule
from tpo.schedule import schedule_function, tiles
from tpo.targets import resolve
from tpo.workload import in_place_of

NATIVE = resolve("native", threads=2)
T = relax.transform


def function(name: str) -> tvm.IRModule:
    functions = [f for f in relax_module(name).functions.values() if isinstance(f, tirx.PrimFunc)]
    return tvm.IRModule({"main": functions[0]})


def ways(name: str, rule: str, hw=NATIVE.hardware) -> list[Applied]:
    """All ways a rule takes a workload."""
    sch = s_tir.Schedule(function(name), seed=5)
    return apply_rule(shipped_rule(rule), sch, sch.get_sblock("root"), hw)


def deployed(name: str, applied: Applied) -> tvm.IRModule:
    """A workload whose function is scheduled by a rule, with its constant weights packed."""
    module = relax_module(name).clone()
    for var in module.get_global_vars():
        if isinstance(module[var], tirx.PrimFunc):
            module.update_func(var, in_place_of(module[var], applied.sch.mod["main"]))
    with NATIVE.tvm:
        return tvm.transform.Sequential(
            [T.SplitLayoutRewritePreproc(), T.FoldConstant(), T.DeadCodeElimination()]
        )(module)


@pytest.mark.parametrize(
    "name, rule",
    [
        *((name, "contraction") for name in ("conv3x3", "conv strided", "conv to 40 classes", "dense")),
        *((name, "clamped_contraction") for name in ("conv3x3", "conv strided")),
        *((name, "padded_contraction") for name in ("conv to 40 classes", "conv to 17 columns")),
    ],
)
def test_packed_at_compile_time_it_computes_the_same(name, rule):
    shape, _ = WORKLOADS[name]
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype("float32")}
    (want,) = run_module(relax_module(name), feeds)
    # With few registers, no tile divides 9x9 or 8x8 rows well.
    hw = resolve("x86-64-v3").hardware if rule == "clamped_contraction" else NATIVE.hardware
    for applied in ways(name, rule, hw)[:2]:
        module = deployed(name, applied)
        weights = [arg for arg in lower.find_calls(module)[0].args[1].fields if isinstance(arg, GenericConst)]
        assert any(arg.ty.ndim == len(shape) + 1 for arg in weights), "the packed weights are a constant"
        (got,) = run_module(module, feeds)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=applied.label)


def test_structures_are_distinct_and_the_default_is_the_first():
    hw = resolve("x86-64-v4").hardware  # others have too few registers for tiles that divide these sizes
    for name, rule in (("conv3x3", "contraction"), ("conv to 40 classes", "padded_contraction")):
        found = ways(name, rule, hw)
        assert len({applied.label for applied in found}) == len(found) >= 2
        default, taken_by = schedule_function(function(name)["main"], hw)
        assert taken_by == rule
        widths = [vector_widths(func) for func in (default, found[0].sch.mod["main"])]
        assert widths[0] == widths[1]


def vector_widths(func) -> set[int]:
    loops = analysis.find(tirx.For, func.body)
    return {int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED}


def test_padding_is_declined_where_the_copy_of_the_input_would_not_stay_in_cache():
    tiny = resolve("x86-64-v3").hardware.__class__(**{**vars(NATIVE.hardware), "l2_bytes": 1024})
    assert ways("conv to 17 columns", "padded_contraction")
    with pytest.raises(Declined, match="would not stay in cache"):
        ways("conv to 17 columns", "padded_contraction", tiny)


def test_padding_is_declined_where_the_sizes_divide_well():
    with pytest.raises(Declined, match="divide well"):
        ways("conv3x3", "padded_contraction", resolve("x86-64-v4").hardware)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("rows, columns", [(169, 1000), (1, 7), (49, 17), (3025, 64)])
def test_padded_tiles_have_full_vectors_and_fit_the_register_file(target, rows, columns):
    hw = resolve(target).hardware
    found = tiles.padded_tiles(rows, columns, "float32", hw)
    assert found
    assert all(tile.fits(hw) and tile.lanes == hw.lanes("float32") for tile in found)
    best = found[0]
    computed = -(-rows // best.rows) * best.rows * -(-columns // best.columns) * best.columns
    wide = -(-columns // best.lanes) * best.lanes
    assert computed <= 1.5 * rows * wide, "little is computed in vain"
