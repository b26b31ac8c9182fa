"""The rules for reductions keep the contract of rules, on every workload of the corpus."""

import numpy as np
import pytest
import tvm
from scipy import special
from tvm import te, topi

from tpo import vector_math
from tpo.lang.library import shipped_rule
from tpo.schedule import schedule_function
from tpo.targets import resolve
from tpo.testing.rules import RuleContract, check_rule


class TestRowPasses(RuleContract):
    rule = shipped_rule("row_passes")
    applies_to = (
        "softmax",
        "softmax of 197",
        "log softmax",
        "layer norm",
        "sum of rows",
        "maximum of prime rows",
        "layer norm of prime rows",
    )


class TestReduction(RuleContract):
    rule = shipped_rule("reduction")
    applies_to = ("sum of all",)


class TestPooling(RuleContract):
    rule = shipped_rule("pooling")
    applies_to = ("max pool", "average pool of odd channels", "global mean", "sum of a middle axis")


@pytest.mark.parametrize(
    "name", ["depthwise conv", "int8 depthwise conv", "max pool", "global mean", "matmul"]
)
def test_reduction_leaves_others_to_their_rules(name):
    assert [o.sketches for o in check_rule(shipped_rule("reduction"), names=[name])] == [0]


@pytest.mark.parametrize("length", [3, 37, 128, 197])
def test_softmax_of_rows_with_infinities_and_nan(length):
    """Masked elements are 0; what rows are filled up with never counts, not even in rows of nothing else."""
    vector_math.register()
    target = resolve("native")
    x = te.placeholder((5, length), name="x")
    func, rule = schedule_function(te.create_prim_func([x, topi.nn.softmax(x)]), target.hardware)
    assert rule == "row_passes"
    values = np.random.default_rng(2).standard_normal((5, length)).astype("float32")
    values[1, 1:] = -np.inf
    values[2, :] = -np.inf
    values[3, length // 2] = np.nan
    values[4, :] = -3e38
    given, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros_like(values))
    tvm.compile(func, target.tvm)(given, result)
    with np.errstate(invalid="ignore"):
        want = special.softmax(values.astype("float64"), axis=1)
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-7)
