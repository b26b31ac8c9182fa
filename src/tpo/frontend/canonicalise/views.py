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
from tpo.frontend.canonicalise.match import constant, shape, tensor

RESHAPES = ("reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten")
VIEWS = (*RESHAPES, "permute_dims")

# A factor is a run of elements the chain never cuts: (position in the source, size).
Factor = tuple[int, int]
# Shape to split the source into, permutation of those axes, and final shape.
Plan = tuple[list[int], list[int], tuple[int, ...]]


def view_chain(call: Any, graph: Graph) -> Any:
    """Replace the longest chain of views ending here for which fewer or simpler operators do the same."""
    chain = _chain(call, graph)
    for start in range(len(chain)):
        tail = chain[start:]
        source = tail[0].args[0]
        ways = [_steps(shape(source) or (), *plan) for plan in _plans(tail)]
        steps = min(ways, key=lambda way: _cost([kind for kind, _ in way]), default=None)
        if steps is None or _cost([kind for kind, _ in steps]) >= _cost([operator(step) for step in tail]):
            continue
        expr = source
        for kind, argument in steps:
            expr = getattr(relax.op, kind)(expr, argument)
        return expr
    return None


def _cost(kinds: list[str]) -> tuple[int, int, int, int]:
    """Transposes move data, operators take room, a reshape has one spelling, and a transpose that
    comes last can move further down.
    """
    odd = sum(kind not in ("reshape", "permute_dims") for kind in kinds)
    return kinds.count("permute_dims"), len(kinds), odd, "permute_dims" in kinds[:-1]


def _chain(call: Any, graph: Graph) -> list[Any]:
    """The longest chain of views with static shapes that ends in this call, first one first."""
    chain: list[Any] = []
    while call is not None and operator(call) in VIEWS:
        if shape(call) is None or shape(call.args[0]) is None or 0 in (shape(call) or ()):
            break
        chain.insert(0, call)
        call = graph.call(call.args[0], *VIEWS)
    return chain


def _plans(chain: list[Any]) -> list[Plan]:
    """Ways to do what the chain does: with the coarsest factors, and with those the chain itself uses."""
    source, result = shape(chain[0].args[0]) or (), shape(chain[-1]) or ()
    if all(operator(call) != "permute_dims" for call in chain):
        return [(list(source), list(range(len(source))), result)]
    factors = _final_factors(chain, source)
    if factors is None:
        return []
    return [
        ([size for _, size in sorted(order)], [sorted(order).index(factor) for factor in order], result)
        for order in (_merge(factors), factors)
    ]


def _final_factors(chain: list[Any], source: tuple[int, ...]) -> list[Factor] | None:
    """The factors of the source in the order in which the chain leaves them; None if they do not nest."""
    cuts: set[int] = set()
    while True:
        factors = _split(source, cuts)
        axes = None if factors is None else _walk(chain, factors, source)
        if axes is None or isinstance(axes, list):
            break
        if axes in cuts:
            return None
        cuts.add(axes)
    return None if axes is None else [factor for axis in axes for factor in axis]


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
    steps: list[tuple[str, Any]] = []
    moved = [split[k] for k in order]
    if moved == [size for size in result if size != 1]:
        # The transpose can make the result's own axes: its size-1 axes stay in front until then.
        split, order = _with_unit_axes(source, split, order, result)
        moved = list(result)
    if source != tuple(split):
        steps.append(("reshape", tuple(split)))
    steps.append(("permute_dims", order))
    if tuple(moved) != result:
        steps.append(("reshape", result))
    return steps


def _with_unit_axes(
    source: tuple[int, ...], split: list[int], order: list[int], result: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """The split and permutation with size-1 axes added so that the permutation gives the result.

    They are placed as in the source, if that has as many of them and the same other axes.
    """
    units = sum(size == 1 for size in result)
    same = len(source) == len(result) and [size for size in source if size != 1] == split
    full = list(source) if same else [1] * units + split
    wide = [k for k, size in enumerate(full) if size != 1]
    spare = [k for k, size in enumerate(full) if size == 1]
    moved = [wide[k] for k in order]
    return full, [spare.pop(0) if size == 1 else moved.pop(0) for size in result]


def transpose_before_flat_matmul(call: Any, graph: Graph) -> Any:
    """matmul(flatten(transpose(x)), w) permutes the rows of a constant w instead of x."""
    weight = constant(call.args[1]) if operator(call) == "matmul" else None
    if weight is None or weight.ndim != 2:
        return None
    chain = _chain(graph.call(call.args[0], *VIEWS), graph)
    if not chain or "permute_dims" not in [operator(step) for step in chain]:
        return None
    source = shape(chain[0].args[0]) or ()
    plans = _plans(chain)
    flat = shape(call.args[0]) or ()
    rows = math.prod(flat[:-1])
    if not plans:
        return None
    split, order, _ = plans[-1]
    if rows != 1:
        if split[0] != rows or order[0] != 0:
            return None
        split, order = split[1:], [k - 1 for k in order[1:]]
    if math.prod(split) != weight.shape[0] or math.prod(source) != rows * weight.shape[0]:
        return None
    moved = weight.reshape(*[split[k] for k in order], -1)
    inverse = [*np.argsort(order), len(order)]
    permuted = np.ascontiguousarray(moved.transpose(inverse)).reshape(weight.shape)
    return relax.op.matmul(relax.op.reshape(chain[0].args[0], flat), tensor(permuted))


RULES: tuple[Rule, ...] = (view_chain, transpose_before_flat_matmul)
