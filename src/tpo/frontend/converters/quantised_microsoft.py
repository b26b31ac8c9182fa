"""Quantised operators of com.microsoft, which ONNX Runtime's quantiser writes into models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from tpo.frontend.converters.quantised import (
    columns,
    dequantise,
    dynamic_quantize_linear,
    integer_matmul,
    quantise,
    requantise,
    rows,
    view,
)
from tpo.frontend.converters.registry import (
    Expr,
    Node,
    Unsupported,
    cast,
    constant,
    converter,
    dtype_of,
    find,
)


def _dequantised(node: Node, first: int) -> Expr:
    """The tensor of inputs `first` (data), `first + 1` (scale) and `first + 2` (zero point)."""
    zero_point = node.optional(first + 2)
    zero_point = None if zero_point is None else view(node, zero_point, ())
    return dequantise(node, node.input(first), view(node, node.input(first + 1), ()), zero_point)


def _quantised(node: Node, data: Expr, first: int, dtype: str) -> Expr:
    """`data` quantised by inputs `first` (scale) and `first + 1` (zero point)."""
    zero_point = node.optional(first + 1)
    zero_point = None if zero_point is None else view(node, zero_point, ())
    return quantise(node, data, view(node, node.input(first), ()), zero_point, dtype)


def _as_float(node: Node, operator: str, data: Expr, version: int = 19) -> Expr:
    """The float operator of ai.onnx on `data`, with this node's attributes."""
    convert = find("", operator, version)
    if convert is None:
        raise Unsupported(f"{operator} has no translation")
    result = convert(replace(node, operator=operator, domain="", version=version, inputs=(data,)))
    return node.emit(result)


@converter("QLinearAdd", "QLinearMul", domain="com.microsoft")
def _qlinear_binary(node: Node) -> Expr:
    operation = relax.op.add if node.operator == "QLinearAdd" else relax.op.multiply
    result = node.emit(operation(_dequantised(node, 0), _dequantised(node, 3)))
    return _quantised(node, result, 6, dtype_of(node.input(0)))


@converter(
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "QLinearSoftmax",
    domain="com.microsoft",
)
def _qlinear_unary(node: Node) -> Expr:
    data = _dequantised(node, 0)
    name = node.operator.removeprefix("QLinear")
    if node.attribute("channels_last", 0):
        raise Unsupported("channels_last is not supported")
    if name == "Sigmoid":
        result = node.emit(relax.op.sigmoid(data))
    elif name == "Softmax":
        if node.attribute("opset", 13) < 13:
            raise Unsupported("softmax of opset 12 and before is not supported")
        result = node.emit(relax.op.nn.softmax(data, node.attribute("axis", -1)))
    else:
        result = _as_float(node, name, data)
    return _quantised(node, result, 3, dtype_of(node.input(0)))


@converter("QLinearConcat", domain="com.microsoft")
def _qlinear_concat(node: Node) -> Expr:
    parts = [_dequantised(node, first) for first in range(2, len(node.inputs), 3)]
    joined = node.emit(relax.op.concat(parts, axis=node.attribute("axis")))
    return _quantised(node, joined, 0, dtype_of(node.input(2)))


@converter("QGemm", domain="com.microsoft")
def _qgemm(node: Node) -> Expr:
    a, b = node.input(0), node.required_constant(3, "weight")
    if node.attribute("transA", 0) or node.optional(7) is None:
        raise Unsupported("only transA=0 and a quantised output are supported")
    weight = constant(b.T if node.attribute("transB", 0) else b)
    total = integer_matmul(node, a, node.optional(2), weight, node.optional(5))
    bias = node.optional(6)
    if bias is not None:
        total = node.emit(relax.op.add(total, bias))
    alpha = np.float32(node.attribute("alpha", 1.0))
    a_scale = constant(np.float32(alpha * node.required_constant(1, "scale").reshape(())))
    factors = [a_scale, columns(node, node.input(4))]
    return requantise(node, total, factors, view(node, node.input(7), ()), view(node, node.input(8), ()))


@converter("DynamicQuantizeMatMul", domain="com.microsoft")
def _dynamic_quantize_matmul(node: Node) -> Expr:
    quantised, scale, zero_point = dynamic_quantize_linear(node)
    total = integer_matmul(node, quantised, zero_point, node.input(1), node.optional(3))
    factor = node.emit(relax.op.multiply(scale, columns(node, node.input(2))))
    result = node.emit(relax.op.multiply(cast(node, total, "float32"), factor))
    bias = node.optional(4)
    return result if bias is None else relax.op.add(result, bias)


@converter("MatMulIntegerToFloat", domain="com.microsoft")
def _matmul_integer_to_float(node: Node) -> Expr:
    total = integer_matmul(node, node.input(0), node.optional(4), node.input(1), node.optional(5))
    factor = node.emit(relax.op.multiply(rows(node, node.input(2)), columns(node, node.input(3))))
    result = node.emit(relax.op.multiply(cast(node, total, "float32"), factor))
    bias = node.optional(6)
    return result if bias is None else relax.op.add(result, bias)
