"""What a schedule rule wants to know about a function: its blocks and what their axes mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad

from tpo.hardware import dtype_bytes

# TVM ships no types: these names only say what is meant.
Schedule: TypeAlias = Any
BlockRV: TypeAlias = Any
SPATIAL = tirx.IterVar.DataPar
REDUCTION = tirx.IterVar.CommReduce


_get = s_tir.Schedule.get.__wrapped__


def stmt_of(sch: Schedule, variable: Any) -> Any:
    """The statement of a block or a loop: TVM's `get` without its check of types, which takes far longer."""
    return _get(sch, variable)


def blocks(sch: Schedule) -> list[BlockRV]:
    """All blocks of the scheduled function, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def blocks_except(sch: Schedule, *excluded: BlockRV) -> list[BlockRV]:
    """All blocks but the given ones."""
    known = [stmt_of(sch, block) for block in excluded]
    return [block for block in blocks(sch) if not any(stmt_of(sch, block).same_as(stmt) for stmt in known)]


def iter_extents(sch: Schedule, block: BlockRV) -> list[int]:
    """Extent of every axis of a block."""
    return [int(axis.dom.extent) for axis in stmt_of(sch, block).iter_vars]


def is_reduction(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block accumulates over some axis."""
    return any(axis.iter_type == REDUCTION for axis in stmt_of(sch, block).iter_vars)


def is_injective(sch: Schedule, block: BlockRV) -> bool:
    """Whether every axis of the block is data-parallel and it writes one buffer element per point."""
    stmt = stmt_of(sch, block)
    return (
        isinstance(stmt.body, tirx.BufferStore)
        and len(stmt.writes) == 1
        and all(axis.iter_type == SPATIAL for axis in stmt.iter_vars)
    )


def is_copy(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block only moves elements, without a condition or arithmetic."""
    return is_injective(sch, block) and isinstance(stmt_of(sch, block).body.value, TensorLoad)


def has_simple_loops(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block still has one plain loop per axis, as legalisation makes it."""
    return len(sch.get_loops(block)) == len(stmt_of(sch, block).iter_vars)


def work(sch: Schedule, block: BlockRV) -> int:
    """Number of points the block visits."""
    return math.prod(iter_extents(sch, block))


def find(node_type: Any, root: Any) -> list[Any]:
    """All nodes of a type inside an expression, a statement or a list of them."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (node_type, lambda node: found.append(node)))
    return found


def loads(root: Any) -> list[Any]:
    """All buffer loads inside an expression."""
    return find(TensorLoad, root)


def _uses(load: Any, axis: Any) -> bool:
    return any(var.same_as(axis.var) for var in find(tirx.Var, load.indices))


@dataclass(frozen=True)
class Contraction:
    """A sum of products, read as a matrix multiplication: out[outer, rows, column] over reduction.

    Positions index the block's axes. `streamed` and `vector` are the operands: the vector operand is
    loaded along the column axis, one element of the streamed one is broadcast against it.
    """

    outer: tuple[int, ...]
    rows: tuple[int, ...]
    column: int
    reduction: tuple[int, ...]
    group: int  # columns that share one slice of the streamed operand (grouped convolution)
    vector: Any
    column_dim: int  # dimension of the vector operand that the column axis indexes


def contraction(sch: Schedule, block: BlockRV) -> Contraction | None:
    """Axis roles when the block is a matmul, dense, convolution or einsum; None otherwise.

    A block whose column axis selects elements of both operands (depthwise convolution) is not one.
    """
    stmt = stmt_of(sch, block)
    if not is_reduction(sch, block) or not isinstance(stmt.body, tirx.BufferStore):
        return None
    product = product_of(stmt.body)
    axes = list(stmt.iter_vars)
    spatial = [k for k, axis in enumerate(axes) if axis.iter_type == SPATIAL]
    reduction = [k for k, axis in enumerate(axes) if axis.iter_type == REDUCTION]
    if product is None or len(spatial) + len(reduction) != len(axes) or spatial != list(range(len(spatial))):
        return None
    written = stmt.body.indices
    if len(written) != len(spatial) or not all(index.same_as(axes[k].var) for k, index in enumerate(written)):
        return None
    column = spatial[-1]
    for vector, streamed in (product, product[::-1]):
        group = _group_size(streamed, axes[column])
        column_dim = next((k for k, at in enumerate(vector.indices) if at.same_as(axes[column].var)), None)
        if column_dim is None or group is None:
            continue
        outer = [k for k in spatial[:-1] if _uses(vector, axes[k])]
        rows = [k for k in spatial[:-1] if k not in outer]
        return Contraction(
            tuple(outer), tuple(rows), column, tuple(reduction), group, vector.source, column_dim
        )
    return None


def single_contraction(sch: Schedule) -> BlockRV | None:
    """The block that is the function's work, when that is one contraction and no other reduction."""
    anchors = [block for block in blocks(sch) if contraction(sch, block)]
    if len(anchors) != 1 or any(is_reduction(sch, block) for block in blocks_except(sch, anchors[0])):
        return None
    return anchors[0]


def product_of(store: Any) -> tuple[Any, Any] | None:
    """The two loads multiplied in `out = out + a * b`, with casts looked through."""
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    if not isinstance(store.value.a, TensorLoad):
        return None
    if not store.value.a.source.same_as(store.buffer) or not isinstance(store.value.b, tirx.Mul):
        return None
    operands = []
    for operand in (store.value.b.a, store.value.b.b):
        while isinstance(operand, tirx.Cast):
            operand = operand.value
        if not isinstance(operand, TensorLoad):
            return None
        operands.append(operand)
    return operands[1], operands[0]


def _group_size(load: Any, column: Any) -> int | None:
    """How many columns in a row share the load: all of them, those of one group, or None (not shared)."""
    if not _uses(load, column):
        return int(column.dom.extent)
    sizes = {
        int(node.b)
        for node in find(tirx.FloorDiv, load.indices)
        if node.a.same_as(column.var) and isinstance(node.b, tirx.IntImm)
    }
    occurrences = sum(var.same_as(column.var) for var in find(tirx.Var, load.indices))
    return sizes.pop() if len(sizes) == 1 and occurrences == 1 else None


def read_index(sch: Schedule, block: BlockRV, buffer: Any) -> int:
    """Position of a buffer among the block's reads."""
    return next(k for k, region in enumerate(stmt_of(sch, block).reads) if region.source.same_as(buffer))


def row_bytes(sch: Schedule, block: BlockRV, vector: Any) -> int:
    """How far apart in memory neighbouring rows of a contraction's streamed operand are; 0 if unknown."""
    product = product_of(stmt_of(sch, block).body)
    streamed = next((load for load in product or () if not load.source.same_as(vector)), None)
    if streamed is None or len(streamed.indices) < 2:
        return 0
    factors = [
        int(node.b) for node in find(tirx.Mul, streamed.indices[-2]) if isinstance(node.b, tirx.IntImm)
    ]
    stride = max(factors, default=1)
    return stride * int(streamed.source.shape[-1]) * dtype_bytes(str(streamed.source.dtype))


def layout_free(func: Any) -> list[Any]:
    """Buffers whose layout may be changed at compile time: constants of the model."""
    positions = (func.attrs or {}).get("layout_free_buffers", [])
    return [func.params[int(k)] for k in positions]


def reduction_count(sch: Schedule, block: BlockRV) -> int:
    """Number of axes the block accumulates over."""
    return sum(axis.iter_type == REDUCTION for axis in stmt_of(sch, block).iter_vars)


def contiguous_axis(sch: Schedule, block: BlockRV) -> int | None:
    """The axis along which the block walks memory: the last index of its largest operand."""
    stmt = stmt_of(sch, block)
    if not isinstance(stmt.body, tirx.BufferStore):
        return None
    operands = [load for load in loads(stmt.body.value) if not load.source.same_as(stmt.body.buffer)]
    operands = [load for load in operands if len(load.indices) > 0]
    if not operands:
        return None
    largest = max(operands, key=lambda load: math.prod(int(dim) for dim in load.source.shape))
    used = find(tirx.Var, largest.indices[-1:])
    found = [k for k, axis in enumerate(stmt.iter_vars) if any(var.same_as(axis.var) for var in used)]
    return found[-1] if found else None


def sums_contiguous_rows(sch: Schedule, block: BlockRV) -> bool:
    """Whether the axes a block accumulates over are its last ones, and read the end of a buffer in order."""
    stmt = stmt_of(sch, block)
    if not isinstance(stmt.body, tirx.BufferStore):
        return False
    kinds = [axis.iter_type for axis in stmt.iter_vars]
    summed = [axis.var for axis in stmt.iter_vars if axis.iter_type == REDUCTION]
    if kinds != [SPATIAL] * (len(kinds) - len(summed)) + [REDUCTION] * len(summed):
        return False
    extents = [int(axis.dom.extent) for axis in stmt.iter_vars][-len(summed) :]
    return any(
        [int(dim) for dim in load.source.shape[-len(summed) :]] == extents
        and all(index.same_as(var) for index, var in zip(load.indices[-len(summed) :], summed, strict=True))
        for load in loads(stmt.body.value)
    )


def calls_math(sch: Schedule, block: BlockRV) -> bool:
    """Whether the block calls a function that costs much more than an arithmetic operation."""
    costly = {"exp", "tanh", "erf", "sigmoid", "log", "pow", "sqrt", "rsqrt", "sin", "cos", "log1p", "exp2"}
    names = (getattr(call.op, "name", "") for call in find(Call, stmt_of(sch, block).body))
    return any(name.split(".")[-1] in costly for name in names)


def is_untouched(sch: Schedule, block: BlockRV) -> bool:
    """Whether all loops around the block are still plain serial ones."""
    return has_simple_loops(sch, block) and all(
        stmt_of(sch, loop).kind == tirx.ForKind.SERIAL for loop in sch.get_loops(block)
    )


def is_fresh(sch: Schedule, block: BlockRV) -> bool:
    """Whether nothing in the function has been scheduled yet, whatever the block."""
    return all(inst.kind.name.startswith("Get") for inst in sch.trace.insts)
