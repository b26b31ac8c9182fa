"""Matmul, dense and convolution of small integers: instructions that multiply and add several at a time.

    for rows, column, depth: C        parallel column tile, row tile:
    for rows, column: epilogue   -->    for depth / 4: unroll rows, vectors: C[16] += A[4] . B[16, 4]
                                        unroll rows: vectorize columns: epilogue

The tile of int32 sums is held in registers as in `contraction`; what is different is that one instruction
takes a group of neighbouring steps of the reduction (see `tpo.schedule.dot_products`). Weights are packed
as [column tile, ..., depth / 4, column in tile, 4], constant ones at compile time. Where the depth is no
multiple of the group, or rows and columns have no good divisors, the operands are padded with zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from padded_contraction import flatten_matrix, product_of, streamed_index

from tpo.hardware import Hardware
from tpo.lang import Declined, analysis, decline, fork, rule
from tpo.schedule import dot_products, moves, tiles
from tpo.schedule.dot_products import DotProduct
from tpo.schedule.tiles import Tile

MAX_TILES = 6
MAX_UNROLL = 8  # groups of the reduction in one straight piece of code
CHUNKS_PER_CORE = 8  # pieces of work a core gets, unless a search finds better
MAX_TILES_PER_CHUNK = 64
PADDING_COST = 0.9  # what is left of a tile's worth when operands are copied first
SUMS = "int32"


@dataclass(frozen=True)
class Plan:
    """A register tile, the instruction that fills it, and whether operands are padded up to it."""

    tile: Tile
    dot: DotProduct
    padded: bool

    def __str__(self) -> str:
        return f"{self.tile.rows}x{self.tile.columns}{' padded' if self.padded else ''}"


@rule(target="cpu", on="function", when=analysis.is_fresh)
def int8_contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Multiply and add groups of small integers, with the sums in registers."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        decline("without its padding it is no contraction")
    dots = instructions(sch, anchor, roles, hw)
    depth_dim = depth_of(sch, anchor, roles)
    if not dots or depth_dim is None:
        decline("there is no instruction for its types, or the depth of its operands is not contiguous")
    if analysis.iter_extents(sch, anchor)[roles.reduction[-1]] == 1:
        decline("its depth is 1: there is nothing to group")
    plan = fork("tile", plans(sch, anchor, roles, dots, hw))
    dot_products.register()
    epilogue = moves.collect_epilogue(sch, anchor)
    if plan.padded:
        pad_operands(sch, anchor, epilogue, roles, plan)
    else:
        tiles.flatten_rows(sch, anchor, epilogue, roles)
    pack_weights(sch, anchor, roles, depth_dim, plan)
    init, lane = tile_loops(sch, anchor, epilogue, plan, hw)
    for block in analysis.blocks_except(sch, anchor, epilogue, init):
        moves.elementwise(sch, block, hw)
    sch.tensorize(lane, plan.dot.name)


def instructions(sch: Any, anchor: Any, roles: analysis.Contraction, hw: Hardware) -> list[DotProduct]:
    """What this CPU has for the operands, the widest first."""
    if hw.arch != "x86_64" or str(sch.get(anchor).writes[0].source.dtype) != SUMS:
        return []
    data = str(sch.get(anchor).reads[streamed_index(sch, anchor, roles)].source.dtype)
    vnni = hw.has("avx512vnni") or hw.has("avxvnni")
    found = dot_products.for_types(data, str(roles.vector.dtype), vnni, hw.lanes(SUMS))
    needed = {16: "avx512bw", 8: "avx2", 4: "sse2"}
    return [dot for dot in found if hw.has(needed[dot.lanes])]


def depth_of(sch: Any, anchor: Any, roles: analysis.Contraction) -> int | None:
    """Which dimension of the weights the last summed axis is, if it is also the last one of the data."""
    stmt = sch.get(anchor)
    last = stmt.iter_vars[roles.reduction[-1]].var
    operands = [load for load in analysis.loads(stmt.body.value) if not load.source.same_as(stmt.body.buffer)]
    weights, data = sorted(operands, key=lambda load: not load.source.same_as(roles.vector))
    if not data.indices[-1].same_as(last):
        return None
    return next((k for k, index in enumerate(weights.indices) if index.same_as(last)), None)


def plans(
    sch: Any, anchor: Any, roles: analysis.Contraction, dots: list[DotProduct], hw: Hardware
) -> list[Plan]:
    """The most promising tiles, the best first: those that divide the output, and padded ones."""
    extents = analysis.iter_extents(sch, anchor)
    rows = math.prod(extents[k] for k in roles.rows)
    by_lanes = {dot.lanes: dot for dot in dots}
    found: dict[Plan, float] = {}
    if extents[roles.reduction[-1]] % dots[0].group == 0:
        for tile in tiles.dividing_tiles(rows, roles.group, SUMS, hw):
            if tile.lanes in by_lanes:
                found[Plan(tile, by_lanes[tile.lanes], False)] = tile.score(rows, SUMS, hw)
    if can_be_padded(sch, anchor, roles, hw):
        columns = extents[roles.column]
        for tile in tiles.padded_tiles(rows, columns, SUMS, hw):
            if tile.lanes in by_lanes:
                worth = PADDING_COST * tile.useful(rows, columns) * tile.score(rows, SUMS, hw)
                found[Plan(tile, by_lanes[tile.lanes], True)] = worth
    if not found:
        decline("no tile fits its sizes")
    return sorted(found, key=lambda plan: found[plan], reverse=True)[:MAX_TILES]


def can_be_padded(sch: Any, anchor: Any, roles: analysis.Contraction, hw: Hardware) -> bool:
    """Whether it is one product with constant weights, and the copy of its input stays in cache."""
    try:
        return product_of(sch, anchor, roles, hw).constant and not roles.outer
    except Declined:
        return False


def pad_operands(sch: Any, anchor: Any, epilogue: Any, roles: analysis.Contraction, plan: Plan) -> None:
    """Copy the data into a matrix of whole row tiles and groups; give the weights zero columns and steps."""
    matrix = sch.reindex(anchor, ("read", streamed_index(sch, anchor, roles)))
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    if not flatten_matrix(sch, matrix, roles, analysis.iter_extents(sch, anchor)):
        decline("the rows of its input are not those of its output")
    steps = [1] * (len(roles.reduction) - 1)
    sch.pad_einsum(anchor, [plan.tile.rows, plan.tile.columns, *steps, plan.dot.group])
    for block in sch.get_producers(matrix):
        if analysis.is_injective(sch, block):
            moves.try_inline(sch, block)
    for block in sch.get_producers(anchor):
        reads_weights = sch.get(block).reads[0].source.same_as(roles.vector)
        if not reads_weights and not sch.get(block).same_as(sch.get(matrix)):
            moves.try_inline(sch, matrix)
    for block in sch.get_consumers(anchor):
        if not sch.get(block).same_as(sch.get(epilogue)):
            moves.try_inline(sch, block)


def pack_weights(sch: Any, anchor: Any, roles: analysis.Contraction, depth_dim: int, plan: Plan) -> None:
    """Lay weights out as [column tile, ..., group of steps, column in tile, step in group]."""
    packed = next(
        (
            block
            for block in sch.get_producers(anchor)
            if sch.get(block).reads[0].source.same_as(roles.vector) and plan.padded
        ),
        None,
    )
    if packed is None:
        packed = sch.cache_read(anchor, analysis.read_index(sch, anchor, roles.vector), "global")
    if any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"])):
        sch.annotate(packed, moves.AT_COMPILE_TIME, 1)
    columns, group = plan.tile.columns, plan.dot.group

    def layout(*dims: Any) -> list[Any]:
        column, step = dims[roles.column_dim], dims[depth_dim]
        others = [dim for k, dim in enumerate(dims) if k not in (roles.column_dim, depth_dim)]
        return [column // columns, *others, step // group, column % columns, step % group]

    sch.transform_layout(packed, ("write", 0), moves.index_map(layout, len(roles.vector.shape)))


def tile_loops(sch: Any, anchor: Any, epilogue: Any, plan: Plan, hw: Hardware) -> tuple[Any, Any]:
    """Hold tiles of [outer, rows, columns] in registers.

    Returns the block that clears the sums, and the loop that becomes one instruction.
    """
    tile, dot = plan.tile, plan.dot
    worth_threads = 2 * analysis.work(sch, anchor) >= moves.MIN_PARALLEL_FLOPS
    spatial = len(analysis.iter_extents(sch, epilogue))
    *outer, row, column = sch.get_loops(anchor)[:spatial]
    *reduction, last = sch.get_loops(anchor)[spatial:]
    row_tile, row_inner = sch.split(row, [None, tile.rows])
    column_tile, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
    chunks = CHUNKS_PER_CORE * hw.cores
    row_chunk, row_tile = sch.split(row_tile, [None, _tiles_per_chunk(sch, row_tile, column_tile, chunks)])
    groups = moves.divisors(int(sch.get(last).extent) // dot.group, MAX_UNROLL)
    unroll = moves.choose("unroll", groups, max(k for k in groups if k <= 4))
    depth, unrolled, step = sch.split(last, [None, unroll, dot.group])
    sch.reorder(
        *(*outer, column_tile, row_chunk, row_tile),
        *(*reduction, depth, unrolled, row_inner, vector, lane, step),
    )
    sch.reverse_compute_at(epilogue, row_tile, preserve_unit_loops=True)
    sch.set_scope(anchor, 0, "local")
    for loop in (unrolled, row_inner, vector):
        sch.unroll(loop)
    chunk = sch.fuse(*outer, column_tile, row_chunk)
    if worth_threads:
        sch.parallel(chunk)
    *_, row_inner, column_inner = sch.get_loops(epilogue)
    # Of padded columns, vectors of this width are either inside the output or outside of it.
    moves.vectorize_tail(sch, column_inner, math.gcd(analysis.iter_extents(sch, epilogue)[-1], tile.lanes))
    sch.unroll(row_inner)
    init = sch.decompose_reduction(anchor, [*reduction, depth][0])
    moves.vectorize_innermost(sch, init)
    return init, lane


def _tiles_per_chunk(sch: Any, row_tile: Any, column_tile: Any, chunks: int) -> Any:
    """A site for the number of row tiles that use the same weights before another thread may go on."""
    count, columns = int(sch.get(row_tile).extent), int(sch.get(column_tile).extent)
    numbers = moves.divisors(count, MAX_TILES_PER_CHUNK)
    wanted = max(1, count * columns // chunks)
    return moves.choose("row_tiles", numbers, max(k for k in numbers if k <= wanted))
