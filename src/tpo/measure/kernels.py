"""Kernels in this process: candidates, the reference that shows the machine's speed, and the cache flush."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, te

from tpo.conversions import without_truncation
from tpo.hardware import host_caches, target_arch
from tpo.measure import data, packing
from tpo.measure.timing import Run, Sample
from tpo.targets import EMULATED

# Reading this many times a cache's size leaves next to nothing in it of what was there.
_ENOUGH_TO_FLUSH = 1.25
# Checking arguments on every call takes longer to compile than most kernels; arguments here are ours.
_LEAN = {"tirx.disable_assert": True}


class Kernel:
    """A built candidate."""

    def __init__(self, split: packing.SplitKernel, key: str, target: Any) -> None:
        self.split = split
        self.key = key
        self._target = target
        self._library = compiled(split.kernel, target)
        # Looking the function up is what makes LLVM generate the code.
        self.function = self._library[packing.KERNEL]

    def pack(self, weights: list[data.Array]) -> list[data.Array]:
        """Its weights in the layout it wants."""
        return pack(self.split, weights, self._target)

    def evaluator(self, arguments: list[Any], surroundings: Surroundings) -> Run:
        """Samples of calls with these arguments, on cold caches and with readings around each."""

        def run(count: int) -> list[Sample]:
            surroundings.readings.clear()
            evaluate = self._library.time_evaluator(
                packing.KERNEL, tvm.cpu(), number=1, repeat=count, f_preproc=surroundings.name
            )
            taken = evaluate(*arguments).results
            readings = [*surroundings.readings, surroundings.read()]
            return [Sample(*item) for item in zip(taken, readings, readings[1:], strict=False)]

        return run


def compiled(func: Any, target: Any) -> Any:
    """A module with one function, for whatever machine."""
    if target_arch(target) == EMULATED:
        func = without_truncation(func)
    module = tvm.IRModule({packing.KERNEL: func.with_attr("global_symbol", packing.KERNEL)})
    with tvm.transform.PassContext(config=_LEAN):
        return tvm.tirx.build(module, target)


def pack(split: packing.SplitKernel, weights: list[data.Array], target: Any) -> list[data.Array]:
    """Weights in the layout a kernel wants; `target` is what runs in this process."""
    return packing.pack(split, weights, lambda func: compiled(func, target)[packing.KERNEL])


class Surroundings:
    """What happens before every sample: a reading of the reference kernel, then the caches are flushed.

    Inside a model other functions run between two calls of one, and touch `between_bytes` of memory: its
    weights come from the shared cache or, in large models, from memory. A schedule that is only fast on
    warm caches is not fast there.
    """

    name = "tpo.measure.before_each_sample"

    def __init__(self, target: Any, threads: int, between_bytes: int) -> None:
        self.readings: list[float] = []
        self._reference, self._operands = _reference(target)
        self._flush, self._memory = _flush(target, threads, between_bytes)
        tvm_ffi.register_global_func(self.name, self._before, override=True)

    def read(self) -> float:
        """Seconds of one call of the reference kernel on warm caches."""
        self._reference.function(*self._operands)
        start = time.perf_counter()
        self._reference.function(*self._operands)
        return time.perf_counter() - start

    def _before(self, *_: Any) -> None:
        self.readings.append(self.read())
        self._flush.function(*self._memory)


def _reference(target: Any) -> tuple[Kernel, list[Any]]:
    """A matrix product of our own: about a fifth of a millisecond of arithmetic."""
    rows, columns, depth = 192, 256, 256
    left = te.placeholder((rows, depth), name="left")
    right = te.placeholder((depth, columns), name="right")
    axis = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), name="product"
    )
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([left, right, product])}))
    block = sch.get_sblock("product")
    i, j, k = sch.get_loops(block)
    i_outer, i_inner = sch.split(i, [None, 4])
    j_outer, j_inner = sch.split(j, [None, 32])
    sch.reorder(i_outer, j_outer, k, i_inner, j_inner)
    sch.vectorize(j_inner)
    sch.unroll(i_inner)
    sch.parallel(sch.fuse(i_outer, j_outer))
    sch.decompose_reduction(block, k)
    return _on_ones(sch, target)


def _flush(target: Any, threads: int, between_bytes: int) -> tuple[Kernel, list[Any]]:
    """A function that fills every core's own caches with something else, and so much of the shared one.

    It only reads: lines it had written would have to be written back during the sample that follows.
    """
    lanes = 16
    caches = host_caches()
    most = int(_ENOUGH_TO_FLUSH * max(caches.l3, caches.l2))
    per_thread = max(2 * caches.l2, min(between_bytes, most) // threads)
    words = te.reduce_axis((0, per_thread // 4 // lanes), name="word")
    memory = te.placeholder((threads, words.dom.extent, lanes), name="memory")
    largest = te.compute(
        (threads, lanes), lambda i, j: te.max(memory[i, words, j], axis=words), name="largest"
    )
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([memory, largest])}))
    i, j, word = sch.get_loops(sch.get_sblock("largest"))
    sch.reorder(i, word, j)
    sch.vectorize(j)
    sch.parallel(i)
    return _on_ones(sch, target)


def _on_ones(sch: Any, target: Any) -> tuple[Kernel, list[Any]]:
    """A scheduled function of float32 arrays, built, and arguments for it."""
    func = sch.mod["main"]
    arrays = [np.ones(shape, np.float32) for shape in data.signature(func, ()).shapes]
    return Kernel(packing.SplitKernel(func), "", target), [tvm.runtime.tensor(array) for array in arrays]
