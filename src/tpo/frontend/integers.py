"""Convolutions and products between dequantisation and quantisation, computed in integers.

    QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w)))   -->   QLinearConv(x, w)

A model in QDQ format computes in floats, on numbers that are whole multiples of a scale. The sums of
their products are whole multiples, too: CPUs have faster instructions for these. ONNX Runtime rewrites
such models the same way. A Relu before the quantisation goes as well where saturation does its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

_MICROSOFT = "com.microsoft"
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_SCALE_TOLERANCE = 1e-4  # of a bias, whose scale should be the product of the operands' scales


@dataclass(frozen=True)
class _Quantised:
    """A tensor of bytes with the scale and the zero point that it was, or is to be, quantised by."""

    value: Any
    scale: Any
    zero_point: Any
    axis: int

    @property
    def triple(self) -> list[Any]:
        return [self.value, self.scale, self.zero_point]


def use_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with quantised operators in place of float ones between DequantizeLinear and QuantizeLinear.

    Everything must be known: bytes, constant scales and weights, one scale for all of the data. What
    does not fit stays in floats.
    """
    if not any(node.op_type == "DequantizeLinear" for node in model.graph.node):
        return model
    work = ir.from_proto(model)
    changed = [_rewrite(node) for node in list(work.graph) if node.op_type in _REWRITES and not node.domain]
    if not any(changed):
        return model
    work.graph.opset_imports.setdefault(_MICROSOFT, 1)
    passes.RemoveUnusedNodesPass()(work)
    return ir.to_proto(work)


def _rewrite(node: ir.Node) -> bool:
    """Replace a node, and the quantisation after it, by a quantised operator if there is one for it."""
    data, weight = (_dequantised(value) for value in node.inputs[:2])
    quantise = _quantisation_of(node.outputs[0])
    if quantise is None or data is None or weight is None:
        return False
    result = _Quantised(quantise.outputs[0], quantise.inputs[1], quantise.inputs[2], 0)
    if _scalar(data.scale) is None or _constant(weight.value) is None or _scalar(result.scale) is None:
        return False
    made = _REWRITES[node.op_type](node, data, weight, result)
    if made is None:
        return False
    (output,) = made.outputs
    output.name, output.shape, output.type = result.value.name, result.value.shape, result.value.type
    ir.convenience.replace_nodes_and_values(
        node.graph, quantise, [quantise], [made], [result.value], [output]
    )
    return True


def _conv(node: ir.Node, data: _Quantised, weight: _Quantised, result: _Quantised) -> ir.Node | None:
    bias = _integer_bias(node, data, weight)
    if not _is_along(weight, 0) or bias is None:
        return None
    inputs = [*data.triple, *weight.triple, result.scale, result.zero_point, *bias]
    return ir.node("QLinearConv", inputs, attributes=dict(node.attributes))


def _matmul(node: ir.Node, data: _Quantised, weight: _Quantised, result: _Quantised) -> ir.Node | None:
    if _rank(weight.value) != 2 or not _is_along(weight, 1):
        return None
    return ir.node("QLinearMatMul", [*data.triple, *weight.triple, result.scale, result.zero_point])


def _gemm(node: ir.Node, data: _Quantised, weight: _Quantised, result: _Quantised) -> ir.Node | None:
    attributes = dict(node.attributes)
    factors = [attributes[name].as_float() for name in ("alpha", "beta") if name in attributes]
    transposed = "transB" in attributes and attributes["transB"].as_int() == 1
    bias = _integer_bias(node, data, weight)
    if ("transA" in attributes and attributes["transA"].as_int()) or any(factor != 1.0 for factor in factors):
        return None
    if bias is None or not _is_along(weight, 0 if transposed else 1):
        return None
    inputs = [*data.triple, *weight.triple, *(bias or [None]), result.scale, result.zero_point]
    return ir.node("QGemm", inputs, attributes={"transB": int(transposed)}, domain=_MICROSOFT)


_REWRITES = {"Conv": _conv, "MatMul": _matmul, "Gemm": _gemm}


def _integer_bias(node: ir.Node, data: _Quantised, weight: _Quantised) -> list[Any] | None:
    """The int32 bias in a list that is empty if there is none; None if it does not have the sums' scale."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return []
    found = _source(node.inputs[2], "DequantizeLinear")
    if found is None or found.inputs[0].dtype != ir.DataType.INT32 or _rank(found.inputs[0]) != 1:
        return None
    scale, weight_scale = _constant(found.inputs[1]), _constant(weight.scale)
    zero = (
        _constant(found.inputs[2]) if len(found.inputs) > 2 and found.inputs[2] is not None else np.zeros(1)
    )
    if scale is None or weight_scale is None or zero is None or zero.any():
        return None
    wanted = _scalar(data.scale) * np.ravel(weight_scale)
    fits = np.allclose(np.ravel(scale), wanted, rtol=_SCALE_TOLERANCE, atol=0)
    return [found.inputs[0]] if fits else None


def _dequantised(value: Any) -> _Quantised | None:
    """What a value is dequantised from, if that is bytes with constant scale and zero point."""
    node = _source(value, "DequantizeLinear")
    if node is None or len(node.inputs) < 3 or node.inputs[2] is None or node.inputs[0].dtype not in _BYTES:
        return None
    if _constant(node.inputs[1]) is None or _constant(node.inputs[2]) is None:
        return None
    if node.inputs[1].dtype != ir.DataType.FLOAT or "block_size" in node.attributes:
        return None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    value, scale, zero_point = node.inputs[:3]
    return _Quantised(value, scale, zero_point, axis % max(_rank(value), 1))


def _quantisation_of(value: ir.Value) -> ir.Node | None:
    """The only reader of a value, if it makes bytes of it; a Relu that saturation replaces is skipped."""
    node = _only_reader(value)
    relu = node if node is not None and node.op_type == "Relu" and not node.domain else None
    if relu is not None:
        node = _only_reader(relu.outputs[0])
    if node is None or node.op_type != "QuantizeLinear" or node.domain or len(node.inputs) < 3:
        return None
    zero = None if node.inputs[2] is None else _scalar(node.inputs[2])
    if zero is None or node.inputs[2].dtype not in _BYTES:
        return None
    lowest = np.iinfo(node.inputs[2].dtype.numpy()).min
    return None if relu is not None and zero != lowest else node


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _source(value: Any, operator: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == operator and not node.domain else None


def _is_along(weight: _Quantised, axis: int) -> bool:
    """Whether a weight has one scale, or one for each step along an axis."""
    return _scalar(weight.scale) is not None or weight.axis == axis


def _rank(value: Any) -> int:
    return 0 if value.shape is None else len(value.shape)


def _constant(value: Any) -> npt.NDArray[Any] | None:
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _scalar(value: Any) -> Any:
    known = _constant(value)
    return known.reshape(())[()] if known is not None and known.size == 1 else None
