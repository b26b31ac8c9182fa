"""Tile every loop of a reduction with reuse, and order the tiles by a structure such as SSRSRS.

    for i, j, k: C    -->    for i0, j0, i1, j1, k0, i2, j2, k1, i3, j3: C

S stands for one tile of all kept axes, R for one of all summed axes. The first levels may be bound to
the blocks and threads of a GPU, what is read staged in its shared memory, what is written held closer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tpo.lang import Choice, PerfectTile, Rule, analysis, fork, rule, sample


@dataclass(frozen=True)
class Reuse:
    """A copy in a faster memory: where, at the end of which levels, and whether it may be left out."""

    scope: str
    levels: tuple[int, ...]
    optional: bool = False


def multi_level_tiling(
    structure: str,
    max_inner: int = 64,
    binds: Sequence[str] = (),
    read: Reuse | None = None,
    write: Reuse | None = None,
    vector_loads: Sequence[int] = (),
    target: str = "any",
) -> Rule:
    """A rule that tiles by a structure."""

    @rule(target=target, when=analysis.has_reuse, always=True)
    def tile(sch: Any, block: Any, hw: Any) -> None:
        """Tile all loops, order the tiles, stage what is read and what is written."""
        sch.annotate(block, analysis.TILED, structure)
        tiles = tile_loops(sch, block, structure, max_inner)
        for level, thread in enumerate(binds):
            tiles[level] = [sch.fuse(*tiles[level])]
            sch.bind(tiles[level][0], thread)
        if binds:
            limit_threads(sch, block, hw)
        if write is not None:
            stage_result(sch, block, tiles, write)
        if read is not None:
            level = fork("read_level", read.levels) if len(read.levels) > 1 else read.levels[0]
            stage_operands(sch, block, tiles[level - 1][-1], read.scope, vector_loads)
            if hw.has_async_copy:
                pipeline(sch, tiles[structure.index("R")])

    return tile


def tile_loops(sch: Any, block: Any, structure: str, max_inner: int) -> list[list[Any]]:
    """Split and reorder the loops; the tiles of every level."""
    loops = list(sch.get_loops(block))
    tiles: list[list[Any]] = [[] for _ in structure]
    for position, (loop, kind) in enumerate(zip(loops, analysis.axis_kinds(sch, block), strict=True)):
        levels = [level for level, letter in enumerate(structure) if letter == kind]
        parts = [loop]
        if len(levels) > 1:
            factors = sample(f"tile{position}", PerfectTile.of(sch, loop, len(levels), max_inner))
            parts = sch.split(loop, factors)
        for level, part in zip(levels, parts, strict=True):
            tiles[level].append(part)
    sch.reorder(*(loop for level in tiles for loop in level))
    return tiles


def limit_threads(sch: Any, block: Any, hw: Any) -> None:
    """Tell TVM how many threads a block of them may have."""
    outputs = math.prod(
        extent
        for extent, kind in zip(
            analysis.iter_extents(sch, block), analysis.axis_kinds(sch, block), strict=True
        )
        if kind == "S"
    )
    low = hw.warp_size if outputs > 2 * hw.warp_size else 1
    sch.annotate(block, "meta_schedule.thread_extent_low_inclusive", low)
    sch.annotate(block, "meta_schedule.thread_extent_high_inclusive", hw.max_threads_per_block)


def stage_result(sch: Any, block: Any, tiles: list[list[Any]], reuse: Reuse) -> None:
    """Accumulate in a copy of the result, written back at the end of a level."""
    consumers = sch.get_consumers(block)
    if reuse.optional and len(consumers) == 1 and analysis.is_write_cache(sch, consumers[0]):
        level = fork("write_level", [*reuse.levels, 0])
        if level:
            sch.reverse_compute_at(consumers[0], tiles[level - 1][-1], preserve_unit_loops=True)
        return
    levels = [0, *reuse.levels] if reuse.optional else list(reuse.levels)
    level = fork("write_level", levels) if len(levels) > 1 else levels[0]
    if level:
        copy = sch.cache_write(block, 0, reuse.scope)
        sch.reverse_compute_at(copy, tiles[level - 1][-1], preserve_unit_loops=True)


def stage_operands(sch: Any, block: Any, loop: Any, scope: str, vector_loads: Sequence[int]) -> None:
    """Copy what a tile reads to faster memory, all threads together."""
    written = sch.get(block).writes[0].source
    for index, region in enumerate(sch.get(block).reads):
        if region.source.same_as(written):
            continue
        copy = sch.cache_read(block, index, scope, [block])
        sch.compute_at(copy, loop, preserve_unit_loops=True)
        sch.fuse(*sch.get_loops(copy)[-len(region.source.shape) :])
        widths = [width for width in vector_loads if width <= _WIDEST.get(str(region.source.dtype), 16)]
        if widths:
            width = sample(f"vector_load{index}", Choice(widths))
            sch.annotate(copy, "meta_schedule.cooperative_fetch", width)


def pipeline(sch: Any, loops: list[Any]) -> None:
    """Overlap copying and computing, in several stages, where copying two operands is all there is to it."""
    parts = getattr(sch.get(loops[-1]).body, "seq", [])
    if len(parts) != 3 or not all(isinstance(part, tirx.For) for part in parts):
        return
    stages = fork("stages", [0, 4, 5])
    if stages:
        loop = sch.fuse(*loops)
        sch.annotate(loop, "software_pipeline_stage", [0, 0, stages - 2])
        sch.annotate(loop, "software_pipeline_order", [0, 1, 2])
        sch.annotate(loop, "software_pipeline_async_stages", [0])


_WIDEST = {"float32": 4, "float16": 8, "int8": 16}  # elements of one load

_CPU_RESULT = Reuse("global", (1, 2), optional=True)
tiling_cpu = multi_level_tiling("SSRSRS", write=_CPU_RESULT, target="cpu")
tiling_cuda = multi_level_tiling(
    "SSSRRSRS",
    binds=("blockIdx.x", "vthread.x", "threadIdx.x"),
    read=Reuse("shared", (4,)),
    write=Reuse("local", (3,)),
    vector_loads=(1, 2, 3, 4, 8, 16),
    target="cuda",
)
