"""Matmul, dense and convolution: hold a tile of the output in registers and stream the reduction.

    for rows, column, reduction: C        parallel column tile, row tile:
    for rows, column: epilogue       -->    for reduction: unroll rows: vectorize columns: C (registers)
                                            unroll rows: vectorize columns: epilogue

All row axes (batch, height, width) are fused into one, so that 14x14 and 7x7 maps have useful
divisors. Constant weights are packed so that the inner loop reads them in order.
"""

from __future__ import annotations

from typing import Any

from tpo.hardware import Hardware
from tpo.schedule import analysis, moves

# Rows from which one more row no longer saves weight bandwidth, vectors from which one more no
# longer saves broadcasts, and independent accumulators that hide the latency of two FMA pipes.
ENOUGH_ROWS, ENOUGH_VECTORS, ENOUGH_ACCUMULATORS = 6, 2, 10


def schedule(sch: Any, hw: Hardware) -> bool:
    """Schedule the function if its work is one contraction; False if it is not."""
    anchors = [block for block in analysis.blocks(sch) if analysis.contraction(sch, block)]
    if len(anchors) != 1:
        return False
    anchor = anchors[0]
    if any(analysis.is_reduction(sch, block) for block in analysis.blocks_except(sch, anchor)):
        return False
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        return False
    epilogue = moves.collect_epilogue(sch, anchor)
    flatten_rows(sch, anchor, epilogue, roles)
    rows = analysis.iter_extents(sch, epilogue)[-2]
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    vector, tile_rows, tile_vectors = choose_tile(rows, roles.group, dtype, hw)
    tile_columns = vector * tile_vectors
    pack_weights(sch, anchor, roles, tile_columns)

    *outer, row, column = sch.get_loops(epilogue)
    row_tile, row_inner = sch.split(row, [None, tile_rows])
    column_tile, column_inner = sch.split(column, [None, tile_columns])
    sch.reorder(*outer, column_tile, row_tile, row_inner, column_inner)
    sch.compute_at(anchor, row_tile, preserve_unit_loops=True)
    sch.set_scope(anchor, 0, "local")
    moves.vectorize_tail(sch, column_inner, vector)
    sch.unroll(row_inner)

    count = len(roles.reduction)
    *_, row_inner, column_inner = sch.get_loops(anchor)[:-count]
    *reduction, last = sch.get_loops(anchor)[-count:]
    last_outer, last_inner = sch.split(last, [None, moves.divisor_at_most(int(sch.get(last).extent), 4)])
    sch.reorder(*reduction, last_outer, last_inner, row_inner, column_inner)
    moves.vectorize_tail(sch, column_inner, vector)
    sch.unroll(row_inner)
    sch.unroll(last_inner)

    tiles = sch.fuse(*outer, column_tile, row_tile)
    if 2 * analysis.work(sch, anchor) >= moves.MIN_PARALLEL_FLOPS:
        sch.parallel(tiles)
    init = sch.decompose_reduction(anchor, [*reduction, last_outer][0])
    moves.vectorize_innermost(sch, init)
    for block in analysis.blocks_except(sch, anchor, epilogue, init):
        moves.elementwise(sch, block, hw)
    return True


def choose_tile(rows: int, columns: int, dtype: str, hw: Hardware) -> tuple[int, int, int]:
    """Lanes, rows and vectors per row of the register tile, from the sizes and the register file."""
    lanes = hw.lanes(dtype)
    best, best_score = (1, 1, 1), -1.0
    vector = moves.divisor_at_most(columns, lanes)
    while vector >= 1:
        for tile_rows in moves.divisors(rows, hw.vector_registers):
            for vectors in moves.divisors(columns // vector, hw.vector_registers):
                accumulators = tile_rows * vectors
                if accumulators + vectors + 1 > hw.vector_registers:
                    continue
                score = (
                    vector
                    / lanes
                    * min(1, accumulators / ENOUGH_ACCUMULATORS)
                    * min(1, (tile_rows + 1) / (min(ENOUGH_ROWS, rows) + 1))
                    * min(1, (vectors + 1) / (ENOUGH_VECTORS + 1))
                    + 1e-3 * accumulators / hw.vector_registers
                )
                if score > best_score:
                    best, best_score = (vector, tile_rows, vectors), score
        vector //= 2
        if vector == 0 or columns % vector:
            break
    return best


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


def pack_weights(sch: Any, anchor: Any, roles: analysis.Contraction, tile_columns: int) -> None:
    """Lay constant weights out as [column tile, ..., column in tile], at compile time."""
    func = sch.mod["main"]
    if not any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(func)):
        return
    position = roles.column_dim
    index = analysis.read_index(sch, anchor, roles.vector)
    packed = sch.cache_read(anchor, index, "global")
    sch.annotate(packed, "meta_schedule.layout_rewrite_preproc", True)

    def pack(*dims: Any) -> list[Any]:
        column = dims[position]
        others = [dim for k, dim in enumerate(dims) if k != position]
        return [column // tile_columns, *others, column % tile_columns]

    sch.transform_layout(anchor, ("read", index), moves.index_map(pack, len(roles.vector.shape)))
