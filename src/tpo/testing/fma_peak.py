"""What a machine can do at most: multiply-adds in registers that do not wait for each other."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from tpo.measure import data
from tpo.measure.kernels import Kernel
from tpo.measure.packing import SplitKernel
from tpo.targets import Target, for_compiling

_STEPS = 1 << 19
# Long enough for a hypervisor to have noticed that two processors which slept now both have work.
_SECONDS = 0.3


class FmaPeak:
    """A kernel that does nothing but multiply-adds, on so many threads as the target has cores.

    Chains are as many as leave four registers free: more than two units of four cycles' latency need.
    """

    def __init__(self, target: Target) -> None:
        lanes, chains = target.hardware.lanes("float32"), target.hardware.vector_registers - 4
        threads = target.hardware.cores
        func = _chains(threads, chains, lanes)
        self._kernel = Kernel(SplitKernel(func), "", for_compiling(target.tvm))
        shapes = data.signature(func, ()).shapes
        # Converges to 1 without ever becoming denormal, which would be slow.
        self._arguments = [tvm.runtime.tensor(np.full(shape, 0.5, np.float32)) for shape in shapes]
        self._flops = 2 * _STEPS * threads * chains * lanes

    def read(self) -> float:
        """GFLOP/s, of the best of some calls: other work only ever makes one slower."""
        times: list[float] = []
        while sum(times) < _SECONDS:
            start = time.perf_counter()
            self._kernel.function(*self._arguments)
            times.append(time.perf_counter() - start)
        return self._flops / min(times) / 1e9


def _chains(threads: int, chains: int, lanes: int) -> Any:
    """Parallel over threads: accumulators in registers, each multiplied and added to again and again."""
    factor = te.placeholder((threads, lanes), name="factor")
    step = te.reduce_axis((0, _STEPS), name="step")
    recurrence = te.comm_reducer(lambda acc, x: acc * x + x, lambda dtype: tvm.tirx.const(0, dtype))
    result = te.compute(
        (threads, chains, lanes), lambda t, c, v: recurrence(factor[t, v], axis=step), name="result"
    )
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([factor, result])}))
    block = sch.get_sblock("result")
    registers = sch.cache_write(block, 0, "local")
    thread, chain, lane, step_loop = sch.get_loops(block)
    sch.reorder(thread, step_loop, chain, lane)
    sch.unroll(chain)
    sch.vectorize(lane)
    sch.parallel(thread)
    sch.reverse_compute_at(registers, thread)
    sch.vectorize(sch.get_loops(registers)[-1])
    init = sch.decompose_reduction(block, step_loop)
    sch.vectorize(sch.get_loops(init)[-1])
    return sch.mod["main"]
