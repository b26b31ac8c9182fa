"""Writing another program for a function: the same parameters and results, other blocks.

Some ideas are no schedule: Winograd's convolution multiplies other numbers than the plain one. A rule
writes such a program here, block by block, and goes on with it by `restate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

Expr = Any
Buffer = Any


class ProgramWriter:
    """Blocks of a new function, in their order; parameters and attributes are those of `like`.

    >>> from tpo.testing.corpus import example
    >>> sch, _, _ = example()
    >>> writer = ProgramWriter(sch.mod["main"])
    >>> left, right, total = writer.params
    >>> doubled = writer.compute("doubled", left.shape, left.dtype, lambda i, j: left[i, j] * 2.0)
    >>> writer.write("total", left.shape, lambda i, j: (total, [i, j], doubled[i, j] + right[i, j]))
    >>> [str(nest.loop_var) for nest in writer.finish().body.block.body]
    ['v', 'v']
    """

    def __init__(self, like: Any) -> None:
        self.params = list(like.params)
        self._like = like
        self._builder = IRBuilder()
        self._frames = [self._builder, script.prim_func(s_tir=True), script.sblock("root")]
        for frame in self._frames[:2]:
            frame.__enter__()
        script.func_name("main")
        for param in self.params:
            script.arg(param.name, param)
        self._frames[2].__enter__()

    def compute(
        self,
        name: str,
        shape: Sequence[Any],
        dtype: str,
        value: Callable[..., Expr],
        summed: Sequence[int] = (),
        start: Expr = None,
        combine: Callable[[Expr, Expr], Expr] = tirx.Add,
    ) -> Buffer:
        """A new buffer, every element computed from its indices; `summed` are extents of further axes.

        Along those, values are combined with what is there already, which is `start` (0) at first.
        """
        buffer = script.sblock_alloc_buffer([_index(extent) for extent in shape], str(dtype))
        IRBuilder.name(name, buffer)

        def store(*axes: Expr) -> None:
            kept = list(axes[: len(shape)])
            if summed:
                with script.init():
                    first = tirx.const(0, str(dtype)) if start is None else start
                    script.buffer_store(buffer, first, kept)
                script.buffer_store(buffer, combine(buffer[tuple(kept)], value(*axes)), kept)
            else:
                script.buffer_store(buffer, value(*axes), kept)

        self._block(name, [*shape, *summed], len(shape), store)
        return buffer

    def write(
        self,
        name: str,
        extents: Sequence[Any],
        value: Callable[..., tuple[Buffer, Sequence[Expr], Expr]],
        inside: Callable[..., Expr] | None = None,
    ) -> None:
        """A block that stores a value where it says, for those axes that are `inside`."""

        def store(*axes: Expr) -> None:
            buffer, indices, stored = value(*axes)
            if inside is None:
                script.buffer_store(buffer, stored, list(indices))
            else:
                with script.If(inside(*axes)), script.Then():
                    script.buffer_store(buffer, stored, list(indices))

        self._block(name, extents, len(extents), store)

    def finish(self) -> Any:
        """The function that was written."""
        for frame in reversed(self._frames):
            frame.__exit__(None, None, None)
        func = self._builder.get()
        return func.with_attrs(dict(self._like.attrs)).without_attr("global_symbol")

    def _block(self, name: str, extents: Sequence[Any], kept: int, store: Callable[..., None]) -> None:
        sizes = [_index(extent) for extent in extents]
        with script.grid(*sizes) as loops, script.sblock(name):
            several = [loops] if isinstance(loops, tirx.Var) else loops
            axes = [
                script.axis.spatial(size, loop) if k < kept else script.axis.reduce(size, loop)
                for k, (size, loop) in enumerate(zip(sizes, several, strict=True))
            ]
            store(*axes)


class Renewal:
    """Blocks of an old function in a new one: where what they load was written anew, they load that."""

    def __init__(self, writer: ProgramWriter) -> None:
        self.writer = writer
        self._made: list[tuple[Buffer, Buffer]] = []

    def made(self, old: Buffer, new: Buffer) -> None:
        """A buffer of the new function stands for one of the old."""
        self._made.append((old, new))

    def expr(self, expr: Expr, stmt: Any, axes: Sequence[Expr]) -> Expr:
        """An expression of an old block, for other values of its axes."""
        for old, new in self._made:
            expr = replace_buffer(expr, old, new)
        return substitute(expr, stmt.iter_vars, axes)

    def copy(self, stmt: Any) -> bool:
        """Write a block once more that computes every element on its own; False if it does something else."""
        body = stmt.body
        if not isinstance(body, tirx.BufferStore) or any(
            not index.same_as(axis.var) for index, axis in zip(body.indices, stmt.iter_vars, strict=True)
        ):
            return False
        shape = [int(axis.dom.extent) for axis in stmt.iter_vars]
        name, dtype = str(stmt.name_hint), str(body.buffer.dtype)
        new = self.writer.compute(name, shape, dtype, lambda *axes: self.expr(body.value, stmt, axes))
        self.made(body.buffer, new)
        return True

    def stored(self, stmt: Any, axes: Sequence[Expr]) -> tuple[Buffer, list[Expr], Expr]:
        """What an old block stores where, for other values of its axes."""
        body = stmt.body
        indices = [self.expr(index, stmt, axes) for index in body.indices]
        return body.buffer, indices, self.expr(body.value, stmt, axes)


def substitute(expr: Expr, axes: Sequence[Any], values: Sequence[Expr]) -> Expr:
    """An expression of a block with other values for the block's axes."""
    pairs = list(zip([axis.var for axis in axes], values, strict=True))

    def replaced(var: Any) -> Any:
        return next((value for axis, value in pairs if axis.same_as(var)), var)

    return tvm_ffi.structural_map(expr, (tirx.Var, replaced))


def replace_loads(expr: Expr, buffer: Buffer, value: Expr) -> Expr:
    """An expression in which every load of a buffer is the value instead."""

    def replaced(load: Any) -> Any:
        return value if load.source.same_as(buffer) else load

    return tvm_ffi.structural_map(expr, (TensorLoad, replaced))


def _index(extent: Any) -> Any:
    return tirx.IntImm("int64", int(extent))


def replace_buffer(expr: Expr, old: Buffer, new: Buffer) -> Expr:
    """An expression that loads from another buffer at the same indices."""

    def replaced(load: Any) -> Any:
        return new[tuple(load.indices)] if load.source.same_as(old) else load

    return tvm_ffi.structural_map(expr, (TensorLoad, replaced))
