"""Places in a program that TVM is scheduling: what is around a block, and who uses what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.sblock_scope import DepKind

from tpo.lang import analysis


def path_of(sref: Any) -> list[Any]:
    """The loops around a block within its scope, from the outside."""
    found: list[Any] = []
    above = sref.parent
    while above is not None and isinstance(stmt := above.stmt, tirx.For):
        found.append(stmt)
        above = above.parent
    return found[::-1]


def realize_of(sref: Any) -> Any:
    """The realization of a block: what its axes are in terms of loops."""
    stmt, body = sref.stmt, sref.parent.stmt.body
    if isinstance(body, s_tir.SBlockRealize) and body.block.same_as(stmt):
        return body
    return next(node for node in analysis.find(s_tir.SBlockRealize, body) if node.block.same_as(stmt))


def blocks_in_scope(stmt: Any) -> list[Any]:
    """The blocks inside a statement, in order, without those that are parts of them."""
    if isinstance(stmt, s_tir.SBlockRealize):
        return [stmt.block]
    parts = list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [getattr(stmt, "body", None)]
    return [block for part in parts if part is not None for block in blocks_in_scope(part)]


def consumers(sch: Any, sref: Any) -> list[Any]:
    """Blocks that read what a block writes, in TVM's order; asked of its state, so that no trace grows."""
    scope = sref.parent
    while isinstance(scope.stmt, tirx.For):
        scope = scope.parent
    found: list[Any] = []
    for edge in sch.state.get_sblock_scope(scope).get_deps_by_src(sref):
        if int(edge.kind) in (DepKind.RAW, DepKind.WAW) and not any(edge.dst.same_as(dst) for dst in found):
            found.append(edge.dst)
    return found


def shared(paths: Sequence[Sequence[Any]]) -> int:
    """How many loops several blocks have in common."""
    first = paths[0]
    same = [all(len(path) > k and path[k].same_as(first[k]) for path in paths) for k in range(len(first))]
    return same.index(False) if False in same else len(same)


def loops_of_axes(sref: Any, variables: Sequence[Any]) -> list[Any]:
    """For every axis of a block the one of some loop variables that it uses; None if it uses none of them."""
    values = realize_of(sref).iter_values
    if len(variables) == len(values):
        return list(variables)
    used = [analysis.find(tirx.Var, value) for value in values]
    return [
        next((var for var in variables if any(var.same_as(other) for other in found)), None) for found in used
    ]


def is_parallel(loop: Any) -> bool:
    """Whether no block inside a loop accumulates over it."""
    return not any(
        axis.iter_type != analysis.SPATIAL
        and any(var.same_as(loop.loop_var) for var in analysis.find(tirx.Var, value))
        for realize in analysis.find(s_tir.SBlockRealize, loop.body)
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
    )


def can_be_inlined(stmt: Any) -> bool:
    """Whether TVM can compute a block where it is read: each element by itself, at its own axes."""
    axes = [axis.var for axis in stmt.iter_vars]
    return (
        isinstance(stmt.body, tirx.BufferStore)
        and all(axis.iter_type == analysis.SPATIAL for axis in stmt.iter_vars)
        and all(any(index.same_as(var) for var in axes) for index in stmt.body.indices)
    )
