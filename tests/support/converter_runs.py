"""Run one ONNX node through the importer and compare it with ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from support.onnx_runs import run_onnx
from tpo.frontend.importer import import_model

_generator = np.random.default_rng(7)


def reseed() -> None:
    """Start the random numbers of `normal` and `integers` anew."""
    global _generator
    _generator = np.random.default_rng(7)


class Const:
    """An array that becomes an initializer instead of a graph input."""

    def __init__(self, value: Any, dtype: str | None = None) -> None:
        self.array = np.asarray(value, dtype=dtype)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return _generator.standard_normal(shape).astype(dtype)


def constant(*shape: int, dtype: str = "float32") -> Const:
    return Const(normal(*shape, dtype=dtype))


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    return _generator.integers(low, high, shape).astype(dtype)


def one_node(
    operator: str,
    inputs: list[Any],
    *,
    opset: int = 17,
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node and what to feed it: arrays are graph inputs, `Const` initializers, None absent."""
    names, feeds, initializers = [], {}, []
    for index, value in enumerate(inputs):
        name = "" if value is None else f"i{index}"
        names.append(name)
        if isinstance(value, Const):
            initializers.append(numpy_helper.from_array(value.array, name))
        elif value is not None:
            feeds[name] = np.asarray(value)
    results = [f"o{index}" for index in range(outputs)]
    node = helper.make_node(operator, names, results, name="the_node", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "test",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        initializers,
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def run_module(module: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of an imported module, compiled without any schedule."""
    # Unoptimised code is ready four times sooner, and these functions run once.
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(relax.transform.LegalizeOps()(module), target), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(value) for value in feeds.values()])
    return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]


def check_model(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], rtol: float = 1e-4, atol: float = 1e-5
) -> Any:
    """Compare with ONNX Runtime, dtype, shape and values; return the imported module."""
    expected = list(run_onnx(model, feeds).values())
    module = import_model(model, "test.onnx")
    actual = run_module(module, feeds)
    assert len(actual) == len(expected)
    for have, want in zip(actual, expected, strict=True):
        assert have.dtype == want.dtype
        assert have.shape == want.shape
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(have, want)
        else:
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, equal_nan=True)
    return module


def check_node(
    operator: str, inputs: list[Any], *, rtol: float = 1e-4, atol: float = 1e-5, **rest: Any
) -> Any:
    """`check_model` of one node."""
    return check_model(*one_node(operator, inputs, **rest), rtol=rtol, atol=atol)


def operators_of(module: Any) -> list[str]:
    """Names of the Relax operators of `main`, in order."""
    names: list[str] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.Call) and isinstance(expression.op, tvm.ir.Op):
            names.append(expression.op.name.removeprefix("relax."))

    relax.analysis.post_order_visit(module["main"], visit)
    return names
