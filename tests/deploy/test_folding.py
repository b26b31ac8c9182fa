"""Calls on constants are made at compile time, by functions that are compiled once."""

import numpy as np
import tvm
from tvm import relax, te

from support.converter_runs import run_module
from tpo.deploy import folding


def module_with_two_calls():
    """X + f(a) + f(b), where f turns a matrix around and says its sums, and a and b are constants."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 2), "float32"))
    matrix = te.placeholder((2, 3), name="matrix")
    axis = te.reduce_axis((0, 2), name="k")
    turned = te.compute((3, 2), lambda i, j: matrix[j, i], name="turned")
    sums = te.compute((3, 1), lambda i, _: te.sum(matrix[axis, i], axis=axis), name="sums")
    func = te.create_prim_func([matrix, turned, sums])
    values = [np.arange(6, dtype="float32").reshape(2, 3) * scale for scale in (1.0, -5.0)]
    with builder.function("main", [x]):
        callee = builder.add_func(func.without_attr("global_symbol"), "turn")
        result = x
        for value in values:
            types = [relax.TensorType((3, 2), "float32"), relax.TensorType((3, 1), "float32")]
            both = builder.emit(relax.call_tir(callee, relax.Tuple([relax.const(value)]), types))
            for k in range(2):
                result = builder.emit(relax.op.add(result, builder.emit(relax.TupleGetItem(both, k))))
        builder.emit_func_output(result)
    return builder.get(), sum(value.T + value.T.sum(axis=1, keepdims=True) for value in values)


def test_results_are_constants_and_nothing_is_compiled_twice(monkeypatch):
    module, total = module_with_two_calls()
    compiled = []
    original = tvm.compile

    def counting(mod, *rest):
        compiled.append([var.name_hint for var in mod.get_global_vars()])
        return original(mod, *rest)

    monkeypatch.setattr(folding.tvm, "compile", counting)
    folded = folding.fold_calls(module)
    assert compiled == [["turn"]]
    monkeypatch.undo()
    assert "call_tir" not in folded["main"].script()
    x = np.ones((3, 2), "float32")
    np.testing.assert_allclose(run_module(folded, {"x": x})[0], x + total, rtol=1e-6)


def test_a_module_without_such_calls_is_left_alone():
    module, _ = module_with_two_calls()
    folded = folding.fold_calls(module)
    assert folding.fold_calls(folded) is folded
