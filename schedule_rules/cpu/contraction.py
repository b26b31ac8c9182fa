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
from tpo.schedule import analysis, moves, tiles
from tpo.schedule.tiles import Tile

MAX_CHOICES = 6
CHUNKS_PER_CORE = 8  # where a search starts from


def schedule(sch: Any, hw: Hardware, lanes: int = 0, vectors: int = 0) -> bool:
    """Schedule the function if its work is one contraction; False if it is not."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        return False
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        return False
    epilogue = moves.collect_epilogue(sch, anchor)
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    rows = analysis.iter_extents(sch, epilogue)[-2]
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    fitting = tiles.dividing_tiles(rows, roles.group, dtype, hw)
    if lanes:
        fitting = [tile for tile in fitting if (tile.lanes, tile.vectors) == (lanes, vectors)]
    tile = best_tile(fitting, rows, dtype, hw)
    pack_weights(sch, anchor, roles, tile.columns)
    tile_rows = row_site(sch, fitting, tile, rows, dtype, hw)
    chunks = CHUNKS_PER_CORE * hw.cores if lanes else 0
    init = tiles.tile_loops(sch, anchor, epilogue, tile_rows, tile, chunks)
    for block in analysis.blocks_except(sch, anchor, epilogue, init):
        moves.elementwise(sch, block, hw)
    return True


def choices(sch: Any, hw: Hardware) -> list[dict[str, int]]:
    """The columns of a tile, as lanes and vectors, the most promising first."""
    anchor = analysis.single_contraction(sch)
    roles = analysis.contraction(sch, anchor) if anchor is not None else None
    if roles is None:
        return []
    extents = analysis.iter_extents(sch, anchor)
    rows = math.prod(extents[k] for k in roles.rows)
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    fitting = tiles.dividing_tiles(rows, roles.group, dtype, hw)
    ranked = sorted(fitting, key=lambda tile: tile.score(rows, dtype, hw), reverse=True)
    hopeless = ranked[0].score(rows, dtype, hw) / 3
    promising = [tile for tile in ranked if tile.score(rows, dtype, hw) > hopeless]
    columns = dict.fromkeys((tile.lanes, tile.vectors) for tile in promising)
    return [{"lanes": lanes, "vectors": vectors} for lanes, vectors in list(columns)[:MAX_CHOICES]]


def best_tile(fitting: list[Tile], rows: int, dtype: str, hw: Hardware) -> Tile:
    """The tile with the highest score; among equals the first."""
    return max(fitting, key=lambda tile: tile.score(rows, dtype, hw))


def row_site(sch: Any, fitting: list[Tile], tile: Tile, rows: int, dtype: str, hw: Hardware) -> Any:
    """A site for the rows of a tile with the columns of the given one, whose rows are preferred."""
    hopeless = tile.score(rows, dtype, hw) / 2
    same = [other for other in fitting if (other.lanes, other.vectors) == (tile.lanes, tile.vectors)]
    return moves.site(
        sch, [other.rows for other in same if other.score(rows, dtype, hw) > hopeless], tile.rows
    )


def pack_weights(sch: Any, anchor: Any, roles: analysis.Contraction, columns: int) -> None:
    """Lay constant weights out as [column tile, ..., column in tile], at compile time."""
    if not any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"])):
        return
    index = analysis.read_index(sch, anchor, roles.vector)
    packed = sch.cache_read(anchor, index, "global")
    sch.annotate(packed, moves.AT_COMPILE_TIME, 1)
    layout = tiles.pack_columns(roles.column_dim, len(roles.vector.shape), columns)
    sch.transform_layout(anchor, ("read", index), layout)
