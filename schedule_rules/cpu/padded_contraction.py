"""Matmul, dense and convolution whose sizes have no good divisors: pad them up to whole register tiles.

    for rows, column, reduction: C        for rows, reduction: A = input or 0
    for rows, column: epilogue       -->  parallel column tile, row tile:
                                            for reduction: unroll rows: vectorize columns: C (registers)
                                            unroll rows: vectorize columns: if inside: epilogue

The input is copied once into a matrix of whole row tiles, with its padding and its window positions
written out (im2col); constant weights get zero columns at compile time. 1000 classes then are 63
vectors of 16, and a 13x13 map is 170 rows in tiles of 5.
"""

from __future__ import annotations

import math
from typing import Any

from tpo.hardware import Hardware, dtype_bytes
from tpo.lang import analysis, decline, fork, rule
from tpo.schedule import moves, tiles
from tpo.schedule.tiles import Tile

MAX_TILES = 3  # that are tried
WORTH_PADDING = 1.1  # how much better a tile must look than one that divides the output


@rule(target="cpu", on="function", when=analysis.is_fresh)
def padded_contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Pad rows and columns up to whole register tiles."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None or not takes(sch, anchor, roles, hw):
        decline("it has no constant weights, or the copy of its input would not stay in cache")
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    tile = fork("tile", promising_tiles(*sizes(sch, anchor, roles), dtype, hw))
    epilogue = moves.collect_epilogue(sch, anchor)
    matrix = sch.reindex(anchor, ("read", streamed_index(sch, anchor, roles)))
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    if not flatten_matrix(sch, matrix, len(roles.rows), analysis.iter_extents(sch, epilogue)[0]):
        decline("the rows of its input are not those of its output")
    axes = len(analysis.iter_extents(sch, anchor))
    sch.pad_einsum(anchor, [tile.rows, tile.columns, *[1] * (axes - 2)])
    absorb_padding(sch, anchor, epilogue, matrix, roles, tile)
    init = tiles.tile_loops(sch, anchor, epilogue, tile.rows, tile, hw)
    for block in analysis.blocks_except(sch, anchor, epilogue, init):
        moves.elementwise(sch, block, hw)


def promising_tiles(rows: int, columns: int, dtype: str, hw: Hardware) -> list[Tile]:
    """The best looking tiles, if they are better than those that need no padding."""
    ranked = tiles.padded_tiles(rows, columns, dtype, hw)
    plain = max(tile.score(rows, dtype, hw) for tile in tiles.dividing_tiles(rows, columns, dtype, hw))
    if ranked[0].useful(rows, columns) * ranked[0].score(rows, dtype, hw) < WORTH_PADDING * plain:
        decline("its sizes divide well")
    return ranked[:MAX_TILES]


def takes(sch: Any, anchor: Any, roles: analysis.Contraction, hw: Hardware) -> bool:
    """Whether this is one plain matrix product with constant weights whose left side fits the L2 cache."""
    rows, columns = sizes(sch, anchor, roles)
    extents = analysis.iter_extents(sch, anchor)
    stmt = sch.get(anchor)
    element = dtype_bytes(str(stmt.reads[streamed_index(sch, anchor, roles)].source.dtype))
    return (
        not roles.outer
        and roles.group == columns
        and any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"]))
        and rows * math.prod(extents[k] for k in roles.reduction) * element <= hw.l2_bytes
    )


def sizes(sch: Any, anchor: Any, roles: analysis.Contraction) -> tuple[int, int]:
    """Rows and columns of the product."""
    extents = analysis.iter_extents(sch, anchor)
    return math.prod(extents[k] for k in roles.rows), extents[roles.column]


def streamed_index(sch: Any, anchor: Any, roles: analysis.Contraction) -> int:
    """Position, among the anchor's reads, of the operand that is broadcast."""
    stmt = sch.get(anchor)
    others = (roles.vector, stmt.writes[0].source)
    return next(
        k for k, read in enumerate(stmt.reads) if not any(read.source.same_as(buffer) for buffer in others)
    )


def flatten_matrix(sch: Any, matrix: Any, row_dims: int, rows: int) -> bool:
    """Make the leading dimensions of the copied input one; False if they are not the rows."""
    shape = [int(dim) for dim in sch.get(matrix).writes[0].source.shape]
    if math.prod(shape[:row_dims]) != rows:
        return False

    def flatten(*dims: Any) -> list[Any]:
        row = 0
        for extent, dim in zip(shape[:row_dims], dims, strict=False):
            row = row * extent + dim
        return [row, *dims[row_dims:]]

    sch.transform_layout(matrix, ("write", 0), moves.index_map(flatten, len(shape)))
    return True


def absorb_padding(
    sch: Any, anchor: Any, epilogue: Any, matrix: Any, roles: analysis.Contraction, tile: Tile
) -> None:
    """Merge the copies that padding made into what is there: the input's copy, packing, the epilogue."""
    for block in sch.get_producers(matrix):
        if analysis.is_injective(sch, block):
            moves.try_inline(sch, block)
    packed = None
    for block in sch.get_producers(anchor):
        if sch.get(block).reads[0].source.same_as(roles.vector):
            packed = block
        elif not sch.get(block).same_as(sch.get(matrix)):
            moves.try_inline(sch, matrix)
    for block in sch.get_consumers(anchor):
        if not sch.get(block).same_as(sch.get(epilogue)):
            moves.try_inline(sch, block)
    if packed is None:  # the columns needed no padding
        packed = sch.cache_read(anchor, analysis.read_index(sch, anchor, roles.vector), "global")
    sch.annotate(packed, moves.AT_COMPILE_TIME, 1)
    layout = tiles.pack_columns(roles.column_dim, len(roles.vector.shape), tile.columns)
    sch.transform_layout(packed, ("write", 0), layout)
