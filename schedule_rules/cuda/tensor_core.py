"""Matrix products by tensor cores: 16 x 16 x 16 at a time, each computed by the 32 threads of a warp.

    for b, i, j, k: C    -->    blockIdx b, i0, j0: threadIdx (warps) i1, j1:
                                  for k0: copy tiles of both operands to shared memory, all threads together
                                    for k1: load fragments; for i2, j2: [16 x 16 x 16: C]
                                    store fragments to shared memory
                                  E(C), all threads together

Halves are summed up in single or half precision, bytes in 32 bits. TVM knows by a description what an
instruction computes: `tensorize` lets it do what loops do that fit the description.
"""

from __future__ import annotations

from typing import Any

from _matrices import as_matrices, copy_together, fork_steps, overlap, spread, tiles

from tpo.hardware import Gpu, dtype_bytes
from tpo.lang import Choice, analysis, constrain, decline, rule, sample
from tpo.schedule import tensor_cores

TILE = tensor_cores.TILE
FRAGMENT_REGISTERS, OTHER_REGISTERS = 8, 40  # of a thread for 16 x 16 sums, and for all but fragments
PADDING = 16  # bytes between rows in shared memory, so that neighbours are in different banks


@rule(target="cuda", on="function", when=analysis.is_fresh)
def tensor_core(sch: Any, root: Any, hw: Gpu) -> None:
    """Let warps compute tiles of 16 x 16 x 16."""
    found = as_matrices(sch, (TILE, TILE, TILE))
    if (found.operand, found.total) not in tensor_cores.PRODUCTS or hw.sm < 70:
        decline("tensor cores do not multiply such numbers")
    tensor_cores.register()
    steps = fork_steps(found, hw, found.sizes[2] // TILE)
    sch, size = found.sch, dtype_bytes(found.operand)
    batch, *loops = sch.get_loops(found.product)
    (i, i16), (j, j16), (k, k16) = (sch.split(loop, [None, TILE]) for loop in loops)
    rows = sample("rows", tiles(sch, i, 3, 4, inner=2, middle=2))
    columns = sample("columns", tiles(sch, j, 3, 4, inner=2, middle=2))
    depth = sample("depth", tiles(sch, k, 2, 4, inner=2))
    # TVM has no zeros of eight bytes at once.
    width = sample("width", Choice([4, 8] if size > 1 or found.straight else [4]))
    warps, high, wide, deep = (
        rows[1] * columns[1],
        rows[1] * rows[2],
        columns[1] * columns[2],
        depth[1] * TILE,
    )
    constrain(warps * hw.warp_size <= hw.max_threads_per_block, "a block has so many threads")
    held = FRAGMENT_REGISTERS * (rows[2] * columns[2] + rows[2] + columns[2]) + OTHER_REGISTERS
    constrain(held <= hw.registers_per_thread, "a warp's tile stays in registers")
    constrain(held * warps * hw.warp_size <= hw.registers, "so do those of all warps")
    operands = high * TILE * (deep * size + PADDING) + deep * (wide * TILE * size + PADDING)
    results = high * wide * TILE * TILE * dtype_bytes(found.total)
    constrain(operands * steps + results <= hw.shared_bytes, "operands and results fit shared memory")
    if steps > 1:
        constrain(depth[0] >= steps, "there is a later step to copy for")
    (i0, i1, i2), (j0, j1, j2), (k0, k1) = sch.split(i, rows), sch.split(j, columns), sch.split(k, depth)
    sch.reorder(batch, i0, j0, i1, j1, k0, k1, i2, j2, i16, j16, k16)
    block = sch.fuse(batch, i0, j0)
    for loop, axis in ((block, "blockIdx.x"), (i1, "threadIdx.z"), (j1, "threadIdx.y")):
        sch.bind(loop, axis)
    threads = [("threadIdx.z", rows[1]), ("threadIdx.y", columns[1]), ("threadIdx.x", hw.warp_size)]
    # Results leave the fragments by shared memory, from where all threads finish them.
    store = sch.cache_write(found.product, 0, "wmma.accumulator")
    sch.set_scope(store, 0, "shared.dyn")
    sch.reverse_compute_at(store, j1, preserve_unit_loops=True)
    sch.reverse_compute_at(found.output, block, preserve_unit_loops=True)
    spread(sch, found.output, 2, threads)
    for copy, letter in ((found.left, "a"), (found.right, "b")):
        index = analysis.read_index(sch, found.product, sch.get(copy).writes[0].source)
        fragment = sch.cache_read(found.product, index, f"wmma.matrix_{letter}")
        sch.compute_at(fragment, k1, preserve_unit_loops=True)
        copy_together(sch, copy, k0, threads, width)
        sch.storage_align(copy, 0, -2, 2 * PADDING // size, PADDING // size)
        instruct(sch, fragment, tensor_cores.load(found.operand, letter))
    overlap(sch, k0, steps)
    inner = sch.blockize(i16)
    sch.tensorize(sch.decompose_reduction(inner, k0), tensor_cores.fill(found.total))
    sch.tensorize(inner, tensor_cores.multiply(found.operand, found.total))
    instruct(sch, store, tensor_cores.store(found.total))


def instruct(sch: Any, block: Any, instruction: str) -> None:
    """Let an instruction do what the two innermost loops of a block do, a tile at a time."""
    (row, row16), (column, column16) = (sch.split(x, [None, TILE]) for x in sch.get_loops(block)[-2:])
    sch.reorder(row, column, row16, column16)
    sch.tensorize(row16, instruction)
