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

import math
from typing import Any

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, rule
from tpo.schedule import moves, tiles

MAX_WIDTHS = 4
# Shares of the best tile's score that make another width, and other rows of the same width, worth a try.
WIDTH_WORTH, HEIGHT_WORTH = 0.6, 0.7
WORTH_TURNING = 8  # rows for which turning the weights around costs less than reading them across


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
    hold_tiles(sch, anchor, moves.collect_epilogue(sch, anchor), roles, row_bytes, hw)


def hold_tiles(
    sch: Any, anchor: Any, epilogue: Any, roles: analysis.Contraction, row_bytes: int, hw: Hardware
) -> None:
    """Everything after a contraction and what follows it are known: tiles, packing, and all other blocks."""
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
    packing = pack_weights(sch, anchor, roles, tile, hw)
    heights = [tile.rows, *(other.rows for other in others if score(other) > HEIGHT_WORTH * score(tile))]
    tile_rows = moves.choose("rows", sorted(heights), tile.rows)
    init = tiles.tile_loops(sch, anchor, epilogue, tile_rows, tile, hw)
    for block in analysis.blocks_except(sch, anchor, epilogue, init, *packing):
        moves.elementwise(sch, block, hw)


def pack_weights(
    sch: Any, anchor: Any, roles: analysis.Contraction, tile: tiles.Tile, hw: Hardware
) -> list[Any]:
    """Lay weights out as [column tile, ..., column in tile].

    Constant ones at compile time; computed ones where their columns are no neighbours in memory. Returns the
    block that does the latter, which has its schedule.
    """
    constant = any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"]))
    apart = roles.column_dim < len(roles.vector.shape) - 1
    rows = math.prod(analysis.iter_extents(sch, anchor)[len(roles.outer) : -1 - len(roles.reduction)])
    if not constant and not (apart and rows >= WORTH_TURNING):
        return []
    index = analysis.read_index(sch, anchor, roles.vector)
    packed = sch.cache_read(anchor, index, "global")
    layout = tiles.pack_columns(roles.column_dim, len(roles.vector.shape), tile.columns)
    if constant:
        sch.annotate(packed, moves.AT_COMPILE_TIME, 1)
        sch.transform_layout(anchor, ("read", index), layout)
        return []
    sch.transform_layout(anchor, ("read", index), layout)
    turn(sch, packed, roles.column_dim, tile, hw)
    return [packed]


def turn(sch: Any, packed: Any, column_dim: int, tile: tiles.Tile, hw: Hardware) -> None:
    """Copy computed weights in small tiles that are turned in registers: vectors go along the source."""
    points, loops = analysis.work(sch, packed), list(sch.get_loops(packed))
    depth, column = loops.pop(), loops.pop(column_dim)
    widest = hw.lanes(str(sch.get(packed).writes[0].source.dtype))
    lanes, rows = moves.lanes_for(int(sch.get(depth).extent), widest), moves.lanes_for(tile.columns, widest)
    columns, steps, step = sch.split(column, [None, tile.columns // rows, rows])
    depth, lane = sch.split(depth, [None, lanes])
    sch.reorder(*loops, columns, depth, steps, step, lane)
    sch.vectorize(lane)
    sch.unroll(step)
    moves.parallel_outer(sch, [*loops, columns, depth], points, hw)
