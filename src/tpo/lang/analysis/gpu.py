"""What a rule for GPUs asks: which loops are bound to blocks and threads, and where a sum may be computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tpo.lang.analysis.blocks import BlockRV, Schedule, stmt_of
from tpo.lang.analysis.reuse import has_reuse, loop_kinds


@dataclass(frozen=True)
class GpuNest:
    """The loops around a block: how many outer ones are spatial, which is the first that is not its own.

    `thread_at` is the position of the loop bound to a thread index.
    """

    spatial: int
    shared_from: int
    thread_at: int | None


def gpu_nest(sch: Schedule, block: BlockRV) -> GpuNest:
    """How the loops around a block are bound."""
    loops = list(sch.get_loops(block))
    stmts = [stmt_of(sch, loop) for loop in loops]
    threads = [thread_of(stmt) for stmt in stmts]
    kinds = loop_kinds(sch, loops)
    shared = len(loops)
    for position, stmt in enumerate(stmts):
        if stmt.kind != tirx.ForKind.SERIAL:
            shared = position
            break
        if isinstance(stmt.body, tirx.SeqStmt):
            shared = position + 1
            break
    spatial = next((k for k, kind in enumerate(kinds) if kind != "S"), len(kinds))
    bound = [k for k, thread in enumerate(threads) if thread.startswith("threadIdx")]
    return GpuNest(spatial, shared, bound[0] if bound else None)


def thread_extent(sch: Schedule, block: BlockRV) -> Any:
    """The factor that made the loop a block has bound to threads; None if there is none."""
    if not any(thread_of(stmt_of(sch, loop)).startswith("threadIdx") for loop in sch.get_loops(block)):
        return None
    made = {
        loop: (inst, k)
        for inst in sch.trace.insts
        if inst.kind.name == "Split"
        for k, loop in enumerate(inst.outputs)
    }
    for inst in sch.trace.insts:
        if inst.kind.name == "Bind" and str(inst.attrs[0]) == "threadIdx.x" and inst.inputs[0] in made:
            split, position = made[inst.inputs[0]]
            return split.inputs[1 + position]
    return None


def fusion_place(sch: Schedule, block: BlockRV) -> tuple[BlockRV, Any, Any] | None:
    """The reader of a sum, the loop of it to compute the sum at, and its innermost loop, if there are any."""
    consumers = sch.get_consumers(block)
    if len(stmt_of(sch, block).writes) != 1 or not consumers or has_reuse(sch, consumers[0]):
        return None
    theirs = [list(sch.get_loops(consumer)) for consumer in consumers]
    common = _common(sch, theirs)
    if len(consumers) > 1 and common == 0:
        return None
    kinds = loop_kinds(sch, list(sch.get_loops(block)))
    kept = next((k for k, kind in enumerate(kinds) if kind != "S"), len(kinds))
    deepest = min(kept, len(theirs[0]), common if len(consumers) > 1 else len(theirs[0]))
    return None if deepest == 0 else (consumers[0], theirs[0][deepest - 1], theirs[0][-1])


def _common(sch: Schedule, nests: list[list[Any]]) -> int:
    """How many outer loops some nests share."""
    shared = 0
    for loops in zip(*nests, strict=False):
        if not all(stmt_of(sch, loop).same_as(stmt_of(sch, loops[0])) for loop in loops):
            break
        shared += 1
    return shared


def thread_of(loop: Any) -> str:
    """What a loop is bound to, such as "threadIdx.x"; "" if to nothing."""
    binding = loop.thread_binding
    return "" if binding is None else str(binding.thread_tag)
