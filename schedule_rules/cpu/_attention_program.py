"""Attention written for tiles of rows: keys turned around, rows and keys filled up to whole tiles.

    scores = Q K'                     turned = K', in whole vectors of keys
    softmax of f(scores)      -->     logits = f(Q turned), -inf for keys there are none of
    out = softmax V                   largest, powers, total: of the rows of logits
                                      out = (powers V) / total

Rows beyond the end repeat the last one and are not written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from tpo.lang import analysis
from tpo.lang.programs import ProgramWriter, replace_loads, substitute
from tpo.schedule import moves

Expr = Any


@dataclass(frozen=True)
class Attention:
    """The statements of a function that is one attention, and its sizes.

    `scores` and `mixed` are the two products of matrices, `logits` the expression that the largest of a row
    is found of, `store` what becomes of an element of the result.
    """

    outer: list[int]
    rows: int
    keys: int
    depth: int
    columns: int
    scores: Any
    largest: Any
    logits: Expr
    mixed: Any
    store: Any
    query: Any
    key: Any
    value: Any

    @property
    def dtype(self) -> str:
        """The type of all its numbers."""
        return str(self.scores.body.buffer.dtype)


def read(sch: Any) -> Attention | None:
    """The attention a function is; None if it is something else. Views around it are inlined on the way."""
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    if len(reductions) != 4 or not analysis.contraction(sch, reductions[3]):
        return None
    scores, largest, total, mixed = reductions
    if not _inline_around(sch, largest, mixed):
        return None
    (copy,) = sch.get_consumers(mixed)
    statements = [sch.get(block) for block in (scores, largest, total, mixed, copy)]
    scores, largest, total, mixed, copy = statements
    *outer, rows, keys, depth = (int(axis.dom.extent) for axis in scores.iter_vars)
    logits = _combined(largest, tirx.Max)
    products = [analysis.product_of(scores.body), analysis.product_of(mixed.body)]
    if logits is None or _combined(total, tirx.Add) is None or None in products:
        return None
    if not _at_own_axes(logits, scores, largest) or len(mixed.iter_vars) != len(scores.iter_vars):
        return None
    query, key = _operands(products[0], scores)
    weights, value = _operands(products[1], mixed)
    if (
        query is None
        or weights is None
        or [int(a.dom.extent) for a in mixed.iter_vars[:-2]] != [*outer, rows]
    ):
        return None
    columns = int(mixed.iter_vars[-2].dom.extent)
    return Attention(
        outer, rows, keys, depth, columns, scores, largest, logits, mixed, copy, query, key, value
    )


def program(sch: Any, found: Attention, row_tile: int, lanes: int) -> Any:
    """The function in tiles of so many rows, and vectors of so many keys."""
    rows, keys = _rounded(found.rows, row_tile), _rounded(found.keys, lanes)
    writer, dtype = ProgramWriter(sch.mod["main"]), found.dtype
    infinite = tirx.const(-math.inf, dtype)

    def operand(load: Expr, stmt: Any, *at: Expr) -> Expr:
        return substitute(load, stmt.iter_vars, at)

    def turned_key(*at: Expr) -> Expr:
        *outer, depth, key = at
        element = operand(found.key, found.scores, *outer, _zero(), key, depth)
        return (
            element if keys == found.keys else tirx.if_then_else(key < found.keys, element, _nothing(dtype))
        )

    turned = writer.compute("turned", [*found.outer, found.depth, keys], dtype, turned_key)

    def value_of(*at: Expr) -> Expr:
        *outer, key, column = at
        return operand(found.value, found.mixed, *outer, _zero(), column, key)

    values = writer.compute("values", [*found.outer, found.keys, found.columns], dtype, value_of)

    def product(*at: Expr) -> Expr:
        *outer, row, key, depth = at
        query = operand(found.query, found.scores, *outer, _last(row, found.rows, rows), _zero(), depth)
        place = (*outer, depth, key)
        return query * turned[place]

    scores = writer.compute("scores", [*found.outer, rows, keys], dtype, product, summed=[found.depth])

    def logit(*at: Expr) -> Expr:
        *outer, row, key = at
        inside = [*outer, _last(row, found.rows, rows), _last(key, found.keys, keys)]
        old = found.scores.body.buffer
        element = replace_loads(substitute(found.logits, found.largest.iter_vars, inside), old, scores[at])
        return element if keys == found.keys else tirx.Select(key < found.keys, element, infinite)

    logits = writer.compute("logits", [*found.outer, rows, keys], dtype, logit)
    largest = writer.compute(
        *("largest", [*found.outer, rows], dtype, lambda *at: logits[at]),
        summed=[keys],
        start=tirx.min_value(dtype),
        combine=tirx.Max,
    )
    powers = writer.compute(
        "powers", [*found.outer, rows, keys], dtype, lambda *at: tirx.exp(logits[at] - largest[at[:-1]])
    )
    total = writer.compute("total", [*found.outer, rows], dtype, lambda *at: powers[at], summed=[keys])
    factor = writer.compute(
        "factor", [*found.outer, rows], dtype, lambda *at: tirx.const(1, dtype) / total[at]
    )

    def weighted(*at: Expr) -> Expr:
        *outer, row, column, key = at
        power, value = (*outer, row, key), (*outer, key, column)
        return powers[power] * values[value]

    mixed = writer.compute("mixed", [*found.outer, rows, found.columns], dtype, weighted, summed=[found.keys])
    writer.write(
        "result",
        [*found.outer, rows, found.columns],
        lambda *at: (
            found.store.body.buffer,
            [operand(index, found.store, *at) for index in found.store.body.indices],
            mixed[at] * factor[at[:-1]],
        ),
        None if rows == found.rows else (lambda *at: at[-2] < found.rows),
    )
    return writer.finish()


def _inline_around(sch: Any, largest: Any, mixed: Any) -> bool:
    """Inline what prepares operands and logits, and write the result where the views after it put it."""
    after = {_name(sch, block) for block in moves.downstream(sch, largest)}
    for block in analysis.blocks(sch):
        before = analysis.is_injective(sch, block) and _name(sch, block) not in after
        if before and not moves.try_inline(sch, block):
            return False
    views = moves.downstream(sch, mixed)
    sch.cache_write(mixed, 0, "global")
    for view in views:
        try:
            sch.reverse_compute_inline(view)
        except s_tir.ScheduleError:
            return False
    return True


def _name(sch: Any, block: Any) -> str:
    return str(sch.get(block).name_hint)


def _combined(stmt: Any, kind: Any) -> Expr | None:
    """What a reduction of the kind combines its result with."""
    value = stmt.body.value
    if not isinstance(value, kind):
        return None
    own = [isinstance(x, TensorLoad) and x.source.same_as(stmt.body.buffer) for x in (value.a, value.b)]
    return value.b if own == [True, False] else value.a if own == [False, True] else None


def _at_own_axes(logits: Expr, scores: Any, largest: Any) -> bool:
    """Whether a logit is made of its own score, and of nothing else that the function computes."""
    axes = [axis.var for axis in largest.iter_vars]
    loads = [load for load in analysis.loads(logits) if load.source.same_as(scores.body.buffer)]
    return bool(loads) and all(
        len(load.indices) == len(axes)
        and all(index.same_as(axis) for index, axis in zip(load.indices, axes, strict=True))
        for load in loads
    )


def _operands(product: Any, stmt: Any) -> tuple[Expr, Expr] | tuple[None, None]:
    """The operand of a product that has its rows, then the one that has its columns."""
    *_, row, column, _ = stmt.iter_vars
    for first, second in (product, product[::-1]):
        if (
            _uses(first, row)
            and not _uses(first, column)
            and _uses(second, column)
            and not _uses(second, row)
        ):
            return first, second
    return None, None


def _uses(load: Any, axis: Any) -> bool:
    return any(var.same_as(axis.var) for var in analysis.find(tirx.Var, load.indices))


def _last(index: Expr, count: int, padded: int) -> Expr:
    """An index, of the last element where there are no more."""
    return index if padded == count else tirx.min(index, tirx.const(count - 1, str(index.ty.dtype)))


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _zero() -> Expr:
    return tirx.const(0, "int64")


def _nothing(dtype: str) -> Expr:
    return tirx.const(0, dtype)
