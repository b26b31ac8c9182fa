"""Grouped convolutions whose groups are no whole vectors: the last vector of a group repeats some columns.

    for row, column, reduction: C        parallel group, column tile, row tile:
    for row, column: epilogue       -->    for reduction: unroll rows: vectorize columns: C (registers)
                                           unroll rows: if row is inside: vectorize columns: epilogue

68 channels of a group are vectors of 16 that begin at 0, 16, 32, 48 and 52: the last two compute, and write,
twelve channels twice. Rows beyond the end of the last tile repeat the last row and are not written. Nothing
is padded, and no vector has a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, fork, restate, rule
from tpo.lang.programs import ProgramWriter, Renewal, replace_loads
from tpo.schedule import moves, tiles
from tpo.schedule.tiles import Tile

MAX_TILES = 3  # that are tried
WORTH_REPEATING = 1.1  # how much better a tile must look than one that divides the group
PACKED = "packed_weight"


@dataclass(frozen=True)
class Groups:
    """Sizes of a grouped product, and the tile that holds some of its output."""

    count: int
    rows: int
    columns: int  # of one group
    tile: Tile

    @property
    def shape(self) -> list[int]:
        """Groups, rows and columns, counted up to whole tiles."""
        rows = -(-self.rows // self.tile.rows) * self.tile.rows
        return [self.count, rows, -(-self.columns // self.tile.columns) * self.tile.columns]

    def row(self, counted: Any) -> Any:
        """The row that one of the counted ones stands for."""
        return tirx.min(counted, tirx.const(self.rows - 1, str(counted.ty.dtype)))

    def column(self, group: Any, counted: Any) -> Any:
        """The column, among those of all groups, that one of a group's counted ones stands for."""
        lanes, last = self.tile.lanes, self.columns - self.tile.lanes
        start = tirx.min(counted // lanes * lanes, tirx.const(last, str(counted.ty.dtype)))
        return group * self.columns + start + counted % lanes


@rule(target="cpu", on="function", when=analysis.is_fresh)
def grouped_contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Compute some columns of every group twice."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None or roles.outer:
        decline("without its padding it is no plain contraction")
    columns = analysis.iter_extents(sch, anchor)[roles.column]
    if roles.group == columns:
        decline("it has no groups")
    if not any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"])):
        decline("its weights are not constant")
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    epilogue = moves.collect_epilogue(sch, anchor)
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    rows = analysis.iter_extents(sch, epilogue)[0]
    tile = fork("tile", promising_tiles(rows, roles.group, dtype, hw))
    names = [str(sch.get(block).name_hint) for block in (anchor, epilogue)]
    groups = Groups(columns // roles.group, rows, roles.group, tile)
    sch = restate(program(sch, names, roles.vector, groups))
    sch.annotate(sch.get_sblock(PACKED), moves.AT_COMPILE_TIME, 1)
    anchor, epilogue = (sch.get_sblock(name) for name in names)
    init = tiles.tile_loops(sch, anchor, epilogue, tile.rows, tile, hw)
    for block in analysis.blocks_except(sch, anchor, epilogue, init):
        moves.elementwise(sch, block, hw)


def promising_tiles(rows: int, columns: int, dtype: str, hw: Hardware) -> list[Tile]:
    """The best looking tiles for one group, if they are better than those that divide it."""
    if columns < hw.lanes(dtype):
        decline("its groups are smaller than a vector")

    def worth(tile: Tile) -> float:
        return tile.score(rows, dtype, hw) * tile.useful(rows, columns)

    ranked = tiles.padded_tiles(rows, columns, dtype, hw)
    plain = max(tile.score(rows, dtype, hw) for tile in tiles.dividing_tiles(rows, columns, dtype, hw))
    if worth(ranked[0]) < WORTH_REPEATING * plain:
        decline("its groups divide well")
    return ranked[:MAX_TILES]


def program(sch: Any, names: list[str], weights: Any, groups: Groups) -> Any:
    """The function with an axis for groups; `names` are anchor and epilogue."""
    anchor, epilogue = names
    writer = ProgramWriter(sch.mod["main"])
    renewal = Renewal(writer)
    for block in analysis.blocks(sch):
        stmt, extents = sch.get(block), analysis.iter_extents(sch, block)
        if str(stmt.name_hint) == anchor:
            made = product(writer, renewal, stmt, weights, extents[2:], groups)
        elif str(stmt.name_hint) == epilogue:
            value = finished(renewal, stmt, sch.get(sch.get_sblock(anchor)).writes[0].source, made, groups)
            writer.write(epilogue, groups.shape, value, lambda _, row, __: row < groups.rows)
        elif not renewal.copy(stmt):
            decline("it does more than prepare, multiply and finish")
    return writer.finish()


def product(
    writer: ProgramWriter, renewal: Renewal, stmt: Any, weights: Any, summed: list[int], groups: Groups
) -> Any:
    """The blocks that pack the weights and multiply with them; the buffer of the products."""
    dtype = str(stmt.writes[0].source.dtype)
    loads = analysis.product_of(stmt.body)
    if loads is None or any(str(load.source.dtype) != dtype for load in loads):
        decline("it multiplies other numbers than it adds up")
    vector, streamed = sorted(loads, key=lambda load: not load.source.same_as(weights))
    width = groups.tile.columns

    def weight(group: Any, tile: Any, *others: Any) -> Any:
        *inner, column = others
        return renewal.expr(vector, stmt, [0, groups.column(group, tile * width + column), *inner])

    shape = [groups.count, groups.shape[2] // width, *summed, width]
    packed = writer.compute(PACKED, shape, dtype, weight)

    def element(group: Any, row: Any, column: Any, *inner: Any) -> Any:
        # All columns of a group read the same: its first one says what.
        read = renewal.expr(streamed, stmt, [groups.row(row), group * groups.columns, *inner])
        place = (group, column // width, *inner, column % width)
        return Analyzer().simplify(read) * packed[place]

    return writer.compute(str(stmt.name_hint), groups.shape, dtype, element, summed)


def finished(renewal: Renewal, stmt: Any, old: Any, made: Any, groups: Groups) -> Any:
    """What the epilogue writes where, with the new products in place of the old."""

    def stored(group: Any, row: Any, column: Any) -> tuple[Any, list[Any], Any]:
        result, indices, value = renewal.stored(stmt, [row, groups.column(group, column)])
        return result, indices, replace_loads(value, old, made[group, row, column])

    return stored
