"""What a block computes, and how much memory a tile of it touches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from tpo.hardware import dtype_bytes
from tpo.lang.analysis.blocks import (
    SPATIAL,
    BlockRV,
    Schedule,
    contraction,
    find,
    is_copy,
    is_injective,
    is_reduction,
    loads,
    product_of,
    stmt_of,
)


def is_matmul(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block is a sum of products whose operands are read at single axes."""
    return contraction(sch, block) is not None and not _has_windows(sch, block)


def is_conv(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block is a convolution: it reads one operand through a window, at sums of axes."""
    return contraction(sch, block) is not None and _has_windows(sch, block)


def is_depthwise(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block is a reduction through a window in which every channel is on its own."""
    if not is_reduction(sch, block) or contraction(sch, block) is not None:
        return False
    return product_of(stmt_of(sch, block).body) is not None and _has_windows(sch, block)


def is_elementwise(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block computes every element from the same element of what it reads."""
    stmt = stmt_of(sch, block)
    if not is_injective(sch, block):
        return False
    written = list(stmt.body.indices)
    return all(
        len(load.indices) == len(written)
        and all(index.same_as(other) for index, other in zip(load.indices, written, strict=True))
        for load in loads(stmt.body.value)
    )


def is_transpose(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block copies a buffer with its axes in another order."""
    if not is_copy(sch, block):
        return False
    stmt = stmt_of(sch, block)
    read, written = list(stmt.body.value.indices), list(stmt.body.indices)
    order = [next((k for k, axis in enumerate(written) if axis.same_as(index)), -1) for index in read]
    return len(order) == len(written) and sorted(order) == list(range(len(order))) != order


def footprint(sch: Schedule, block: BlockRV, tile: Mapping[int, int]) -> dict[str, int]:
    """Bytes of every buffer that a tile of the block touches, by the buffer's name.

    `tile` says how many steps of which axes the tile makes; of all other axes it makes one.
    """
    stmt = stmt_of(sch, block)
    analyzer = Analyzer()
    for k, axis in enumerate(stmt.iter_vars):
        zero = axis.dom.min  # of the type that the axis counts in
        analyzer.bind(axis.var, Range.from_min_extent(zero, zero + tile.get(k, 1)))
    touched: dict[str, int] = {}
    for region in [*stmt.reads, *stmt.writes]:
        extents = [_extent(analyzer, bounds) for bounds in region.region]
        size = math.prod(extents) * dtype_bytes(str(region.source.dtype))
        name = str(region.source.name)
        touched[name] = max(touched.get(name, 0), size)
    return touched


def _extent(analyzer: Any, bounds: Any) -> int:
    limits = analyzer.const_int_bound(bounds.min)
    return int(limits.max_value) - int(limits.min_value) + int(bounds.extent)


def _has_windows(sch: Schedule, block: BlockRV) -> bool:
    """Whether an operand is read at an index that moves with a kept and with a summed axis."""
    stmt = stmt_of(sch, block)
    kept = [axis.var for axis in stmt.iter_vars if axis.iter_type == SPATIAL]
    for load in loads(stmt.body.value):
        for index in load.indices:
            used = find(tirx.Var, index)
            spatial = [any(var.same_as(axis) for axis in kept) for var in used]
            if any(spatial) and not all(spatial):
                return True
    return False
