"""Register tiles: which fit the register file, how good they look, and the loops that hold one.

A tile is `rows` x (`lanes` x `vectors`) outputs, accumulated in vector registers while the reduction
streams past. Several rules share it; they differ in how they bring the operands to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tpo.hardware import Hardware
from tpo.lang import analysis
from tpo.schedule import moves

# Rows from which one more row no longer saves weight bandwidth, vectors from which one more no
# longer saves broadcasts, and independent accumulators that hide the latency of two FMA pipes.
ENOUGH_ROWS, ENOUGH_VECTORS, ENOUGH_ACCUMULATORS = 6, 2, 10
MAX_UNROLL = 16  # steps of the reduction in one straight piece of code
MAX_TILES_PER_CHUNK = 256
CHUNKS_PER_CORE = 8  # pieces of work a core gets, unless a search finds better


@dataclass(frozen=True)
class Tile:
    """Outputs held in registers: `vectors` registers of `lanes` columns in each of `rows` rows."""

    lanes: int
    vectors: int
    rows: int

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.lanes * self.vectors

    def fits(self, hw: Hardware) -> bool:
        """Whether the accumulators, one row of weights and one broadcast fit the register file."""
        return self.rows * self.vectors + self.vectors + 1 <= hw.vector_registers

    def score(self, rows: int, dtype: str, hw: Hardware) -> float:
        """A guess of the share of peak arithmetic the tile reaches, to compare tiles by."""
        accumulators = self.rows * self.vectors
        return (
            self.lanes
            / hw.lanes(dtype)
            * min(1, accumulators / ENOUGH_ACCUMULATORS)
            * min(1, (self.rows + 1) / (min(ENOUGH_ROWS, rows) + 1))
            * min(1, (self.vectors + 1) / (ENOUGH_VECTORS + 1))
            + 1e-3 * accumulators / hw.vector_registers
        )


def dividing_tiles(rows: int, columns: int, dtype: str, hw: Hardware) -> list[Tile]:
    """All tiles that fit the registers and divide the output, for every useful vector width."""
    widths, width = [], moves.divisor_at_most(columns, hw.lanes(dtype))
    while width and columns % width == 0:
        widths.append(width)
        width //= 2
    # The widest divisor may be an odd one (10 of 1000): powers of two make better vectors.
    even = moves.lanes_for(columns, hw.lanes(dtype))
    widths += [width for width in (even, even // 2) if width and width not in widths]
    tiles = [
        Tile(width, vectors, tile_rows)
        for width in widths
        for tile_rows in moves.divisors(rows, hw.vector_registers)
        for vectors in moves.divisors(columns // width, hw.vector_registers)
    ]
    return [tile for tile in tiles if tile.fits(hw)]


def padded_tiles(rows: int, columns: int, dtype: str, hw: Hardware) -> list[Tile]:
    """Tiles of full vectors for an output that is padded up to whole tiles, the most promising first."""
    lanes = hw.lanes(dtype)
    tiles = [
        Tile(lanes, vectors, tile_rows)
        for vectors in range(1, math.ceil(columns / lanes) + 1)
        for tile_rows in range(1, min(rows, hw.vector_registers) + 1)
    ]

    def useful(tile: Tile) -> float:
        computed = _round_up(rows, tile.rows) * _round_up(columns, tile.columns)
        return tile.score(rows, dtype, hw) * rows * columns / computed

    return sorted((tile for tile in tiles if tile.fits(hw)), key=useful, reverse=True)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def flatten_rows(sch: Any, anchor: Any, epilogue: Any, roles: analysis.Contraction) -> None:
    """Rewrite both blocks and the buffer between them as [outer, rows fused, columns]."""
    extents = analysis.iter_extents(sch, anchor)

    def gather(*axes: Any) -> list[Any]:
        row = 0
        for position in roles.rows:
            row = row * extents[position] + axes[position]
        return [*(axes[k] for k in roles.outer), row, *axes[roles.column :]]

    spatial = roles.column + 1
    sch.transform_layout(anchor, ("write", 0), moves.index_map(gather, spatial))
    sch.transform_block_layout(anchor, moves.index_map(gather, len(extents)))
    sch.transform_block_layout(epilogue, moves.index_map(gather, spatial))


def pack_columns(position: int, ndim: int, columns: int) -> Any:
    """The layout [column tile, ..., column in tile] of an operand whose dimension `position` is columns."""

    def pack(*dims: Any) -> list[Any]:
        column = dims[position]
        others = [dim for k, dim in enumerate(dims) if k != position]
        return [column // columns, *others, column % columns]

    return moves.index_map(pack, ndim)


def tile_loops(sch: Any, anchor: Any, epilogue: Any, rows: Any, tile: Tile, hw: Hardware) -> Any:
    """Hold tiles of the anchor's [outer, rows, columns] in registers; `rows` may be a sampled value.

    Returns the block that clears the accumulators.

    for outer, row, column, reduction: C     parallel outer, column chunk, row chunk:
    for outer, row, column: epilogue    -->    for column tile, row tile:
                                                 for reduction: unroll rows: vectorize columns: C
                                                 unroll rows: vectorize columns: epilogue
    """
    worth_threads = 2 * analysis.work(sch, anchor) >= moves.MIN_PARALLEL_FLOPS
    spatial = len(analysis.iter_extents(sch, epilogue))
    *outer, row, column = sch.get_loops(anchor)[:spatial]
    *reduction, last = sch.get_loops(anchor)[spatial:]
    row_tile, row_inner = sch.split(row, [None, rows])
    column_tile, column_inner = sch.split(column, [None, tile.columns])
    column_tiles = moves.divisors(int(sch.get(column_tile).extent), MAX_TILES_PER_CHUNK)
    row_chunks = -(-CHUNKS_PER_CORE * hw.cores // column_tiles[-1])
    row_chunk, row_tile = sch.split(row_tile, [None, _row_tiles_per_chunk(sch, row_tile, row_chunks)])
    column_chunk, column_tile = sch.split(column_tile, [None, moves.choose("column_tiles", column_tiles, 1)])
    unroll = moves.divisors(int(sch.get(last).extent), MAX_UNROLL)
    last, last_inner = sch.split(
        last, [None, moves.choose("unroll", unroll, max(k for k in unroll if k <= 4))]
    )
    sch.reorder(
        *(*outer, column_chunk, row_chunk, column_tile, row_tile),
        *(*reduction, last, last_inner, row_inner, column_inner),
    )
    sch.reverse_compute_at(epilogue, row_tile, preserve_unit_loops=True)
    sch.set_scope(anchor, 0, "local")
    moves.vectorize_tail(sch, column_inner, tile.lanes)
    sch.unroll(row_inner)
    sch.unroll(last_inner)
    chunks = sch.fuse(*outer, column_chunk, row_chunk)
    if worth_threads:
        sch.parallel(chunks)
    *_, row_inner, column_inner = sch.get_loops(epilogue)
    # Of padded columns, vectors of this width are either inside the output or outside of it.
    lanes = math.gcd(analysis.iter_extents(sch, epilogue)[-1], tile.lanes)
    moves.vectorize_tail(sch, column_inner, lanes)
    sch.unroll(row_inner)
    init = sch.decompose_reduction(anchor, [*reduction, last][0])
    moves.vectorize_innermost(sch, init)
    return init


def _row_tiles_per_chunk(sch: Any, row_tile: Any, chunks: int) -> Any:
    """A site for the number of row tiles one thread takes at a time; it need not divide their number."""
    count = int(sch.get(row_tile).extent)
    sizes = [1 << k for k in range((min(count, MAX_TILES_PER_CHUNK) - 1).bit_length() + 1)]
    return moves.choose(
        "row_tiles", sizes, max(k for k in sizes if k == 1 or (chunks and k * chunks <= count))
    )
