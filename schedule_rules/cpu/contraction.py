"""Matmul, dense and convolution: hold a tile of the output in registers and stream the reduction.

    for rows, column, reduction: C        parallel column tile, row tile:
    for rows, column: epilogue       -->    for reduction: unroll rows: vectorize columns: C (registers)
                                            unroll rows: vectorize columns: epilogue

All row axes (batch, height, width) are fused into one, so that 14x14 and 7x7 maps have useful
divisors. Constant weights are packed so that the inner loop reads them in order: their layout depends
on the columns of a tile, which are a structure each; its rows, the unrolling of the reduction and how
many tiles a thread takes at a time are free.
"""

from __future__ import annotations

from typing import Any

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, rule
from tpo.schedule import moves, tiles

MAX_WIDTHS = 4
# Shares of the best tile's score that make another width, and other rows of the same width, worth a try.
WIDTH_WORTH, HEIGHT_WORTH = 0.6, 0.7


@rule(target="cpu", on="function", when=analysis.is_fresh)
def contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Hold a tile of the output in registers and stream the reduction."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        decline("without its padding it is no contraction")
    row_bytes = analysis.row_bytes(sch, anchor, roles.vector)
    epilogue = moves.collect_epilogue(sch, anchor)
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    rows = analysis.iter_extents(sch, epilogue)[-2]
    dtype = str(sch.get(anchor).writes[0].source.dtype)

    def score(tile: tiles.Tile) -> float:
        return tile.score(rows, dtype, hw, row_bytes)

    ranked = sorted(tiles.dividing_tiles(rows, roles.group, dtype, hw), key=score, reverse=True)
    promising = [tile for tile in ranked if score(tile) > WIDTH_WORTH * score(ranked[0])]
    widths = list(dict.fromkeys((tile.lanes, tile.vectors) for tile in promising))[:MAX_WIDTHS]
    width = fork("columns", widths)
    tile, *others = [tile for tile in ranked if (tile.lanes, tile.vectors) == width]
    pack_weights(sch, anchor, roles, tile.columns)
    heights = [tile.rows, *(other.rows for other in others if score(other) > HEIGHT_WORTH * score(tile))]
    tile_rows = moves.choose("rows", sorted(heights), tile.rows)
    init = tiles.tile_loops(sch, anchor, epilogue, tile_rows, tile, hw)
    for block in analysis.blocks_except(sch, anchor, epilogue, init):
        moves.elementwise(sch, block, hw)


def pack_weights(sch: Any, anchor: Any, roles: analysis.Contraction, columns: int) -> None:
    """Lay constant weights out as [column tile, ..., column in tile], at compile time."""
    if not any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"])):
        return
    index = analysis.read_index(sch, anchor, roles.vector)
    packed = sch.cache_read(anchor, index, "global")
    sch.annotate(packed, moves.AT_COMPILE_TIME, 1)
    layout = tiles.pack_columns(roles.column_dim, len(roles.vector.shape), columns)
    sch.transform_layout(anchor, ("read", index), layout)
