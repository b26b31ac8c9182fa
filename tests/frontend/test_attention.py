"""Attention becomes one function, whatever the exporter wrote, and only where it is one."""

import numpy as np
import pytest

from support.converter_runs import run_module
from support.onnx_runs import run_onnx
from tpo.frontend.lower import OPERATORS, find_calls
from tpo.frontend.pipeline import stages
from tpo.testing import models
from tpo.testing.models.build import Builder

TOKENS = {"input_ids": (1, 12)}


def lowered(model, shapes=None):
    return dict(stages(model, "model.onnx", shapes or {}))["mark"]


def operators_of_calls(module):
    return [list(module.get_attr(OPERATORS)[call.args[0].name_hint]) for call in find_calls(module)]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers_have_one_function_for_each_attention(name):
    calls = operators_of_calls(lowered(models.make(name), TOKENS))
    assert calls.count(["attention"]) == 2
    assert not any("softmax" in operators for operators in calls)


def test_transposes_around_bert_s_attention_are_part_of_it():
    calls = operators_of_calls(lowered(models.make("bert"), TOKENS))
    assert not any("permute_dims" in operators or "transpose" in operators for operators in calls)


def attention(rows=16, keys=20, scale="Mul", mask=False, shared=False, axis=-1, batch=(2, 3)):
    """Attention of plain operands; `shared`: the softmax is an output, too."""
    b = Builder("attention", 0)
    query, key, value = (
        b.input(name, [*batch, *sizes])
        for name, sizes in (("q", (rows, 8)), ("k", (8, keys)), ("v", (keys, 12)))
    )
    scores = b.op("MatMul", query, key)
    scores = b.op(scale, scores, b.const(0.3))
    if mask:
        scores = b.op("Add", b.input("mask", [1, 1, rows, keys]), scores)
    weights = b.op("Softmax", scores, axis=axis)
    b.output(b.op("MatMul", weights, value), "y", [*batch, rows, 12])
    if shared:
        b.output(weights, "weights", [*batch, rows, keys])
    return b.build()


@pytest.mark.parametrize("options", [{}, {"scale": "Div"}, {"mask": True}, {"batch": (4,)}])
def test_plain_operands(options):
    model = attention(**options)
    module = lowered(model)
    assert operators_of_calls(module) == [["attention"]]
    feeds = models.random_inputs(model, seed=1)
    (want,) = run_onnx(model, feeds).values()
    np.testing.assert_allclose(run_module(module, feeds)[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"shared": True}, {"axis": -2}, {"rows": 4}])
def test_what_is_no_attention_or_not_worth_it(options):
    calls = operators_of_calls(lowered(attention(**options)))
    assert ["attention"] not in calls


def test_equal_attentions_are_one_function():
    module = lowered(models.make("bert"), TOKENS)
    names = [call.args[0].name_hint for call in find_calls(module)]
    assert names.count("attention") == 2
