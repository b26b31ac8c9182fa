"""Depthwise convolution: the weights of a window and some neighbouring pixels in registers.

    for y, x, c: P = input or 0             parallel y block, c block:
    for y, x, c, window: D           -->      for c vector, y, x tile (or x block, y, x tile, c vector):
    for y, x, c: epilogue                       for window: unroll x: vectorize c: D (registers)
                                                unroll x: vectorize c: epilogue

Every channel is on its own, so nothing is broadcast: a vector of weights meets a vector of input. Where
the weights of one vector of channels leave room for pixels, the whole window is straight code and they
stay in registers for a whole block of rows; larger windows are loops, and share each weight among more
pixels. Where a block has several vectors of channels, those of a few pixels can come one after the other:
memory is read in its order, in blocks of columns that stay in the L1 cache until the window has passed,
but weights are read again for every tile. Padding is a condition on whole vectors, which the compiler takes
out of straight code; the other way is to write the padded input of a block first, where it stays in cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tpo.hardware import Hardware, dtype_bytes
from tpo.lang import analysis, constrain, decline, fork, rule
from tpo.schedule import moves, tiles

FEW_PIXELS, ENOUGH_PIXELS = 4, 8  # accumulators that hide some, or all, of the multiply-adds' latency
MAX_VECTORS, ENOUGH_VECTORS = 8, 2  # of neighbouring channels in a block
CHUNKS_PER_CORE = 4  # pieces of work a core gets


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution: its block, its sizes, and the operand its window is read from."""

    anchor: Any
    rows: int
    columns: int
    channels: int
    window: int  # positions in it
    source: Any

    def bytes_of_row(self, lanes: int) -> int:
        """What the window reads, of one vector of channels, for one more row of the output."""
        *_, rows, columns, _ = (int(dim) for dim in self.source.shape)
        return math.ceil(rows / self.rows) * columns * lanes * dtype_bytes(str(self.source.dtype))


@rule(target="cpu", on="function", when=analysis.is_fresh)
def depthwise(sch: Any, root: Any, hw: Hardware) -> None:
    """Hold neighbouring pixels of some channels in registers while the window passes."""
    conv = single_depthwise(sch)
    if conv is None:
        decline("its work is not one depthwise convolution with channels last")
    anchor = conv.anchor
    worth_threads = 2 * analysis.work(sch, anchor) >= moves.MIN_PARALLEL_FLOPS
    padding = writer_of(sch, anchor, conv.source)
    epilogue = moves.collect_epilogue(sch, anchor)
    *outer, row, column, channel = sch.get_loops(epilogue)
    lanes = moves.lanes_for(conv.channels, hw.lanes(str(sch.get(anchor).writes[0].source.dtype)))
    staged = padding is not None and fork("padding", ["inlined", "staged"]) == "staged"
    straight = fork("window", windows(conv.window, hw)) == "straight"
    in_order = conv.channels > lanes and fork("inside", orders(conv, hw)) == "channels"
    rows, vectors = choose_block(conv, lanes, math.prod(int(sch.get(loop).extent) for loop in outer), hw)
    width = width_in_cache(conv, lanes, hw) if in_order else conv.columns
    row_block, row = sch.split(row, [None, rows])
    channel_block, vector, lane = sch.split(channel, [None, vectors, lanes])
    column_block, column = sch.split(column, [None, width])
    column, pixel = sch.split(column, [None, choose_pixels(conv, width, straight, staged, hw)])
    inner = [row, column, vector] if in_order else [vector, row, column]
    sch.reorder(*outer, row_block, channel_block, column_block, *inner, pixel, lane)
    sch.compute_at(anchor, inner[-1], preserve_unit_loops=True)
    sch.set_scope(anchor, 0, "local")
    if staged:
        sch.compute_at(padding, channel_block, preserve_unit_loops=True)
        moves.vectorize_tail(sch, sch.get_loops(padding)[-1], lanes)
        constrain(rows * vectors <= rows_in_cache(conv, lanes, hw), "the padded input stays in the L2 cache")
    elif padding is not None:
        sch.compute_inline(padding)
    sch.vectorize(lane)
    sch.unroll(pixel)
    first = window_outside(sch, anchor, straight)
    chunks = sch.fuse(*outer, row_block, channel_block)
    if worth_threads:
        sch.parallel(chunks)
    init = sch.decompose_reduction(anchor, first)
    *_, pixel, lane = sch.get_loops(init)
    sch.vectorize(lane)
    sch.unroll(pixel)
    done = [anchor, init, epilogue, *([padding] if staged else [])]
    for block in analysis.blocks_except(sch, *done):
        moves.elementwise(sch, block, hw)


def single_depthwise(sch: Any) -> Depthwise | None:
    """The function's work, when that is one depthwise convolution whose channels are last in memory."""
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    if len(reductions) != 1 or not analysis.is_depthwise(sch, reductions[0]):
        return None
    (anchor,) = reductions
    moves.inline_copies(sch, anchor)
    stmt, extents = sch.get(anchor), analysis.iter_extents(sch, anchor)
    spatial = len(extents) - analysis.reduction_count(sch, anchor)
    windows = [
        load for load in analysis.loads(stmt.body.value) if uses(load.indices, stmt.iter_vars[spatial - 2])
    ]
    sources = [load.source for load in windows if not load.source.same_as(stmt.body.buffer)]
    if spatial < 3 or len(sources) != 1 or not walks_channels(stmt, spatial - 1):
        return None
    rows, columns, channels = extents[spatial - 3 : spatial]
    return Depthwise(anchor, rows, columns, channels, math.prod(extents[spatial:]), sources[0])


def uses(indices: Any, axis: Any) -> bool:
    """Whether an axis occurs in some indices."""
    return any(var.same_as(axis.var) for var in analysis.find(tirx.Var, indices))


def walks_channels(stmt: Any, channel: int) -> bool:
    """Whether a step of the channel axis is a step in memory of everything the block touches."""
    axes = [
        axis for axis in stmt.iter_vars if int(axis.dom.extent) > 1 or axis.same_as(stmt.iter_vars[channel])
    ]
    for load in analysis.loads(stmt.body.value):
        moving = [at for at, dim in zip(load.indices, load.source.shape, strict=True) if int(dim) > 1]
        used = [axis for axis in axes if uses(moving[-1:], axis)]
        if len(used) != 1 or not used[0].same_as(stmt.iter_vars[channel]):
            return False
    return True


def writer_of(sch: Any, anchor: Any, buffer: Any) -> Any:
    """The block that writes a buffer the anchor reads, padding usually; None if that is a parameter."""
    for block in sch.get_producers(anchor):
        if sch.get(block).writes[0].source.same_as(buffer) and analysis.is_injective(sch, block):
            return block
    return None


def rows_in_cache(conv: Depthwise, lanes: int, hw: Hardware) -> int:
    """How many rows of one vector of channels may be staged."""
    return max(1, hw.l2_bytes // 2 // conv.bytes_of_row(lanes))


def choose_block(conv: Depthwise, lanes: int, outer: int, hw: Hardware) -> tuple[Any, Any]:
    """How many rows and vectors of channels a thread computes at a time."""
    heights = nearly_divisors(conv.rows)
    widths = moves.divisors(conv.channels // lanes, MAX_VECTORS)
    width = max(k for k in widths if k <= ENOUGH_VECTORS)
    pieces = CHUNKS_PER_CORE * hw.cores / (outer * conv.channels // lanes // width)
    good = [k for k in heights if -(-conv.rows // k) >= pieces] or heights[:1]
    whole = [k for k in good if conv.rows % k == 0]
    height = whole[-1] if 2 * whole[-1] > good[-1] else good[-1]
    return moves.choose("rows", heights, height), moves.choose("vectors", widths, width)


def nearly_divisors(number: int) -> list[int]:
    """All ways to cut a number into equal pieces, but for a smaller last one.

    >>> nearly_divisors(7)
    [1, 2, 3, 4, 7]
    """
    return sorted({-(-number // k) for k in range(1, number + 1)})


def windows(positions: int, hw: Hardware) -> list[str]:
    """Whether the window is straight code or loops, the more promising first."""
    if positions > hw.vector_registers:
        return ["loops"]
    return ["straight", "loops"] if leaves_room(positions, hw) else ["loops", "straight"]


def leaves_room(weights: int, hw: Hardware) -> bool:
    """Whether all weights of a window can stay in registers beside the pixels."""
    return 3 * weights <= 2 * hw.vector_registers


def orders(conv: Depthwise, hw: Hardware) -> list[str]:
    """What the innermost of the loops over tiles is about, the more promising first.

    To stay with some channels saves loading weights, unless the pixels of a few rows, which are as far apart
    as all channels take, push each other out of the L1 cache.
    """
    rows = math.isqrt(conv.window) + 1  # of the input, and of the output
    stride = conv.channels * dtype_bytes(str(conv.source.dtype))
    crowd = rows * tiles.rows_in_one_set(conv.columns, stride, hw.l1_bytes // hw.l1_ways)
    return ["channels", "pixels"] if crowd > hw.l1_ways else ["pixels", "channels"]


def width_in_cache(conv: Depthwise, lanes: int, hw: Hardware) -> int:
    """How many columns a window can pass while what it reads of a block of channels stays in the L1 cache."""
    vectors = min(MAX_VECTORS, conv.channels // lanes)
    row = conv.bytes_of_row(lanes) * vectors * math.isqrt(conv.window) / conv.columns
    return max(k for k in moves.divisors(conv.columns, conv.columns) if k == 1 or k * row <= hw.l1_bytes // 2)


def choose_pixels(conv: Depthwise, width: int, straight: bool, staged: bool, hw: Hardware) -> Any:
    """How many neighbouring pixels, of so many columns, have accumulators at a time.

    A tile that goes beyond the end of a row is a condition for every pixel: cheap in straight code, where
    padding makes conditions anyway.
    """
    weights = conv.window if straight and leaves_room(conv.window, hw) else 1
    most = hw.vector_registers - weights - 1
    enough = ENOUGH_PIXELS if straight else hw.vector_registers // 2
    whole = moves.divisors(width, most)
    preferred = max(k for k in whole if k <= enough)
    if staged or not straight:
        return moves.choose("pixels", whole, preferred)
    cut = [k for k in nearly_divisors(width) if k <= most]
    if preferred < min(FEW_PIXELS, width):
        preferred = max(k for k in cut if k < enough)
    return moves.choose("pixels", cut, preferred)


def window_outside(sch: Any, anchor: Any, straight: bool) -> Any:
    """Put the loops over the window around those over pixels and lanes; the outermost of them."""
    loops = sch.get_loops(anchor)
    count = analysis.reduction_count(sch, anchor)
    *_, pixel, lane = loops[:-count]
    reduction = loops[-count:]
    sch.reorder(*reduction, pixel, lane)
    sch.vectorize(lane)
    for loop in [*reduction, pixel] if straight else [pixel]:
        sch.unroll(loop)
    return reduction[0]
