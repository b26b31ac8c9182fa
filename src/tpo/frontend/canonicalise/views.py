"""Chains of reshapes and transposes become at most one reshape, one transpose, one reshape.

Axes are split into the factors that the chain keeps together; the whole chain is then one
permutation of factors. An identity permutation (also of size-1 axes) is a plain reshape, which is free.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from tvm import relax

from tpo.frontend.canonicalise.engine import Graph, Rule, operator
from tpo.frontend.canonicalise.match import constant, shape

RESHAPES = ("reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten")
VIEWS = (*RESHAPES, "permute_dims")

# A factor is a run of elements the chain never cuts: (position in the source, size).
Factor = tuple[int, int]


def view_chain(call: Any, graph: Graph) -> Any:
    """Replace the chain of views that ends here when fewer operators do the same."""
    chain = _chain(call, graph)
    if not chain:
        return None
    source = chain[0].args[0]
    plan = _plan(chain)
    if plan is None:
        return None
    split, order, result = plan
    steps = _steps(shape(source) or (), split, order, result)
    if _cost([kind for kind, _ in steps]) >= _cost([operator(step) for step in chain]):
        return None
    expr = source
    for kind, argument in steps:
        expr = getattr(relax.op, kind)(expr, argument)
    return expr


def _cost(kinds: list[str]) -> tuple[int, int, int]:
    """Transposes move data, operators take room, and a reshape has one spelling."""
    odd = sum(kind not in ("reshape", "permute_dims") for kind in kinds)
    return kinds.count("permute_dims"), len(kinds), odd


def _chain(call: Any, graph: Graph) -> list[Any]:
    """The longest chain of views with static shapes that ends in this call, first one first."""
    chain: list[Any] = []
    while call is not None and operator(call) in VIEWS:
        if shape(call) is None or shape(call.args[0]) is None or 0 in (shape(call) or ()):
            break
        chain.insert(0, call)
        call = graph.call(call.args[0], *VIEWS)
    return chain


def _plan(chain: list[Any]) -> tuple[list[int], list[int], tuple[int, ...]] | None:
    """Shape to split the source into, permutation of those axes, and final shape."""
    source = shape(chain[0].args[0]) or ()
    cuts: set[int] = set()
    while True:
        factors = _split(source, cuts)
        axes = None if factors is None else _walk(chain, factors, source)
        if axes is None or isinstance(axes, list):
            break
        if axes in cuts:
            return None
        cuts.add(axes)
    if axes is None:
        return None
    merged = _merge([factor for axis in axes for factor in axis])
    ordered = sorted(merged)
    return [size for _, size in ordered], [ordered.index(f) for f in merged], shape(chain[-1]) or ()


def _walk(
    chain: list[Any], factors: list[Factor], source: tuple[int, ...]
) -> list[list[Factor]] | int | None:
    """Follow the factors through the chain: where they end up, or a position where one must be cut."""
    axes = _regroup(factors, source)
    for call in chain:
        if not isinstance(axes, list):
            return axes
        if operator(call) == "permute_dims":
            axes = [axes[k] for k in _permutation(call)]
        else:
            axes = _regroup([factor for axis in axes for factor in axis], shape(call) or ())
    return axes


def _split(dims: tuple[int, ...], cuts: set[int]) -> list[Factor] | None:
    """Factors of a shape between its own axes and further cuts, outermost first.

    The position of a factor is minus the number of elements one step along it moves, so that
    sorting by position gives memory order. None when cuts do not nest.
    """
    edges = {1, math.prod(dims)} | cuts
    step = math.prod(dims)
    for dim in dims:
        edges.add(step)
        step //= dim
    ordered = sorted(edges, reverse=True)
    pairs = list(pairwise(ordered))
    return None if any(high % low for high, low in pairs) else [(-low, high // low) for high, low in pairs]


def _regroup(flat: list[Factor], dims: tuple[int, ...]) -> list[list[Factor]] | int | None:
    """Deal factors out to the dimensions of a reshape; where to cut when one straddles two of them."""
    queue = [f for f in flat if f[1] != 1]
    axes: list[list[Factor]] = []
    for dim in dims:
        axis: list[Factor] = []
        missing = dim
        while missing > 1:
            position, size = queue[0]
            if missing % size == 0:
                axis.append(queue.pop(0))
                missing //= size
            elif size % missing == 0:
                return -position * (size // missing)
            else:
                return None
        axes.append(axis)
    return axes


def _merge(flat: list[Factor]) -> list[Factor]:
    """Join neighbours that are also neighbours in the source."""
    merged: list[Factor] = []
    for position, size in flat:
        if merged and -merged[-1][0] == -position * size:
            merged[-1] = (position, merged[-1][1] * size)
        else:
            merged.append((position, size))
    return merged


def _permutation(call: Any) -> list[int]:
    rank = call.args[0].ty.ndim
    given = call.attrs.axes
    return list(range(rank))[::-1] if given is None else [int(axis) % rank for axis in given]


def _steps(
    source: tuple[int, ...], split: list[int], order: list[int], result: tuple[int, ...]
) -> list[tuple[str, Any]]:
    """The operators that carry out a plan."""
    if order == sorted(order):
        return [] if source == result else [("reshape", result)]
    as_permutation = _direct(source, split, order, result)
    if as_permutation is not None:
        return [("permute_dims", as_permutation)]
    steps: list[tuple[str, Any]] = []
    if source != tuple(split):
        steps.append(("reshape", tuple(split)))
    steps.append(("permute_dims", order))
    if tuple(split[k] for k in order) != result:
        steps.append(("reshape", result))
    return steps


def _direct(
    source: tuple[int, ...], split: list[int], order: list[int], result: tuple[int, ...]
) -> list[int] | None:
    """The plan as one transpose of the source itself, when its unit axes can be placed to fit."""
    if len(source) != len(result):
        return None
    wide = [k for k, size in enumerate(source) if size != 1]
    if [source[k] for k in wide] != split:
        return None
    unit = [k for k, size in enumerate(source) if size == 1]
    moved = [wide[k] for k in order]
    axes = [unit.pop(0) if size == 1 and unit else (moved.pop(0) if moved else -1) for size in result]
    return axes if not moved and [source[k] for k in axes] == list(result) else None


def transpose_before_flat_matmul(call: Any, graph: Graph) -> Any:
    """matmul(flatten(transpose(x)), w) permutes the rows of a constant w instead of x."""
    weight = constant(call.args[1]) if operator(call) == "matmul" else None
    if weight is None or weight.ndim != 2:
        return None
    chain = _chain(graph.call(call.args[0], *VIEWS), graph)
    if not chain or "permute_dims" not in [operator(step) for step in chain]:
        return None
    source = shape(chain[0].args[0]) or ()
    plan = _plan(chain)
    flat = shape(call.args[0]) or ()
    rows = math.prod(flat[:-1])
    if plan is None:
        return None
    split, order, _ = plan
    if rows != 1:
        if split[0] != rows or order[0] != 0:
            return None
        split, order = split[1:], [k - 1 for k in order[1:]]
    if math.prod(split) != weight.shape[0] or math.prod(source) != rows * weight.shape[0]:
        return None
    moved = weight.reshape(*[split[k] for k in order], -1)
    inverse = [*np.argsort(order), len(order)]
    permuted = np.ascontiguousarray(moved.transpose(inverse)).reshape(weight.shape)
    return relax.op.matmul(relax.op.reshape(chain[0].args[0], flat), relax.const(permuted))


RULES: tuple[Rule, ...] = (view_chain, transpose_before_flat_matmul)
