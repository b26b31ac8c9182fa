"""Convolutions of stride 1 and window 3 by Winograd's algorithm: fewer multiplications for more additions.

    for n, h, w, o, r, s, c: Y        parallel block of tiles:
    for n, h, w, o: epilogue   -->      for tile in block: V = B' (input tile) B
                                        for e in t*t: M[e] = V[e] * U[e]       (matrix products, in registers)
                                        for tile in block: Y = A' M A, epilogue

F(m x m, 3 x 3) computes m*m outputs from a tile of t*t inputs, t = m + 2, with t*t products where the plain
sum needs 9*m*m: 2.25 times fewer for m = 2, 4 times for m = 4, at the price of one to two digits. The weights
are transformed at compile time. Where there are few tiles, every pass is a parallel loop of its own. Windows
of 3 along one axis only (a signal, 1x3) need 1.5 or 2 times fewer products. Groups are products of their own.
"""

from __future__ import annotations

import math
from typing import Any

from _winograd_program import POINTS, program, recognise

from tpo.hardware import Hardware, dtype_bytes
from tpo.lang import analysis, decline, fork, restate, rule
from tpo.schedule import moves, tiles

MAX_TILES = 2  # register tiles that are tried
MAX_UNROLL = 8  # steps of a product in one straight piece of code


@rule(target="cpu", on="function", when=analysis.is_fresh)
def winograd(sch: Any, root: Any, hw: Hardware) -> None:
    """Compute m x m outputs at a time from transformed tiles of the input."""
    conv = recognise(sch)
    m = fork("outputs", sorted(POINTS, key=lambda m: conv.cost(m)))
    tile = fork("tile", promising_tiles(conv.tiles(m), conv.group, conv.dtype, hw))
    padded = -(-conv.tiles(m) // tile.rows) * tile.rows
    products = math.prod(conv.tile(m)) * dtype_bytes(conv.dtype)
    tile_bytes, weight_bytes = products * conv.channels, products * conv.inputs * conv.outputs
    in_blocks = fork("order", orders(padded * tile_bytes, weight_bytes, hw)) == "blocks"
    sch = restate(program(sch.mod["main"], conv, m, padded))
    sizes = [k * tile.rows for k in moves.divisors(padded // tile.rows, padded)]
    fitting = [size for size in sizes if size * tile_bytes <= hw.l2_bytes] or sizes[:1]
    several = [size for size in fitting if padded // size >= 2 * hw.cores] or fitting[:1]
    block = moves.choose("block", fitting, several[-1]) if in_blocks else padded
    schedule(sch, tile, block, in_blocks, hw)


def orders(tiles_bytes: int, weight_bytes: int, hw: Hardware) -> list[str]:
    """What may be parallel: blocks of tiles, or where those are few, product after product.

    All transformed tiles together should stay in a cache between the passes over them; every block reads all
    weights again.
    """
    if tiles_bytes > max(hw.l3_bytes, hw.l2_bytes) // 2:
        return ["blocks"]
    few = tiles_bytes <= max(hw.l2_bytes, weight_bytes)
    return ["products", "blocks"] if few else ["blocks", "products"]


def promising_tiles(count: int, columns: int, dtype: str, hw: Hardware) -> list[tiles.Tile]:
    """Register tiles for the products: whole vectors that divide the channels, rows that waste little."""
    fitting = [t for t in tiles.padded_tiles(count, columns, dtype, hw) if columns % t.columns == 0]
    if not fitting:
        decline("its channels are no whole vectors")
    return fitting[:MAX_TILES]


def schedule(sch: Any, tile: tiles.Tile, block: Any, in_blocks: bool, hw: Hardware) -> None:
    """Place the transforms around the products, and hold tiles of the products in registers."""
    names = ("gather", "input_rows", "input", "weight", "product", "output_rows", "output")
    gather, input_rows, left, weight, product, output_rows, output = map(sch.get_sblock, names)
    pack(sch, weight, product, tile)
    p, o, a, b = sch.get_loops(output)
    p_block, p = sch.split(p, [None, block])
    o_tile, o_vector, lane = sch.split(o, [None, tile.vectors, tile.lanes])
    if in_blocks:
        sch.reorder(p_block, o_tile, p, o_vector, a, b, lane)
        sch.parallel(p_block)
    else:
        sch.reorder(p_block, p, o_tile, o_vector, a, b, lane)
        sch.parallel(sch.fuse(p_block, p, o_tile))
    sch.vectorize(lane)
    sch.unroll(a)
    sch.unroll(b)
    sch.compute_at(output_rows, o_vector, preserve_unit_loops=True)
    sch.set_scope(output_rows, 0, "local")
    *_, a, y, lane = sch.get_loops(output_rows)
    sch.vectorize(lane)
    sch.unroll(a)
    sch.unroll(y)
    if in_blocks:
        sch.compute_at(product, o_tile, preserve_unit_loops=True)
        sch.compute_at(left, p_block, preserve_unit_loops=True)
    schedule_input(sch, gather, input_rows, left, hw, alone=not in_blocks)
    schedule_product(sch, product, tile, alone=not in_blocks)


def pack(sch: Any, weight: Any, product: Any, tile: tiles.Tile) -> None:
    """Transform the weights at compile time, into the order in which the products read them."""
    sch.annotate(weight, moves.AT_COMPILE_TIME, 1)
    sch.transform_layout(weight, ("write", 0), tiles.pack_columns(3, 4, tile.columns))
    x, y, c, o = sch.get_loops(weight)
    sch.reorder(c, o, x, y)
    o, lane = sch.split(o, [None, tile.lanes])
    sch.reorder(c, o, x, y, lane)
    sch.vectorize(lane)
    sch.unroll(x)
    sch.unroll(y)


def schedule_input(sch: Any, gather: Any, input_rows: Any, left: Any, hw: Hardware, alone: bool) -> None:
    """Gather a tile, transform its columns and its rows, vectors of channels at a time."""
    x, y, p, c = sch.get_loops(left)[-4:]
    extent = int(sch.get(c).extent)
    lanes = moves.lanes_for(extent, hw.lanes(str(sch.get(left).writes[0].source.dtype)))
    c, lane = sch.split(c, [None, lanes])
    sch.reorder(p, c, x, y, lane)
    sch.vectorize(lane)
    sch.unroll(x)
    sch.unroll(y)
    sch.compute_at(input_rows, c, preserve_unit_loops=True)
    sch.set_scope(input_rows, 0, "local")
    *_, x, s, lane = sch.get_loops(input_rows)
    sch.reorder(s, x, lane)
    sch.vectorize(lane)
    sch.unroll(x)
    sch.unroll(s)
    sch.compute_at(gather, p, preserve_unit_loops=True)
    sch.set_scope(gather, 0, "local")
    *_, c = sch.get_loops(gather)
    _, lane = sch.split(c, [None, lanes])
    sch.vectorize(lane)
    if alone:
        sch.parallel(sch.get_loops(left)[0])


def schedule_product(sch: Any, product: Any, tile: tiles.Tile, alone: bool) -> None:
    """One matrix product for each element of the transformed tiles, in tiles held in registers."""
    x, y, p, o, c = sch.get_loops(product)[-5:]
    p, row = sch.split(p, [None, tile.rows])
    o, vector, lane = sch.split(o, [None, tile.vectors, tile.lanes])
    c, step = sch.split(c, [None, tiles.choose_unroll(int(sch.get(c).extent), MAX_UNROLL)])
    sch.reorder(x, y, o, p, c, step, row, vector, lane)
    copy = sch.cache_write(product, 0, "local")
    sch.reverse_compute_at(copy, p, preserve_unit_loops=True)
    sch.vectorize(lane)
    for loop in (vector, row, step):
        sch.unroll(loop)
    *_, r, columns = sch.get_loops(copy)
    moves.vectorize_tail(sch, columns, tile.lanes)
    sch.unroll(r)
    if alone:
        sch.parallel(sch.fuse(x, y, o))
    init = sch.decompose_reduction(product, c)
    moves.vectorize_innermost(sch, init)
