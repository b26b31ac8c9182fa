"""Attention as one function: the numbers, for all kinds of sizes, and that it is one visit."""

import numpy as np
import onnx
import pytest
from tvm import tirx

from support import rule_cases
from support.converter_runs import run_module
from support.onnx_runs import run_onnx
from tpo.deploy.compile import schedule_and_pack
from tpo.frontend.load import load_onnx
from tpo.lang import Declined, apply_rule
from tpo.lang.library import shipped_rule
from tpo.targets import resolve
from tpo.testing.models.build import Builder
from tpo.workload import Workload, schedule_of

NATIVE = resolve("native")
RNG = np.random.default_rng(3)


def attention(batch, rows, keys, depth, columns, mask=None, turned=False, after=False):
    """Scaled attention; `mask`: its shape. Keys may come `turned`, and the result be joined `after`."""
    b = Builder("attention", 0)
    query, value = b.input("q", [*batch, rows, depth]), b.input("v", [*batch, keys, columns])
    key = b.input("k", [*batch, keys, depth] if turned else [*batch, depth, keys])
    if turned:
        key = b.op("Transpose", key, perm=[*range(len(batch)), len(batch) + 1, len(batch)])
    scores = b.op("Div", b.op("MatMul", query, key), b.const(depth**0.5))
    if mask is not None:
        scores = b.op("Add", scores, b.input("mask", list(mask)))
    y, shape = b.op("MatMul", b.op("Softmax", scores, axis=-1), value), [*batch, rows, columns]
    if after:
        images, heads = batch
        y = b.op("Transpose", y, perm=[0, 2, 1, 3])
        y, shape = b.op("Reshape", y, b.ints(images, rows, heads * columns)), [images, rows, heads * columns]
    b.output(y, "y", shape)
    return b.build()


# Batch, rows, keys, depth, columns of the values, and what else.
SIZES = {
    "whole vectors": ((2, 3), 32, 64, 16, 32),
    "no vector is whole": ((2,), 13, 21, 5, 7),
    "one more than whole": ((3,), 33, 65, 17, 33),
    "fewer keys than a vector": ((4,), 8, 3, 8, 16),
    "many keys": ((1, 2), 40, 400, 32, 80),
    "prime rows": ((1, 2), 197, 197, 64, 64),
}
MORE = {
    "mask for all rows": (((2, 3), 32, 64, 16, 32), {"mask": (1, 1, 1, 64)}),
    "mask of whole vectors": (((2, 3), 20, 32, 16, 32), {"mask": (2, 1, 20, 32)}),
    "mask with a rest": (((2, 3), 20, 37, 16, 32), {"mask": (1, 1, 20, 37)}),
    "keys turned": (((2, 3), 32, 48, 16, 32), {"turned": True}),
    "heads joined": (((2, 3), 20, 40, 16, 32), {"after": True, "turned": True}),
}


def case(tmp_path, sizes, options):
    model = attention(*sizes, **options)
    onnx.save(model, tmp_path / "attention.onnx")
    feeds = {
        value.name: 3
        * RNG.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype("f4")
        for value in model.graph.input
    }
    return model, load_onnx(tmp_path / "attention.onnx").module, feeds


def check(model, module, feeds):
    (want,) = run_onnx(model, feeds).values()
    scheduled, rules = schedule_and_pack(module, NATIVE.hardware, NATIVE.tvm)
    assert "attention" in rules.values()
    np.testing.assert_allclose(run_module(scheduled, feeds)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SIZES)
def test_numbers_of_all_sizes(name, tmp_path):
    check(*case(tmp_path, SIZES[name], {}))


@pytest.mark.parametrize("name", MORE)
def test_numbers_with_what_is_around(name, tmp_path):
    check(*case(tmp_path, *MORE[name]))


@pytest.mark.parametrize("keys", [64, 37])
def test_masked_rows_are_as_in_onnxruntime(keys, tmp_path):
    model, module, feeds = case(tmp_path, ((1, 2), 16, keys, 8, 16), {"mask": (1, 1, 16, keys)})
    mask = feeds["mask"]
    mask[...] = np.where(np.arange(keys) > np.arange(16)[:, None], np.float32(-np.inf), 0)
    mask[0, 0, 5] = np.finfo("float32").min
    check(model, module, feeds)


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "riscv"])
def test_every_structure_for_every_target_is_one_visit(name, tmp_path):
    _, module, _ = case(tmp_path, *MORE["heads joined"])
    func = next(f for f in module.functions.values() if isinstance(f, tirx.PrimFunc))
    hw = resolve(name).hardware
    rule = shipped_rule("rvv_attention", "riscv") if name == "riscv" else shipped_rule("attention")
    sch = schedule_of(Workload.of(func).module)
    ways = apply_rule(rule, sch, sch.get_sblock("root"), hw)
    assert len(ways) >= 3 * (len(hw.lmuls) - 1)
    for way in ways:
        assert isinstance(way.sch.mod["main"].body.block.body, tirx.For)


def test_declines_what_is_no_attention():
    sch = schedule_of(rule_cases.case("row_passes").workload.module)
    with pytest.raises(Declined, match="it is not attention"):
        apply_rule(shipped_rule("attention"), sch, sch.get_sblock("root"), NATIVE.hardware)
