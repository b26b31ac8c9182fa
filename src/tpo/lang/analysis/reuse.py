"""Where tiling, splitting and inlining pay: the questions TVM's own rules ask, with the same answers.

TVM's analysis answers where Python can reach it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize

from tpo.lang.analysis.blocks import SPATIAL, BlockRV, Schedule, find, is_reduction, stmt_of

TILED = "meta_schedule.tiling_structure"


def _ask(name: str, *arguments: Any) -> Any:
    return tvm_ffi.get_global_func(f"s_tir.schedule.{name}")(*arguments)


def loop_kinds(sch: Schedule, loops: list[Any]) -> list[str]:
    """What every loop is for: "S" spatial, "R" reduction, "O" anything else."""
    return [str(_ask("GetLoopIterType", sch, loop)) for loop in loops]


def has_plain_loops(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block's axes are its loops, one by one."""
    return bool(_ask("IsTrivialBinding", sch, block))


def is_spatial_function(sch: Schedule) -> bool:
    """Whether nothing in the function is a reduction."""
    return bool(_ask("IsSpatialPrimFunc", sch.mod["main"]))


def has_branches(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block decides something by a condition, as padding does."""
    return bool(_ask("HasIfThenElse", _ask("GetSBlockRealize", sch, block)))


def is_output(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block writes a result of the function."""
    return bool(_ask("IsOutputBlock", sch, block))


def is_tiled(sch: Schedule, block: BlockRV) -> bool:
    """Whether a rule for tiling has been here."""
    return TILED in stmt_of(sch, block).annotations


def has_reuse(sch: Schedule, block: BlockRV) -> bool:
    """Whether tiling pays: a reduction that reads something along fewer axes than it computes."""
    stmt = stmt_of(sch, block)
    spatial = all(axis.iter_type == SPATIAL for axis in stmt.iter_vars)
    if is_tiled(sch, block) or len(stmt.writes) != 1 or not stmt.reads or spatial:
        return False
    if not has_plain_loops(sch, block):
        return False
    axes = [a.var for a in stmt.iter_vars if a.iter_type == SPATIAL and not _is_one(a.dom)]
    unused, seen = 0, list[Any]()
    for region in stmt.reads:
        if any(region.source.same_as(buffer) for buffer in seen):
            return False
        seen.append(region.source)
        if region.source.same_as(stmt.writes[0].source):
            continue
        used = find(tirx.Var, [bounds.min for bounds in region.region])
        unused += sum(not any(var.same_as(axis) for var in used) for axis in axes)
    return unused >= 1


def _is_one(domain: Any) -> bool:
    return isinstance(domain.extent, tirx.IntImm) and int(domain.extent) == 1 and int(domain.min) == 0


def wants_split_reduction(sch: Schedule, block: BlockRV, enough: int) -> bool:
    """Whether a reduction should be computed in parts: it has too little to do in parallel otherwise.

    `enough` is how many parallel pieces are plenty.
    """
    stmt = stmt_of(sch, block)
    if not stmt.writes or not is_reduction(sch, block) or not has_plain_loops(sch, block):
        return False
    loops = list(sch.get_loops(block))
    kinds = loop_kinds(sch, loops)
    if is_tiled(sch, block) or not is_nest(sch, block, loops) or set(kinds) - {"S", "R"} or "R" not in kinds:
        return False
    extents = [int(stmt_of(sch, loop).extent) for loop in loops]
    spatial = math.prod(e for e, kind in zip(extents, kinds, strict=True) if kind == "S")
    summed = math.prod(e for e, kind in zip(extents, kinds, strict=True) if kind == "R")
    if has_reuse(sch, block):
        return not (spatial >= summed or spatial > enough)
    return summed > 1


def is_plain_reduction(sch: Schedule, block: BlockRV) -> bool:
    """Whether a block is a reduction that nobody has tiled."""
    return is_reduction(sch, block) and not is_tiled(sch, block)


def outer_loops(sch: Schedule, block: BlockRV) -> list[Any]:
    """The loops around a block, the outermost first, as statements: asking leaves nothing in the trace."""
    found, ref = [], sch.get_sref(block).parent
    while ref is not None and isinstance(ref.stmt, tirx.For):
        found.append(ref.stmt)
        ref = ref.parent
    return found[::-1]


def block_count(stmt: Any) -> int:
    """How many blocks are inside a statement."""
    return len(find(SBlockRealize, stmt))


def is_nest(sch: Schedule, block: BlockRV, loops: list[Any]) -> bool:
    """Whether the loops are directly inside each other, and the block is all there is inside the last."""
    stmts = [stmt_of(sch, loop) for loop in loops]
    for outer, inner in itertools.pairwise(stmts):
        if not outer.body.same_as(inner):
            return False
    last = stmts[-1].body if stmts else None
    return isinstance(last, SBlockRealize) and last.block.same_as(stmt_of(sch, block))


def reads_in_order(sch: Schedule, block: BlockRV) -> bool:
    """Whether every read is at the written position, shifted at most, with no axis swapped or used twice."""
    stmt = stmt_of(sch, block)
    written = [bounds.min for bounds in stmt.writes[0].region]
    if not all(isinstance(index, tirx.Var) for index in written):
        return False
    for region in stmt.reads:
        positions = [_position(bounds.min, written) for bounds in region.region]
        if None in positions:
            return False
        axes = [position for position in positions if position is not None and position != _CONSTANT]
        if axes != sorted(axes) or len(set(axes)) != len(axes):
            return False
    return True


_CONSTANT = -1


def _position(index: Any, written: list[Any]) -> int | None:
    """Which written axis an index is, give or take a constant; None if it is nothing so simple."""
    if isinstance(index, tirx.IntImm):
        return _CONSTANT
    if isinstance(index, (tirx.Add, tirx.Sub)) and isinstance(index.b, tirx.IntImm):
        index = index.a
    elif isinstance(index, tirx.Add) and isinstance(index.a, tirx.IntImm):
        index = index.b
    return next((k for k, axis in enumerate(written) if index.same_as(axis)), None)


def axis_kinds(sch: Schedule, block: BlockRV) -> list[str]:
    """What every axis of a block is for: "S" spatial, "R" reduction, "O" anything else."""
    letters = {int(SPATIAL): "S", int(tirx.IterVar.CommReduce): "R"}
    return [letters.get(int(axis.iter_type), "O") for axis in stmt_of(sch, block).iter_vars]


def calls(sch: Schedule, block: BlockRV, operators: tuple[str, ...]) -> bool:
    """Whether a block calls one of some operators, by TVM's names."""
    return any(getattr(call.op, "name", "") in operators for call in find(Call, stmt_of(sch, block).body))


def is_write_cache(sch: Schedule, block: BlockRV) -> bool:
    """Whether a block can take over the result of another one element by element: an epilogue, or a copy."""
    return len(stmt_of(sch, block).writes) == 1 and reads_in_order(sch, block)


def fuse_reduction(sch: Schedule, block: BlockRV) -> tuple[int, Any]:
    """Move the summed loops inside the kept ones and make them one; how many are kept, and that one."""
    loops = list(sch.get_loops(block))
    kinds = loop_kinds(sch, loops)
    kept = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    summed = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    if kinds != sorted(kinds, reverse=True):
        sch.reorder(*kept, *summed)
    return len(kept), sch.fuse(*summed) if len(summed) > 1 else summed[0]
