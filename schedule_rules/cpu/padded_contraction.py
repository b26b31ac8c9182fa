"""Matmul, dense and convolution whose sizes have no good divisors: pad them up to whole register tiles.

    for rows, column, reduction: C        for rows, reduction: A = input or 0
    for rows, column: epilogue       -->  parallel column tile, row tile:
                                            for reduction: unroll rows: vectorize columns: C (registers)
                                            unroll rows: vectorize columns: if inside: epilogue

The input is copied once into a matrix of whole row tiles, with its padding and its window positions
written out (im2col); constant weights get zero columns at compile time, those that are computed get them
in a copy. 1000 classes then are 63 vectors of 16, a 13x13 map is 170 rows in tiles of 5, and the 197
tokens of 12 heads are 12 times 198.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tpo.hardware import Hardware, dtype_bytes
from tpo.lang import analysis, decline, fork, rule
from tpo.schedule import moves, tiles
from tpo.schedule.tiles import Tile

MAX_TILES = 3  # that are tried
WORTH_PADDING = 1.1  # how much better a tile must look than one that divides the output
MANY_VECTORS = 8  # in a row of the output: more than what its end costs
FEW_ROWS = 2  # of the input, for which arithmetic is not what takes the time
PRODUCTS_PER_COPY = 6  # multiplications that take as long as copying one element


@dataclass(frozen=True)
class Product:
    """Sizes of a product of matrices, and what must be copied to pad it."""

    rows: int
    columns: int
    expanded: bool  # whether the copy of the input is larger than the input
    constant: bool  # whether the weights are

    def padded_worth(self, tile: Tile, dtype: str, hw: Hardware) -> float:
        """How good a tile looks, with what it adds for padding and for the copies."""
        copies = 1.0
        if self.expanded or self.rows % tile.rows:
            copies += PRODUCTS_PER_COPY / self.columns
        if not self.constant and self.columns % tile.columns:
            copies += PRODUCTS_PER_COPY / self.rows
        return tile.score(self.rows, dtype, hw) * tile.useful(self.rows, self.columns) / copies


@rule(target="cpu", on="function", when=analysis.is_fresh)
def padded_contraction(sch: Any, root: Any, hw: Hardware) -> None:
    """Pad rows and columns up to whole register tiles."""
    anchor = analysis.single_contraction(sch)
    if anchor is None:
        decline("its work is not one contraction")
    moves.inline_copies(sch, anchor)
    roles = analysis.contraction(sch, anchor)
    if roles is None:
        decline("without its padding it is no contraction")
    product = product_of(sch, anchor, roles, hw)
    dtype = str(sch.get(anchor).writes[0].source.dtype)
    tile = fork("tile", promising_tiles(product, dtype, hw))
    epilogue = moves.collect_epilogue(sch, anchor)
    matrix = sch.reindex(anchor, ("read", streamed_index(sch, anchor, roles)))
    tiles.flatten_rows(sch, anchor, epilogue, roles)
    if not flatten_matrix(sch, matrix, roles, analysis.iter_extents(sch, anchor)):
        decline("the rows of its input are not those of its output")
    axes = len(analysis.iter_extents(sch, anchor))
    outer = len(roles.outer)
    sch.pad_einsum(anchor, [*[1] * outer, tile.rows, tile.columns, *[1] * (axes - outer - 2)])
    packing = absorb_padding(sch, anchor, epilogue, matrix, roles, product, tile)
    if splits_vectors(product.columns, tile):
        epilogue = sch.cache_write(anchor, 0, "global")
    init = tiles.tile_loops(sch, anchor, epilogue, tile.rows, tile, hw)
    done = [anchor, epilogue, init]
    if packing is not None and not product.constant:
        schedule_packing(sch, packing, roles, tile, hw)
        done.append(packing)
    for block in analysis.blocks_except(sch, *done):
        moves.elementwise(sch, block, hw)


def splits_vectors(columns: int, tile: Tile) -> bool:
    """Whether many vectors of a tile lie across the ends of the output's rows.

    Whole vectors then go to memory, and from there to the output with all that follows.
    """
    return 2 * math.gcd(columns, tile.lanes) < tile.lanes and columns >= MANY_VECTORS * tile.lanes


def schedule_packing(sch: Any, packing: Any, roles: analysis.Contraction, tile: Tile, hw: Hardware) -> None:
    """Write the tiles of computed weights in order; which elements are padding the compiler finds out."""
    points = analysis.work(sch, packing)
    loops = list(sch.get_loops(packing))
    column_tile, column = sch.split(loops.pop(roles.column_dim), [None, tile.columns])
    outer, depth = loops[: len(roles.outer)], loops[len(roles.outer) :]
    sch.reorder(*outer, column_tile, *depth, column)
    moves.parallel_outer(sch, [*outer, column_tile, *depth], points, hw)


def promising_tiles(product: Product, dtype: str, hw: Hardware) -> list[Tile]:
    """The best looking tiles, if they are better than those that need no padding."""
    rows, columns = product.rows, product.columns
    if rows <= FEW_ROWS and 2 * moves.lanes_for(columns, hw.lanes(dtype)) >= hw.lanes(dtype):
        decline("it takes as long as reading its weights, and padding would add to them")

    def worth(tile: Tile) -> float:
        return product.padded_worth(tile, dtype, hw)

    ranked = sorted(tiles.padded_tiles(rows, columns, dtype, hw), key=worth, reverse=True)
    plain = max(tile.score(rows, dtype, hw) for tile in tiles.dividing_tiles(rows, columns, dtype, hw))
    if worth(ranked[0]) < WORTH_PADDING * plain:
        decline("its sizes divide well")
    return ranked[:MAX_TILES]


def product_of(sch: Any, anchor: Any, roles: analysis.Contraction, hw: Hardware) -> Product:
    """The product, if it is plain, or one for each of the outermost axes, and its copies stay in cache."""
    extents = analysis.iter_extents(sch, anchor)
    rows, columns = math.prod(extents[k] for k in roles.rows), extents[roles.column]
    if roles.group != columns or roles.outer != tuple(range(len(roles.outer))):
        decline("it is no plain product")
    source = sch.get(anchor).reads[streamed_index(sch, anchor, roles)].source
    elements = math.prod(extents[k] for k in (*roles.outer, *roles.rows, *roles.reduction))
    expanded = elements > math.prod(int(dim) for dim in source.shape)
    if expanded and elements * dtype_bytes(str(source.dtype)) > hw.l2_bytes:
        decline("the copy of its input would not stay in cache")
    constant = any(roles.vector.same_as(buffer) for buffer in analysis.layout_free(sch.mod["main"]))
    return Product(rows, columns, expanded, constant)


def streamed_index(sch: Any, anchor: Any, roles: analysis.Contraction) -> int:
    """Position, among the anchor's reads, of the operand that is broadcast."""
    stmt = sch.get(anchor)
    others = (roles.vector, stmt.writes[0].source)
    found = [
        k for k, read in enumerate(stmt.reads) if not any(read.source.same_as(buffer) for buffer in others)
    ]
    if len(found) != 1:
        decline("it multiplies something with itself")
    return found[0]


def flatten_matrix(sch: Any, matrix: Any, roles: analysis.Contraction, extents: list[int]) -> bool:
    """Make the rows of the copied input one dimension; False if they are not those of the output."""
    shape = [int(dim) for dim in sch.get(matrix).writes[0].source.shape]
    outer, row_dims = len(roles.outer), len(roles.rows)
    if shape[:outer] != extents[:outer] or math.prod(shape[outer : outer + row_dims]) != extents[outer]:
        return False

    def flatten(*dims: Any) -> list[Any]:
        row = 0
        for extent, dim in zip(shape[outer : outer + row_dims], dims[outer:], strict=False):
            row = row * extent + dim
        return [*dims[:outer], row, *dims[outer + row_dims :]]

    sch.transform_layout(matrix, ("write", 0), moves.index_map(flatten, len(shape)))
    return True


def absorb_padding(
    sch: Any,
    anchor: Any,
    epilogue: Any,
    matrix: Any,
    roles: analysis.Contraction,
    product: Product,
    tile: Tile,
) -> Any:
    """Merge the copies that padding made into what is there: the input's copy, packing, the epilogue.

    Returns the block that packs the weights; None if they are read in order as they are.
    """
    for block in sch.get_producers(matrix):
        if analysis.is_injective(sch, block):
            moves.try_inline(sch, block)
    packed = None
    for block in sch.get_producers(anchor):
        if sch.get(block).reads[0].source.same_as(roles.vector):
            packed = block
        elif not sch.get(block).same_as(sch.get(matrix)):
            moves.try_inline(sch, matrix)
        elif not product.expanded and analysis.is_copy(sch, matrix):
            moves.try_inline(sch, matrix)  # the rows needed no padding
    for block in sch.get_consumers(anchor):
        if not sch.get(block).same_as(sch.get(epilogue)):
            moves.try_inline(sch, block)
    if packed is None and not product.constant and roles.column_dim == len(roles.vector.shape) - 1:
        return None
    if packed is None:
        packed = sch.cache_read(anchor, analysis.read_index(sch, anchor, roles.vector), "global")
    if product.constant:
        sch.annotate(packed, moves.AT_COMPILE_TIME, 1)
    layout = tiles.pack_columns(roles.column_dim, len(roles.vector.shape), tile.columns)
    sch.transform_layout(packed, ("write", 0), layout)
    return packed
