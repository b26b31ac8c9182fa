"""Attention: a few rows of queries meet all keys and all values while their scores stay in the L1 cache.

    for m, n, d: S = Q K'               parallel head, rows:
    for m, n: f(S), its softmax P         turn the keys around, once
    for m, e, n: O = P V          -->     for m tile:
                                            for n tile: for d: unroll m: vectorize n: S (registers)
                                            for m: largest, powers and total of f(S) of a row
                                            for e tile: for n: unroll m: vectorize e: O (registers)

Both products hold register tiles of the same rows, as in `contraction`. Nothing of the scores of a head is
written to memory but those of one tile of rows.
"""

from __future__ import annotations

import math
from typing import Any

from _attention_program import Attention, program, read

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, restate, rule
from tpo.schedule import moves, partials
from tpo.schedule.tiles import Tile

MAX_HEIGHTS = 3  # of tiles, that are tried
MAX_ROWS = 16
MAX_PARTIALS = 4  # vectors of partial results
CHUNKS_PER_CORE = 2  # pieces of work a core gets, if the rows allow it
MAX_UNROLL = 8  # steps of a reduction, and vectors of a pass, in one straight piece of code


@rule(target="cpu", on="function", when=analysis.is_fresh)
def attention(sch: Any, root: Any, hw: Hardware) -> None:
    """Scores, softmax and the product with the values, a tile of rows after the other."""
    found = read(sch)
    if found is None:
        decline("it is not attention")
    lanes = hw.lanes(found.dtype)
    height = fork("rows", heights(found, hw))
    sch = restate(program(sch, found, height, lanes))
    keys, columns = (widest(width, height, found.dtype, hw) for width in padded_widths(found, lanes))
    stages = {name: split_passes(sch, name, lanes) for name in ("largest", "total")}
    place(sch, found, height, columns, stages, hw)
    visit_rows(sch, stages, lanes)
    multiply_queries(sch, keys)
    hold(sch, sch.get_sblock("mixed"), columns, "keys")
    prepare(sch, lanes)


def padded_widths(found: Attention, lanes: int) -> tuple[int, int]:
    """Columns of the two products: keys in whole vectors, and those of the values."""
    return -(-found.keys // lanes) * lanes, found.columns


def heights(found: Attention, hw: Hardware) -> list[int]:
    """Rows of the most promising tiles: those that waste few rows and keep both products busy."""

    def worth(rows: int) -> float:
        tiles = [
            widest(width, rows, found.dtype, hw) for width in padded_widths(found, hw.lanes(found.dtype))
        ]
        useful = found.rows / (-(-found.rows // rows) * rows)
        return useful * sum(tile.score(found.rows, found.dtype, hw) for tile in tiles)

    most = min(MAX_ROWS, found.rows, hw.vector_registers - 3)
    return sorted(range(1, most + 1), key=worth, reverse=True)[:MAX_HEIGHTS]


def widest(columns: int, rows: int, dtype: str, hw: Hardware) -> Tile:
    """The widest register tile of so many rows that divides the columns."""
    lanes = moves.lanes_for(columns, hw.lanes(dtype))
    counts = moves.divisors(columns // lanes, hw.vector_registers)
    fitting = [tile for k in counts if (tile := Tile(lanes, k, rows)).fits(hw)]
    return fitting[-1] if fitting else Tile(lanes, 1, rows)


def split_passes(sch: Any, name: str, lanes: int) -> list[Any]:
    """A reduction of a row in several vectors of partial results."""
    block = sch.get_sblock(name)
    counts = moves.divisors(analysis.iter_extents(sch, block)[-1] // lanes, MAX_PARTIALS)
    width = moves.choose(f"{name}.partials", [lanes * k for k in counts], lanes)
    return partials.split_reduction(sch, block, width)


def place(
    sch: Any, found: Attention, height: int, columns: Tile, stages: dict[str, list[Any]], hw: Hardware
) -> None:
    """Cut the result into tiles, and compute everything where it is needed."""
    *outer, row, column = sch.get_loops(sch.get_sblock("result"))
    count = int(sch.get(row).extent) // height
    pieces = moves.divisors(count, count)
    enough = [k for k in pieces if math.prod(found.outer) * (count // k) >= CHUNKS_PER_CORE * hw.cores]
    chunk, tile, row = sch.split(row, [None, moves.choose("row_tiles", pieces, (enough or [1])[-1]), height])
    column_tile, vectors, lane = sch.split(column, [None, columns.vectors, columns.lanes])
    sch.reorder(*outer, chunk, tile, column_tile, row, vectors, lane)
    head = sch.fuse(*outer, chunk)
    sch.vectorize(lane)
    sch.unroll(vectors)
    sch.unroll(row)
    sch.compute_at(sch.get_sblock("mixed"), column_tile, preserve_unit_loops=True)
    for block in (sch.get_sblock("factor"), *reversed(stages["total"]), sch.get_sblock("powers")):
        sch.compute_at(block, tile, preserve_unit_loops=True)
    for block in reversed(stages["largest"]):
        sch.compute_at(block, tile, preserve_unit_loops=True)
    for name in ("logits", "scores"):
        sch.compute_at(sch.get_sblock(name), tile, preserve_unit_loops=True)
    for name in ("values", "turned"):
        sch.compute_at(sch.get_sblock(name), head, preserve_unit_loops=True)
    if math.prod(found.outer) * found.rows * found.keys * found.depth >= moves.MIN_PARALLEL_FLOPS:
        sch.parallel(head)


def visit_rows(sch: Any, stages: dict[str, list[Any]], lanes: int) -> None:
    """Make all passes over a row of logits in one visit."""
    powers = sch.get_sblock("powers")
    *around, row, key = sch.get_loops(powers)
    for block in reversed(stages["largest"]):
        sch.compute_at(block, row, preserve_unit_loops=True)
    for block in stages["total"]:
        sch.reverse_compute_at(block, row, preserve_unit_loops=True)
    vectors = int(sch.get(key).extent) // lanes
    straight = vectors if vectors <= MAX_UNROLL else 1
    unroll = moves.choose("powers.unroll", moves.divisors(vectors, MAX_UNROLL), straight)
    _, unrolled, lane = sch.split(key, [None, unroll, lanes])
    sch.vectorize(lane)
    sch.unroll(unrolled)
    for several in stages.values():
        partials.vectorize_stages(sch, several, lanes, outside=len(around) + 1)


def multiply_queries(sch: Any, shape: Tile) -> None:
    """Hold tiles of scores in registers, and store them as logits."""
    logits, scores = sch.get_sblock("logits"), sch.get_sblock("scores")
    *_, row, key = sch.get_loops(logits)
    key_tile, key = sch.split(key, [None, shape.columns])
    sch.reorder(key_tile, row, key)
    sch.compute_at(scores, key_tile, preserve_unit_loops=True)
    moves.vectorize_tail(sch, key, shape.lanes)
    sch.unroll(row)
    hold(sch, scores, shape, "depth")


def hold(sch: Any, block: Any, shape: Tile, summed: str) -> None:
    """Accumulate a block, whose last loops are rows, columns and what is summed, in registers."""
    *_, row, column, step = sch.get_loops(block)
    steps = moves.divisors(int(sch.get(step).extent), MAX_UNROLL)
    outer, inner = sch.split(step, [None, moves.choose(f"{summed}.unroll", steps, 1)])
    sch.reorder(outer, inner, row, column)
    sch.set_scope(block, 0, "local")
    moves.vectorize_tail(sch, column, shape.lanes)
    sch.unroll(row)
    sch.unroll(inner)
    moves.vectorize_innermost(sch, sch.decompose_reduction(block, outer))


def prepare(sch: Any, lanes: int) -> None:
    """Copy the values of a head in vectors, and its keys in small squares that are turned in registers."""
    values, turned = sch.get_sblock("values"), sch.get_sblock("turned")
    *_, column = sch.get_loops(values)
    _, lane = sch.split(column, [None, moves.lanes_for(int(sch.get(column).extent), lanes)])
    sch.vectorize(lane)
    *_, depth, key = sch.get_loops(turned)
    depth, lane = sch.split(depth, [None, moves.lanes_for(int(sch.get(depth).extent), lanes)])
    key, step = sch.split(key, [None, lanes])
    sch.reorder(key, depth, step, lane)
    sch.vectorize(lane)
    sch.unroll(step)
