"""Matmul and convolution on a GPU: a tile for a block of threads, a small one in every thread's registers.

    for b, i, j, k: C    -->    blockIdx b, i0, j0: threadIdx i1, j1:
                                  for k0: copy tiles of both operands to shared memory, all threads together
                                    for k1: unroll i2, j2: C (registers)
                                  E(C)

Rows, columns and depth of the tiles are free within what the device has: threads, shared memory, registers.
"""

from __future__ import annotations

from typing import Any

from _matrices import as_matrices, copy_together, fork_steps, overlap, tiles

from tpo.hardware import Gpu, dtype_bytes
from tpo.lang import Choice, analysis, constrain, rule, sample

MULTIPLE = 8  # of rows, columns and depth: what is missing is filled up
MAX_ROWS, MAX_DEPTH = 8, 32  # of one thread's tile, of a step
OTHER_REGISTERS = 40  # of a thread, for addresses and what is on its way
ENOUGH_OUTPUTS = 1024  # from which on a block has whole warps
FEWEST_BYTES = 16  # of a tile in shared memory: TVM loses track of those that are one number


@rule(target="cuda", on="function", when=analysis.is_fresh)
def block_tiles(sch: Any, root: Any, hw: Gpu) -> None:
    """Hold a tile in the registers of every thread, and the operands of a block in shared memory."""
    found = as_matrices(sch, (MULTIPLE, MULTIPLE, MULTIPLE))
    steps = fork_steps(found, hw, found.sizes[2])
    sch = found.sch
    batch, row, column, depth = sch.get_loops(found.product)
    rows = sample("rows", tiles(sch, row, 3, MAX_ROWS, inner=4, middle=16))
    columns = sample("columns", tiles(sch, column, 3, MAX_ROWS, inner=4, middle=16))
    deep = sample("depth", tiles(sch, depth, 2, MAX_DEPTH, inner=8))
    width = sample("width", Choice([1, 2, 4], preferred=4))
    threads = rows[1] * columns[1]
    constrain(threads <= hw.max_threads_per_block, "a block has so many threads")
    if found.sizes[0] * found.sizes[1] >= ENOUGH_OUTPUTS:
        constrain(threads >= hw.warp_size, "a warp has no idle threads")
    held = rows[2] * columns[2] + rows[2] + columns[2] + OTHER_REGISTERS
    constrain(held <= hw.registers_per_thread, "a thread's tile stays in registers")
    constrain(held * threads <= hw.registers, "so do those of all threads")
    left, right = (tile[1] * tile[2] * deep[1] * dtype_bytes(found.operand) for tile in (rows, columns))
    constrain((left + right) * steps <= hw.shared_bytes, "operands fit shared memory")
    for tile in (left, right):
        constrain(tile >= FEWEST_BYTES, "there is something to share")
    if steps > 1:
        constrain(deep[0] >= steps, "there is a later step to copy for")
        # TVM's asynchronous copies take a vector across rows for one in the order of memory.
        constrain(deep[1] % width == 0, "what a thread copies of the left operand is in one row")
        constrain((columns[1] * columns[2]) % width == 0, "and so is what it copies of the right one")
    (i0, i1, i2), (j0, j1, j2), (k0, k1) = (
        sch.split(row, rows),
        sch.split(column, columns),
        sch.split(depth, deep),
    )
    sch.reorder(batch, i0, j0, i1, j1, k0, k1, i2, j2)
    sch.bind(sch.fuse(batch, i0, j0), "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    sch.bind(j1, "threadIdx.x")
    sch.set_scope(found.product, 0, "local")
    sch.reverse_compute_at(found.output, j1, preserve_unit_loops=True)
    for operand in (found.left, found.right):
        copy_together(sch, operand, k0, [("threadIdx.y", rows[1]), ("threadIdx.x", columns[1])], width)
    overlap(sch, k0, steps)
    sch.unroll(i2)
    sch.unroll(j2)
    sch.decompose_reduction(found.product, k0)
