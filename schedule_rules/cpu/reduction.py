"""Reductions that no other rule takes, such as those of all elements or of two kinds of axes: block by block.

Where a kept axis is contiguous in memory, lanes hold neighbouring outputs:

    for h, c, r: S   -->   parallel h: for co: for r: vectorize ci: S (registers)

Where the summed axis is contiguous, lanes hold partial results:

    for h, r: S      -->   parallel h: for ro: vectorize ri: P[ri];  for ri: S

How many vectors one step accumulates, and the unrolling of small windows, are free.
"""

from __future__ import annotations

from typing import Any

from pooling import single_pooling
from tvm import s_tir

from tpo.hardware import Hardware
from tpo.lang import analysis, decline, rule
from tpo.schedule import moves

# Vectors of neighbouring outputs that one step accumulates, to hide the latency of the adds.
VECTORS = 4
MAX_UNROLL = 8  # steps of a reduction in one straight piece of code
MAX_PARTIALS = 4  # vectors of partial results


def is_for_us(sch: Any, root: Any) -> bool:
    """Contractions, depthwise convolutions and pooling have better rules."""
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    others = any(analysis.is_depthwise(sch, block) for block in reductions)
    others = others or analysis.single_contraction(sch) is not None or single_pooling(sch) is not None
    return analysis.is_fresh(sch, root) and bool(reductions) and not others


@rule(target="cpu", on="function", when=is_for_us)
def reduction(sch: Any, root: Any, hw: Hardware) -> None:
    """Vectorise every block by its own shape, along kept or along summed axes."""
    for block in analysis.blocks(sch):
        if analysis.is_injective(sch, block) and not _is_shared_or_costly(sch, block):
            moves.try_inline(sch, block)
    # Listed first: scheduling one reduction may inline injective blocks that follow it.
    reductions = [block for block in analysis.blocks(sch) if analysis.is_reduction(sch, block)]
    done = sum(_schedule_reduction(sch, block, hw) for block in reductions)
    if done + _schedule_rest(sch, hw) == 0:
        decline("none of its blocks has loops that could be improved")


def _is_shared_or_costly(sch: Any, block: Any) -> bool:
    """Whether inlining would repeat work: several readers, or a call such as exp in the body."""
    return len(sch.get_consumers(block)) > 1 or analysis.calls_math(sch, block)


def _schedule_reduction(sch: Any, block: Any, hw: Hardware) -> bool:
    if not analysis.has_simple_loops(sch, block) or not sch.get_loops(block):
        return False
    contiguous = analysis.contiguous_axis(sch, block)
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    try:
        if contiguous is not None and kinds[contiguous] == analysis.SPATIAL:
            _lanes_hold_outputs(sch, block, hw)
        elif contiguous is not None:
            _lanes_hold_partials(sch, block, contiguous, hw)
        else:
            _parallel_only(sch, block, hw)
    except s_tir.ScheduleError:
        return False
    return True


def _lanes_hold_outputs(sch: Any, block: Any, hw: Hardware) -> None:
    points = analysis.work(sch, block)
    dtype = str(sch.get(block).writes[0].source.dtype)
    count = analysis.reduction_count(sch, block)
    epilogue = moves.collect_epilogue(sch, block)
    *outer, channel = sch.get_loops(epilogue)
    extent = int(sch.get(channel).extent)
    lanes = moves.lanes_for(extent, hw.lanes(dtype))
    vectors = moves.divisors(extent // lanes, moves.MAX_VECTORS)
    widths = [lanes * count for count in vectors]
    preferred = lanes * max(count for count in vectors if count <= VECTORS)
    name = str(sch.get(block).name_hint)
    width = moves.choose(f"{name}.width", widths, preferred)
    channel_tile, inner = sch.split(channel, [None, width])
    sch.compute_at(block, channel_tile, preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    moves.vectorize_tail(sch, inner, lanes)
    inner = sch.get_loops(block)[-count - 1]
    *reduction, last = sch.get_loops(block)[-count:]
    extent = int(sch.get(last).extent)
    unroll = moves.choose(f"{name}.unroll", moves.divisors(extent, MAX_UNROLL), 1)
    last, unrolled = sch.split(last, [None, unroll])
    sch.unroll(unrolled)
    reduction = [*reduction, last]
    sch.reorder(*reduction, unrolled, inner)
    moves.vectorize_tail(sch, inner, lanes)
    moves.parallel_outer(sch, [*outer, channel_tile], points, hw)
    init = sch.decompose_reduction(block, reduction[0])
    sch.vectorize(sch.get_loops(init)[-1])


def _lanes_hold_partials(sch: Any, block: Any, contiguous: int, hw: Hardware) -> None:
    points = analysis.work(sch, block)
    dtype = str(sch.get(block).writes[0].source.dtype)
    loops = sch.get_loops(block)
    spatial = loops[: len(loops) - analysis.reduction_count(sch, block)]
    lanes = moves.lanes_for(int(sch.get(loops[contiguous]).extent), hw.lanes(dtype))
    if lanes > 1:
        vectors = moves.divisors(int(sch.get(loops[contiguous]).extent) // lanes, MAX_PARTIALS)
        name = str(sch.get(block).name_hint)
        width = moves.choose(f"{name}.partials", [lanes * count for count in vectors], lanes)
        _, inner = sch.split(loops[contiguous], [None, width])
        partial = sch.rfactor(inner, 0)
        spatial = sch.get_loops(block)[: len(spatial)]
        if spatial:
            sch.compute_at(partial, spatial[-1], preserve_unit_loops=True)
            lane, *rest = sch.get_loops(partial)[len(spatial) :]
        else:
            rest = list(sch.get_loops(partial))
            lane = rest.pop(contiguous + 1)
        sch.reorder(*rest, lane)
        sch.vectorize(lane)
    # Before decomposition: a reduction that has lost its init may not be made parallel any more.
    moves.parallel_outer(sch, list(spatial), points, hw)
    if lanes > 1:
        init = sch.decompose_reduction(partial, rest[-analysis.reduction_count(sch, partial)])
        sch.vectorize(sch.get_loops(init)[-1])


def _parallel_only(sch: Any, block: Any, hw: Hardware) -> None:
    loops = sch.get_loops(block)
    spatial = loops[: len(loops) - analysis.reduction_count(sch, block)]
    moves.parallel_outer(sch, list(spatial), analysis.work(sch, block), hw)


def _schedule_rest(sch: Any, hw: Hardware) -> int:
    """Schedule the injective blocks no reduction took along; how many there were."""
    rest = [
        block
        for block in analysis.blocks(sch)
        if analysis.is_injective(sch, block) and analysis.is_untouched(sch, block)
    ]
    for block in rest:
        moves.elementwise(sch, block, hw)
    return len(rest)
