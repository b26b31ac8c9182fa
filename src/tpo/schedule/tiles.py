"""Register tiles: which fit the register file, how good they look, and the loops that hold one.

A tile is `rows` x (`lanes` x `vectors`) outputs, accumulated in vector registers while the reduction
streams past. Several rules share it; they differ in how they bring the operands to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tpo.hardware import Hardware, dtype_bytes
from tpo.lang import analysis, constrain
from tpo.schedule import moves

# Rows from which one more row no longer saves weight bandwidth, vectors from which one more no
# longer saves broadcasts, and independent accumulators that hide the latency of two FMA pipes.
ENOUGH_ROWS, ENOUGH_VECTORS, ENOUGH_ACCUMULATORS = 4, 2, 10
MANY_ROWS, TOO_MANY_ROWS = 8, 0.97  # rows that are still read as fast as few, and what is left beyond
MAX_UNROLL = 16  # steps of the reduction in one straight piece of code
MAX_TILES_PER_CHUNK = 256
LOADS_SAVED = 0.1  # what a tile gains that needs next to no loads for its arithmetic
CONFLICT = 0.5  # what is left of a tile's speed when its rows push each other out of the L1 cache


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
        """Whether the accumulators, one row of weights and one broadcast fit the register file.

        Where a multiplication and an addition are two instructions, what is between them is there too.
        """
        operands = self.vectors + (1 if hw.fma else 2)
        return self.rows * self.vectors + operands <= hw.vector_registers

    def useful(self, rows: int, columns: int) -> float:
        """The share of the arithmetic that is not for padding, if the output is padded to whole tiles."""
        return rows * columns / (_round_up(rows, self.rows) * _round_up(columns, self.columns))

    def score(self, rows: int, dtype: str, hw: Hardware, row_bytes: int = 0) -> float:
        """A guess of the share of peak arithmetic the tile reaches, to compare tiles by.

        `row_bytes` is how far apart in memory the rows of the streamed operand are, if that is known.
        """
        accumulators = self.rows * self.vectors
        share = (
            self.lanes
            / hw.lanes(dtype)
            * min(1, accumulators / ENOUGH_ACCUMULATORS)
            * min(1, (self.rows + 1) / (min(ENOUGH_ROWS, rows) + 1))
            * min(1, (self.vectors + 1) / (ENOUGH_VECTORS + 1))
        )
        if self.rows > MANY_ROWS:
            share *= TOO_MANY_ROWS
        if row_bytes and rows_in_one_set(self.rows, row_bytes, hw.l1_bytes // hw.l1_ways) > hw.l1_ways:
            share *= CONFLICT
        loads = (self.rows + self.vectors) / accumulators
        return share + LOADS_SAVED / (1 + loads)


def rows_in_one_set(rows: int, row_bytes: int, way_bytes: int) -> int:
    """How many of some rows fall into the same set of a cache, whose ways have `way_bytes` each.

    >>> rows_in_one_set(14, 4096, 4096), rows_in_one_set(14, 2048, 4096), rows_in_one_set(14, 320, 4096)
    (14, 7, 1)
    """
    return -(-rows // (way_bytes // math.gcd(row_bytes, way_bytes)))


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

    def worth(tile: Tile) -> float:
        return tile.score(rows, dtype, hw) * tile.useful(rows, columns)

    return sorted((tile for tile in tiles if tile.fits(hw)), key=worth, reverse=True)


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
    extents = analysis.iter_extents(sch, anchor)
    element = dtype_bytes(str(sch.get(anchor).reads[0].source.dtype))
    row_count, column_tiles = _chunk(extents, spatial, element, rows, tile, hw)
    row_chunk, row_tile = sch.split(row_tile, [None, row_count])
    column_chunk, column_tile = sch.split(column_tile, [None, column_tiles])
    last, last_inner = sch.split(last, [None, choose_unroll(int(sch.get(last).extent), MAX_UNROLL)])
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


def choose_unroll(steps: int, limit: int) -> Any:
    """How many steps of a reduction are one straight piece of code.

    One is preferred: compilers let steps overlap that follow each other, and what the second one reads finds
    no register beside a tile that was made to fill them.
    """
    return moves.choose("unroll", moves.divisors(steps, limit), 1)


def _chunk(
    extents: list[int], spatial: int, element: int, rows: Any, tile: Tile, hw: Hardware
) -> tuple[Any, Any]:
    """Sites for the row tiles and the column tiles that a thread takes at a time; the first need not divide.

    Within a chunk all its row tiles meet all its column tiles: both operands should stay in a core's own
    cache, and there should be work for all cores. `extents` are those of the axes [outer, rows, columns,
    reduction], of which the first `spatial` are no reduction; `element` is the size of a number.
    """
    *batch, all_rows, columns = extents[:spatial]
    outer, depth = math.prod(batch), math.prod(extents[spatial:])
    # Neighbouring rows share what their windows have in common.
    row_bytes, column_bytes = extents[-1] * element, tile.columns * depth * element
    count = min(-(-all_rows // tile.rows), MAX_TILES_PER_CHUNK)
    heights = [*(1 << k for k in range((count - 1).bit_length())), count]
    widths = moves.divisors(columns // tile.columns, MAX_TILES_PER_CHUNK)

    # The column tiles of a chunk stay in the L2 cache from chunk to chunk, its rows in the L1 cache.
    width_wanted = max(k for k in widths if k == 1 or k * column_bytes <= hw.l2_bytes // 2)
    height_wanted = max(k for k in heights if k == 1 or k * tile.rows * row_bytes <= hw.l1_bytes // 4)
    while (
        height_wanted > 1 and outer * (count // height_wanted) * (widths[-1] // width_wanted) < 2 * hw.cores
    ):
        height_wanted = heights[heights.index(height_wanted) - 1]
    height = moves.choose("row_tiles", heights, height_wanted)
    width = moves.choose("column_tiles", widths, width_wanted)
    if len(heights) > 1 and outer * count * widths[-1] >= hw.cores:
        row_chunks = (all_rows + rows * height - 1) // (rows * height)
        chunks = outer * row_chunks * (widths[-1] // width)
        constrain(chunks >= hw.cores, "every core has something to do")
    return height, width
