"""Matmul, dense and convolution of bytes: widened to 16 bits once, then one instruction for a product.

    for rows, columns, depth:              for depth, columns: B16 = B;  for rows, depth: A16 = A
      C += i32(A) * i32(B)        -->      for depth: unroll rows: vectorize columns: C += A16 * B16 (vwmacc)

RISC-V multiplies 16 bits by 16 bits and adds to 32 in one instruction, but has none from 8 to 32: bytes would
be widened again for every row tile that meets them. Constant weights are widened at compile time.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, restate, rule
from tpo.lang.library import shipped_rule
from tpo.lang.programs import ProgramWriter, Renewal, replace_buffer
from tpo.schedule import moves

BYTES, HALF, SUMS = ("int8", "uint8"), "int16", "int32"
LMUL = 4  # registers of sums in a vector where nobody has tuned


@rule(target="riscv", on="function", when=analysis.is_fresh)
def rvv_int8_contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Widen bytes once, then multiply and add with one instruction."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    product = analysis.product_of(sch.get(anchor).body)
    operands = [load.source for load in product or ()]
    if any(str(buffer.dtype) not in BYTES for buffer in operands) or sums_of(sch, anchor) != SUMS:
        decline("it does not add up products of bytes")
    lmul = fork("lmul", [LMUL, *(k for k in hw.lmuls if k != LMUL)])
    constant = [any(b.same_as(free) for free in analysis.layout_free(sch.mod["main"])) for b in operands]
    sch = restate(widened(sch, anchor, operands))
    for at_compile_time, name in zip(constant, WIDE, strict=True):
        if at_compile_time:
            sch.annotate(sch.get_sblock(name), moves.AT_COMPILE_TIME, 1)
    shipped_rule("contraction").apply(sch, sch.get_sblock("root"), hw.grouped(lmul))


WIDE = ("vector_wide", "streamed_wide")  # blocks of both operands


def sums_of(sch: Any, anchor: Any) -> str:
    """The type of the sums."""
    return str(sch.get(anchor).writes[0].source.dtype)


def widened(sch: Any, anchor: Any, operands: list[Any]) -> Any:
    """The function with both operands of its product in 16 bits."""
    writer = ProgramWriter(sch.mod["main"])
    renewal = Renewal(writer)
    for block in analysis.blocks(sch):
        stmt = sch.get(block)
        if not stmt.same_as(sch.get(anchor)):
            if not _again(stmt, writer, renewal):
                decline("it does more than prepare, multiply and finish")
            continue
        value = stmt.body.value.b
        for buffer, name in zip(operands, WIDE, strict=True):
            value = replace_buffer(value, buffer, _wide(buffer, name, stmt, writer, renewal))
        extents = analysis.iter_extents(sch, block)
        shape = [int(dim) for dim in stmt.body.buffer.shape]
        made = writer.compute(
            str(stmt.name_hint),
            shape,
            SUMS,
            lambda *axes, value=value, stmt=stmt: renewal.expr(value, stmt, axes),
            extents[len(shape) :],
        )
        renewal.made(stmt.body.buffer, made)
        if _is_parameter(stmt.body.buffer, writer):
            writer.write("result", shape, _copied(made, stmt.body.buffer))
    return writer.finish()


def _wide(buffer: Any, name: str, stmt: Any, writer: ProgramWriter, renewal: Renewal) -> Any:
    own = [axis.var for axis in stmt.iter_vars]

    def element(*axes: Any) -> Any:
        return tirx.Cast(HALF, renewal.expr(buffer[tuple(axes)], stmt, own))

    return writer.compute(name, [int(dim) for dim in buffer.shape], HALF, element)


def _copied(source: Any, result: Any) -> Any:
    return lambda *axes: (result, axes, source[tuple(axes)])


def _is_parameter(buffer: Any, writer: ProgramWriter) -> bool:
    return any(buffer.same_as(param) for param in writer.params)


def _again(stmt: Any, writer: ProgramWriter, renewal: Renewal) -> bool:
    """Write a block as it was: into a new buffer, or into a parameter."""
    if _is_parameter(stmt.body.buffer, writer):
        extents = [int(axis.dom.extent) for axis in stmt.iter_vars]
        writer.write(str(stmt.name_hint), extents, lambda *axes: renewal.stored(stmt, axes))
        return True
    return renewal.copy(stmt)
