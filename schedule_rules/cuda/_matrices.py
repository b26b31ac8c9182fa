"""A contraction as a product of padded matrices, each step of it a block that a GPU rule can place.

    for n, y, x, o, r, s, c:        for b, i, k: left[b, i, k] = P[n, y + r, x + s, c]   (0 beyond the edges)
      Y += P[..] * W[..]       -->  for b, k, j: right[b, k, j] = W[r, s, c, o]
    for n, y, x, o: E(Y)            for b, i, j, k: product[b, i, j] += left[b, i, k] * right[b, k, j]
                                    for b, i, j: E(product) where the old function has an element

`left` and `right` are what threads copy to shared memory together: nobody ever sees them whole. Sizes are
filled up to multiples, so that every tile is a whole one, whatever the old sizes were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from tpo.hardware import Gpu
from tpo.lang import PerfectTile, analysis, decline, fork, restate
from tpo.lang.programs import ProgramWriter, Renewal, replace_loads
from tpo.schedule import moves

Expr = Any
STEPS = (1, 2, 3)  # of the depth whose operands are in shared memory at once


@dataclass(frozen=True)
class Matrices:
    """The blocks of a product of matrices, their sizes, and the types of what is multiplied and summed up."""

    sch: Any
    left: Any
    right: Any
    product: Any
    output: Any
    sizes: tuple[int, int, int]  # rows, columns, depth
    operand: str
    total: str
    straight: bool  # whether both operands are read in the order of memory, and nothing else is


def as_matrices(sch: Any, multiples: tuple[int, int, int]) -> Matrices:
    """Restate a function whose work is one contraction; rows, columns and depth become multiples."""
    anchor = analysis.single_contraction(sch)
    roles = None if anchor is None else analysis.contraction(sch, anchor)
    if anchor is None or roles is None:
        decline("its work is not one contraction")
    epilogue = moves.collect_epilogue(sch, anchor)
    if moves.downstream(sch, epilogue):
        decline("something else is computed from its result")
    program = _Program(sch, anchor, epilogue, roles, multiples)
    made = restate(program.write())
    for block in analysis.blocks(made):
        if str(made.get(block).name_hint) not in _NAMES and not moves.try_inline(made, block):
            decline("what it multiplies cannot be computed on the way")
    left, right, product, output = (made.get_sblock(name) for name in _NAMES)
    operand, total = (str(made.get(block).writes[0].source.dtype) for block in (left, product))
    return Matrices(made, left, right, product, output, program.padded, operand, total, program.straight)


_NAMES = ("left", "right", "product", "output")


class _Program:
    """The new program while it is written."""

    def __init__(
        self, sch: Any, anchor: Any, epilogue: Any, roles: analysis.Contraction, multiples: Sequence[int]
    ) -> None:
        self._sch, self._anchor, self._epilogue, self._roles = sch, anchor, epilogue, roles
        self._stmt, self._last = sch.get(anchor), sch.get(epilogue)
        self._extents = analysis.iter_extents(sch, anchor)
        rows, depth = ([self._extents[k] for k in axes] for axes in (roles.rows, roles.reduction))
        self._groups = self._extents[roles.column] // roles.group
        self._batch = math.prod(self._extents[k] for k in roles.outer) * self._groups
        self.sizes = (math.prod(rows), roles.group, math.prod(depth))
        pairs = zip(self.sizes, multiples, strict=True)
        high, wide, deep = (-(-size // multiple) * multiple for size, multiple in pairs)
        self.padded = high, wide, deep
        product = analysis.product_of(self._stmt.body)
        assert product is not None, "it is a contraction"
        vector, streamed = product if product[0].source.same_as(roles.vector) else product[::-1]
        self._vector, self._streamed = vector, streamed
        last = self._stmt.iter_vars[roles.reduction[-1]].var
        column = self._stmt.iter_vars[roles.column].var
        self.straight = (
            self.padded == self.sizes
            and streamed.indices[-1].same_as(last)
            and vector.indices[-1].same_as(column)
            and not analysis.blocks_except(sch, anchor, epilogue)
        )

    def write(self) -> Any:
        """The function, block by block."""
        writer = ProgramWriter(self._sch.mod["main"])
        renewal = Renewal(writer)
        for block in analysis.blocks_except(self._sch, self._anchor, self._epilogue):
            if not renewal.copy(self._sch.get(block)):
                decline("it does more than pad, multiply and finish")
        rows, columns, depth = self.padded

        def element(load: Any, place: tuple[Expr, Expr, Expr, Expr], inside: list[Expr]) -> Expr:
            read = renewal.expr(load, self._stmt, self._old(*place))
            zero = tirx.const(0, str(load.source.dtype))
            return tirx.if_then_else(tirx.all(*inside), read, zero) if inside else read

        left = writer.compute(
            "left",
            [self._batch, rows, depth],
            str(self._streamed.source.dtype),
            lambda b, i, k: element(self._streamed, (b, i, _ZERO, k), self._inside(i=i, k=k)),
        )
        right = writer.compute(
            "right",
            [self._batch, depth, columns],
            str(self._vector.source.dtype),
            lambda b, k, j: element(self._vector, (b, _ZERO, j, k), self._inside(j=j, k=k)),
        )
        buffer = self._stmt.writes[0].source
        dtype = str(buffer.dtype)
        product = writer.compute(
            "product",
            [self._batch, rows, columns],
            dtype,
            lambda b, i, j, k: _cast(left[b, i, k], dtype) * _cast(right[b, k, j], dtype),
            summed=[depth],
        )

        def stored(b: Expr, i: Expr, j: Expr) -> tuple[Any, list[Expr], Expr]:
            old = self._old(b, i, j, _ZERO)[: len(self._last.iter_vars)]
            target, indices, _ = renewal.stored(self._last, old)
            value = replace_loads(self._last.body.value, buffer, product[b, i, j])
            return target, indices, renewal.expr(value, self._last, old)

        guarded = self._inside(i=0, j=0)
        writer.write(
            "output",
            [self._batch, rows, columns],
            stored,
            (lambda b, i, j: tirx.all(*self._inside(i=i, j=j))) if guarded else None,
        )
        return writer.finish()

    def _old(self, b: Expr, i: Expr, j: Expr, k: Expr) -> list[Expr]:
        """The axes of the old contraction at a place of the matrices."""
        roles, found = self._roles, [_ZERO] * len(self._extents)
        group, outer = (b % self._groups, b // self._groups) if self._groups > 1 else (_ZERO, b)
        for axes, place in ((roles.outer, outer), (roles.rows, i), (roles.reduction, k)):
            for axis, index in zip(axes, _apart(place, [self._extents[k] for k in axes]), strict=True):
                found[axis] = index
        found[roles.column] = group * roles.group + j if self._groups > 1 else j
        return found

    def _inside(self, **place: Expr) -> list[Expr]:
        """What must hold of a place for the old function to have it, where that is not always so."""
        limits = dict(zip("ijk", zip(self.sizes, self.padded, strict=True), strict=True))
        return [
            place[name] < size for name, (size, padded) in limits.items() if name in place and size < padded
        ]


_ZERO = tirx.IntImm("int64", 0)


def _apart(place: Expr, extents: Sequence[int]) -> list[Expr]:
    """A place in some axes that were made one."""
    found: list[Expr] = []
    for position, extent in reversed(list(enumerate(extents))):
        found.append(place % extent if position else place)
        place = place // extent
    return found[::-1]


def _cast(value: TensorLoad, dtype: str) -> Expr:
    return value if str(value.source.dtype) == dtype else tirx.Cast(dtype, value)


def fork_steps(found: Matrices, hw: Gpu, most: int) -> int:
    """How many steps of the depth have operands in shared memory; there are no more than `most`."""
    overlaps = found.straight and hw.has_async_copy
    return fork("steps", [steps for steps in STEPS if steps == 1 or (overlaps and steps <= most)])


def tiles(sch: Any, loop: Any, parts: int, most: int, inner: int, middle: int = 1) -> PerfectTile:
    """Tiles of a loop; preferred is one with `inner` steps inside, and `middle` around those, or fewer."""
    extent = int(sch.get(loop).extent)
    last = moves.divisor_at_most(extent, inner)
    around = moves.divisor_at_most(extent // last, middle)
    preferred = (extent // last // around, around, last) if parts == 3 else (extent // last, last)
    return PerfectTile.of(sch, loop, parts, most, preferred)


def copy_together(sch: Any, copy: Any, loop: Any, threads: Sequence[tuple[str, Any]], width: Any) -> None:
    """Let all threads of a block fill a tile in shared memory, neighbours next to each other.

    `threads` are names of the GPU's thread axes with their extents, and `width` elements are one access.
    """
    sch.set_scope(copy, 0, "shared.dyn")
    sch.compute_at(copy, loop, preserve_unit_loops=True)
    spread(sch, copy, 3, threads, width)


def spread(sch: Any, block: Any, dims: int, threads: Sequence[tuple[str, Any]], width: Any = None) -> None:
    """Give the last loops of a block to all threads of its block of threads."""
    fused = sch.fuse(*sch.get_loops(block)[-dims:])
    widths = [] if width is None else [width]
    _, *bound = sch.split(fused, [None, *(extent for _, extent in threads), *widths])
    for (name, _), part in zip(threads, bound, strict=False):
        sch.bind(part, name)
    if width is not None:
        sch.vectorize(bound[-1])


def overlap(sch: Any, loop: Any, steps: int) -> None:
    """Copy what a later step of the loop needs, without waiting, while an earlier one computes."""
    if steps > 1:
        sch.annotate(loop, "software_pipeline_stage", [0, 0, steps - 1])
        sch.annotate(loop, "software_pipeline_order", [0, 1, 2])
        sch.annotate(loop, "software_pipeline_async_stages", [0])
