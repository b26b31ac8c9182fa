"""Matmul and convolution whose rows have no good divisor: the last register tile computes some rows twice.

    for row, column, reduction: C        parallel column tile, row tile:
    for row, column: epilogue       -->    for reduction: unroll rows: vectorize columns: C (registers)
                                           unroll rows: if row is inside: vectorize columns: epilogue

Rows are counted up to a whole number of tiles; those beyond the end read what the last row reads, and are
not written. Nothing is copied or padded: 56x56 pixels are 523 tiles of 6 rows, 7x7 are 10 tiles of 5.
"""

from __future__ import annotations

from typing import Any

from contraction import pack_weights
from tvm import tirx

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, restate, rule
from tpo.lang.programs import ProgramWriter, Renewal
from tpo.schedule import moves, tiles
from tpo.schedule.tiles import Tile

MAX_TILES = 3  # that are tried
TILE_WORTH = 0.8  # share of the best tile's score that makes another one worth a try
WORTH_CLAMPING = 1.02  # how much better a tile must look than one that divides the rows
WORTH_PADDING = 1.1  # how much better one must look that does not divide the columns


@rule(target="cpu", on="function", when=analysis.is_fresh)
def clamped_contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Compute the last rows of the last tile twice."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None or roles.outer or roles.group != analysis.iter_extents(sch, anchor)[roles.column]:
        decline("it is no plain product")
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    epilogue = moves.collect_epilogue(sch, anchor)
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    rows, columns = analysis.iter_extents(sch, epilogue)
    tile = fork("tile", promising_tiles(rows, columns, dtype, hw))
    names = [str(sch.get(block).name_hint) for block in (anchor, epilogue)]
    sch = restate(program(sch, names, rows, -(-rows // tile.rows) * tile.rows))
    anchor, epilogue = (sch.get_sblock(name) for name in names)
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        decline("it is no contraction any more")
    packing = pack_weights(sch, anchor, roles, tile, hw)
    init = tiles.tile_loops(sch, anchor, epilogue, tile.rows, tile, hw)
    for block in analysis.blocks_except(sch, anchor, epilogue, init, *packing):
        moves.elementwise(sch, block, hw)


def promising_tiles(rows: int, columns: int, dtype: str, hw: Hardware) -> list[Tile]:
    """The best looking tiles whose columns divide the output, if others are not better."""

    def worth(tile: Tile) -> float:
        return tile.score(rows, dtype, hw) * tile.useful(rows, columns)

    padded = tiles.padded_tiles(rows, columns, dtype, hw)
    clamped = [tile for tile in padded if columns % tile.columns == 0 and rows % tile.rows]
    plain = max(tile.score(rows, dtype, hw) for tile in tiles.dividing_tiles(rows, columns, dtype, hw))
    if not clamped or WORTH_PADDING * worth(clamped[0]) < worth(padded[0]):
        decline("its columns are no whole vectors")
    if worth(clamped[0]) < WORTH_CLAMPING * plain:
        decline("its rows divide well")
    return [tile for tile in clamped if worth(tile) > TILE_WORTH * worth(clamped[0])][:MAX_TILES]


def program(sch: Any, names: list[str], rows: int, padded: int) -> Any:
    """The function with its product counted up to `padded` rows; `names` are anchor and epilogue."""
    anchor, epilogue = names
    writer = ProgramWriter(sch.mod["main"])
    renewal = Renewal(writer)
    for block in analysis.blocks(sch):
        stmt, extents = sch.get(block), analysis.iter_extents(sch, block)
        if str(stmt.name_hint) == anchor:
            buffer, shape = stmt.writes[0].source, [padded, extents[1]]
            element = product_of_last(stmt, rows, renewal)
            renewal.made(buffer, writer.compute(anchor, shape, str(buffer.dtype), element, extents[2:]))
        elif str(stmt.name_hint) == epilogue:
            shape = [padded, extents[1]]
            writer.write(epilogue, shape, stored(stmt, renewal), lambda row, _: row < rows)
        elif not renewal.copy(stmt):
            decline("it does more than prepare, multiply and finish")
    return writer.finish()


def product_of_last(stmt: Any, rows: int, renewal: Renewal) -> Any:
    """What the anchor adds up, for rows beyond the end that of the last row."""

    def element(row: Any, *others: Any) -> Any:
        last = tirx.min(row, tirx.const(rows - 1, str(row.ty.dtype)))
        return renewal.expr(stmt.body.value.b, stmt, [last, *others])

    return element


def stored(stmt: Any, renewal: Renewal) -> Any:
    """What the epilogue writes where."""
    return lambda *axes: renewal.stored(stmt, axes)
