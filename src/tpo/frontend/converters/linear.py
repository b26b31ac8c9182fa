"""Matrix products: constant operands are transposed and scaled now, not in the graph."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tpo.frontend.converters.registry import (
    Expr,
    Node,
    Unsupported,
    constant,
    converter,
    dtype_of,
    is_float,
    rank_of,
    value_of,
)


def transposed(node: Node, matrix: Expr) -> Expr:
    """The transpose of a matrix; of a constant one, now."""
    known = value_of(matrix)
    if known is not None:
        return constant(np.ascontiguousarray(known.T))
    return node.emit(relax.op.permute_dims(matrix, [1, 0]))


def scaled(node: Node, data: Expr, factor: float) -> Expr:
    """`data * factor`; of a constant, now."""
    if factor == 1.0:
        return data
    known, dtype = value_of(data), dtype_of(data)
    if known is not None:
        return constant(known.astype(np.float64) * factor if is_float(dtype) else known * int(factor), dtype)
    return node.emit(relax.op.multiply(data, constant(factor, dtype)))


@converter("Gemm")
def _gemm(node: Node) -> Expr:
    left, right, bias = node.input(0), node.input(1), node.optional(2)
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    left = transposed(node, left) if node.attribute("transA", 0) else left
    right = transposed(node, right) if node.attribute("transB", 0) else right
    if value_of(right) is not None:
        right, alpha = scaled(node, right, alpha), 1.0
    product = scaled(node, node.emit(relax.op.matmul(left, right)), alpha)
    if bias is None or beta == 0.0:
        return product
    return relax.op.add(product, scaled(node, bias, beta))


@converter("MatMul")
def _matmul(node: Node) -> Expr:
    return relax.op.matmul(node.input(0), node.input(1))


@converter("FusedMatMul", domain="com.microsoft")
def _fused_matmul(node: Node) -> Expr:
    left, right = node.input(0), node.input(1)
    if node.attribute("transBatchA", 0) or node.attribute("transBatchB", 0):
        raise Unsupported("transBatchA and transBatchB are not supported")
    left = _swap_last(node, left) if node.attribute("transA", 0) else left
    right = _swap_last(node, right) if node.attribute("transB", 0) else right
    return scaled(node, node.emit(relax.op.matmul(left, right)), node.attribute("alpha", 1.0))


def _swap_last(node: Node, data: Expr) -> Expr:
    known = value_of(data)
    if known is not None:
        return constant(np.ascontiguousarray(known.swapaxes(-1, -2)))
    rank = rank_of(data)
    return node.emit(relax.op.permute_dims(data, [*range(rank - 2), rank - 1, rank - 2]))
