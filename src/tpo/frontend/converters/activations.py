"""Activation functions as single operators, or as arithmetic that fuses into its producer."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tpo.frontend.converters.elementwise import clamp
from tpo.frontend.converters.registry import Expr, Node, cast, constant, converter, dtype_of


def affine(node: Node, data: Expr, scale: float, offset: float) -> Expr:
    """`data * scale + offset`, without the steps that do nothing."""
    dtype = dtype_of(data)
    if scale != 1.0:
        data = node.emit(relax.op.multiply(data, constant(scale, dtype)))
    if offset != 0.0:
        data = node.emit(relax.op.add(data, constant(offset, dtype)))
    return data


@converter("Relu")
def _relu(node: Node) -> Expr:
    return relax.op.nn.relu(node.input(0))


@converter("HardSigmoid")
def _hard_sigmoid(node: Node) -> Expr:
    alpha, beta = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return clamp(node, affine(node, node.input(0), alpha, beta), 0, 1)


@converter("HardSwish", since=14)
def _hard_swish(node: Node) -> Expr:
    data = node.input(0)
    return relax.op.multiply(data, clamp(node, affine(node, data, 1 / 6, 0.5), 0, 1))


@converter("LeakyRelu")
def _leaky_relu(node: Node) -> Expr:
    """As maximum (or minimum) of two lines: unlike relax.nn.leakyrelu, layouts pass through it."""
    data, alpha = node.input(0), node.attribute("alpha", 0.01)
    scaled = node.emit(relax.op.multiply(data, constant(alpha, dtype_of(data))))
    return relax.op.maximum(data, scaled) if alpha <= 1 else relax.op.minimum(data, scaled)


@converter("Gelu", since=20)
def _gelu(node: Node) -> Expr:
    approximate = node.attribute("approximate", "none") == "tanh"
    return relax.op.nn.gelu_tanh(node.input(0)) if approximate else relax.op.nn.gelu(node.input(0))


@converter("Swish", since=24)
@converter("QuickGelu", domain="com.microsoft")
def _swish(node: Node) -> Expr:
    data = node.input(0)
    alpha = node.attribute("alpha", 1.0 if node.operator == "Swish" else 1.702)
    if alpha == 1.0:
        return relax.op.nn.silu(data)
    return relax.op.multiply(data, node.emit(relax.op.sigmoid(affine(node, data, alpha, 0.0))))


@converter("Gelu", domain="com.microsoft")
def _microsoft_gelu(node: Node) -> Expr:
    return relax.op.nn.gelu(node.input(0))


@converter("BiasGelu", domain="com.microsoft")
def _bias_gelu(node: Node) -> Expr:
    return relax.op.nn.gelu(node.emit(relax.op.add(node.input(0), node.input(1))))


@converter("FastGelu", domain="com.microsoft")
def _fast_gelu(node: Node) -> Expr:
    data, bias = node.input(0), node.optional(1)
    return relax.op.nn.gelu_tanh(data if bias is None else node.emit(relax.op.add(data, bias)))


def exponential_tail(node: Node, data: Expr, scale: float, inner: float) -> Expr:
    """`max(x, 0) + scale * (exp(min(x, 0) * inner) - 1)`: ELU and its relatives, without overflow."""
    dtype = dtype_of(data)
    if dtype in ("float16", "bfloat16"):
        return cast(node, exponential_tail(node, cast(node, data, "float32"), scale, inner), dtype)
    zero = constant(0, dtype)
    negative = affine(node, node.emit(relax.op.minimum(data, zero)), inner, 0.0)
    tail = affine(node, node.emit(relax.op.exp(negative)), scale, -scale)
    return node.emit(relax.op.add(node.emit(relax.op.maximum(data, zero)), tail))


@converter("Elu")
def _elu(node: Node) -> Expr:
    return exponential_tail(node, node.input(0), node.attribute("alpha", 1.0), 1.0)


@converter("Celu", since=12)
def _celu(node: Node) -> Expr:
    alpha = node.attribute("alpha", 1.0)
    return exponential_tail(node, node.input(0), alpha, 1.0 / alpha)


@converter("Selu")
def _selu(node: Node) -> Expr:
    alpha = node.attribute("alpha", 1.6732632423543772)
    gamma = node.attribute("gamma", 1.0507009873554805)
    return affine(node, exponential_tail(node, node.input(0), alpha, 1.0), gamma, 0.0)


@converter("Softsign")
def _softsign(node: Node) -> Expr:
    data = node.input(0)
    return relax.op.divide(data, affine(node, node.emit(relax.op.abs(data)), 1.0, 1.0))


@converter("ThresholdedRelu", since=10)
def _thresholded_relu(node: Node) -> Expr:
    data, alpha = node.input(0), node.attribute("alpha", 1.0)
    dtype = dtype_of(data)
    return relax.op.where(
        node.emit(relax.op.greater(data, constant(alpha, dtype))), data, constant(np.zeros(()), dtype)
    )
