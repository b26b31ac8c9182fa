"""A function over rows as a program whose rows are whole vectors, for lengths that are none.

    for i, k < 197: M(x)                for i, l < 16: R = x[192 + l] if l < 5 else what M starts from
    for i, k < 197: E(x, M)      -->    for i, k < 208: M(x if k < 192 else R)
    for i, k < 197: S(E)                for i, k < 208: E(x if k < 192 else R, M)
    for i, k < 197: out(E, S)           for i, k < 208: S(E if k < 197 else 0)
                                        for i, k < 197: out(E, S)

Of rows from outside the last vector is copied and filled up; which of the two is read is the same for all
lanes of a vector. What rows are filled up with goes through all passes and is left out where it would count.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from tpo.lang import analysis
from tpo.lang.programs import ProgramWriter, substitute

Expr = Any
COMBINING = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


def in_whole_vectors(sch: Any, rows: int, length: int, vector: int) -> Any:
    """The function with rows that are filled up to whole vectors; None if it is not written for that."""
    blocks = [sch.get(block) for block in analysis.blocks(sch)]
    if not all(_walks_rows(stmt, rows, length) for stmt in blocks):
        return None
    program = _RowProgram(sch.mod["main"], blocks, rows, length, vector)
    for stmt in blocks:
        program.add(stmt)
    return program.writer.finish()


def summand(stmt: Any) -> Expr | None:
    """What a reduction combines its result with; None if it is not of a kind that is understood."""
    store = stmt.body
    if not isinstance(store.value, COMBINING):
        return None
    operands = [store.value.a, store.value.b]
    others = [x for x in operands if not (isinstance(x, TensorLoad) and x.source.same_as(store.buffer))]
    return others[0] if len(others) == 1 else None


def _is_pass(stmt: Any, rows: int, length: int) -> bool:
    """Whether a block visits every element of every row, and not one point for every row."""
    return math.prod(int(axis.dom.extent) for axis in stmt.iter_vars) == rows * length


def _walks_rows(stmt: Any, rows: int, length: int) -> bool:
    """Whether the last axis of a pass is the row, and moves the last index of what it accesses, if any."""
    if not _is_pass(stmt, rows, length):
        return True
    if stmt.init is not None and (summand(stmt) is None or _reduced_axes(stmt) != 1):
        return False
    row = stmt.iter_vars[-1]
    accesses = [(load.source, load.indices) for load in analysis.loads(stmt.body.value)]
    if stmt.init is None:
        accesses.append((stmt.body.buffer, stmt.body.indices))
    return int(row.dom.extent) == length and all(
        indices[-1].same_as(row.var) and int(buffer.shape[-1]) == length and not _uses(indices[:-1], row)
        for buffer, indices in accesses
        if _uses(indices, row)
    )


def _reduced_axes(stmt: Any) -> int:
    return sum(axis.iter_type == analysis.REDUCTION for axis in stmt.iter_vars)


def _uses(indices: Any, axis: Any) -> bool:
    return any(var.same_as(axis.var) for var in analysis.find(tirx.Var, indices))


class _RowProgram:
    """The new program while it is written: what stands for which buffer of the old one."""

    def __init__(self, like: Any, blocks: list[Any], rows: int, length: int, vector: int) -> None:
        self.writer = ProgramWriter(like)
        self._rows, self._length, self._vector = rows, length, vector
        self._whole = length // vector * vector
        self._padded = self._whole + vector
        self._now: list[tuple[Any, Any]] = []
        self._fills = [
            (value.source, stmt.init.value)
            for stmt in blocks
            if stmt.init is not None and isinstance(value := summand(stmt), TensorLoad)
        ]

    def add(self, stmt: Any) -> None:
        """Write a block of the old program for the new rows."""
        written = stmt.body.buffer
        extents = [int(axis.dom.extent) for axis in stmt.iter_vars]
        if stmt.init is not None:
            self._add_reduction(stmt, extents)
        elif self._is_param(written):
            self.writer.write(
                stmt.name_hint,
                extents,
                lambda *at: (
                    written,
                    [self._at(index, stmt, at, False) for index in stmt.body.indices],
                    self._at(stmt.body.value, stmt, at, False),
                ),
            )
        else:
            row = _is_pass(stmt, self._rows, self._length)
            shape = [*extents[:-1], self._padded] if row else extents
            self._stage(stmt, row)
            new = self.writer.compute(
                stmt.name_hint, shape, written.dtype, lambda *at: self._at(stmt.body.value, stmt, at, row)
            )
            self._now.append((written, new))

    def _add_reduction(self, stmt: Any, extents: list[int]) -> None:
        self._stage(stmt, True)
        value, start = summand(stmt), stmt.init.value
        plain = isinstance(value, TensorLoad) and self._fill(value.source).same_as(start)

        def counted(*at: Expr) -> Expr:
            new = self._at(value, stmt, at, True)
            return new if plain else tirx.Select(at[-1] < self._length, new, start)

        new = self.writer.compute(
            stmt.name_hint,
            extents[:-1],
            stmt.body.buffer.dtype,
            counted,
            summed=[self._padded],
            start=start,
            combine=type(stmt.body.value),
        )
        self._now.append((stmt.body.buffer, new))
        if self._is_param(stmt.body.buffer):
            self.writer.write(
                f"{stmt.name_hint}_out", extents[:-1], lambda *at: (stmt.body.buffer, at, new[tuple(at)])
            )

    def _stage(self, stmt: Any, row: bool) -> None:
        """Copy the rest of what a block reads along rows from outside."""
        for load in analysis.loads(stmt.body.value) if row else []:
            known = any(old.same_as(load.source) for old, _ in self._now)
            if _uses(load.indices, stmt.iter_vars[-1]) and self._is_param(load.source) and not known:
                self._now.append((load.source, self._rest(load.source)))

    def _rest(self, buffer: Any) -> Any:
        """The last vector of rows from outside, filled up."""
        shape = [*(int(dim) for dim in buffer.shape[:-1]), self._vector]

        def filled(*at: Expr) -> Expr:
            *outer, lane = at
            inside = lane < self._length - self._whole
            element = (*outer, lane + self._whole)
            return tirx.if_then_else(inside, buffer[element], self._fill(buffer))

        return self.writer.compute(f"{buffer.name}_rest", shape, buffer.dtype, filled)

    def _fill(self, buffer: Any) -> Expr:
        """What the rows of a buffer from outside end with."""
        found = [start for source, start in self._fills if source.same_as(buffer) and self._is_param(source)]
        return found[0] if found else tirx.const(0, str(buffer.dtype))

    def _is_param(self, buffer: Any) -> bool:
        return any(buffer.same_as(param) for param in self.writer.params)

    def _at(self, expr: Expr, stmt: Any, at: tuple[Expr, ...], along_rows: bool) -> Expr:
        """An expression of a block at new axes and of new buffers; rests are only read `along_rows`."""

        def renewed(load: Any) -> Any:
            new = next((new for old, new in self._now if old.same_as(load.source)), None)
            if new is None or not self._is_param(load.source):
                return load if new is None else new[tuple(load.indices)]
            return self._of_row(load, new) if along_rows else load

        return tvm_ffi.structural_map(substitute(expr, stmt.iter_vars, at), (TensorLoad, renewed))

    def _of_row(self, load: Any, rest: Any) -> Expr:
        *outer, at = load.indices
        whole = tirx.floordiv(at, self._vector) < self._whole // self._vector
        lane = (*outer, tirx.floormod(at, self._vector))
        return tirx.if_then_else(whole, load, rest[lane])
