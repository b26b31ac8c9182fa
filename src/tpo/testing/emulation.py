"""Kernels for a GPU compared with what the unscheduled function computes on the CPU, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm

from tpo.measure import data
from tpo.measure.cuda import ORDERS, EmulationError, Emulator, Program
from tpo.measure.kernels import Kernel
from tpo.measure.packing import SplitKernel, written_parameters
from tpo.targets import resolve
from tpo.workload import Workload

Array = Any


def difference(workload: Workload, program: Program, orders: Sequence[str] = ORDERS) -> str:
    """What is wrong with a program's numbers, in some orders of its threads ("" if nothing)."""
    known, arrays, expected = _reference(workload)
    try:
        with Emulator(program) as emulator:
            for order in orders:
                got = emulator.run(arrays, known.outputs, order)
                for k in known.outputs:
                    wrong = data.difference(got[k], expected[k])[1]
                    if wrong:
                        return f"{wrong} (threads {order})"
    except EmulationError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4)
def _reference(workload: Workload) -> tuple[data.Signature, list[Array], list[Array]]:
    """Random arrays, and what the function as it stands makes of them on this machine."""
    func = workload.module["main"]
    known = data.signature(func, written_parameters(func))
    rng = np.random.default_rng(0)
    arrays = [data.random_array(s, d, rng) for s, d in zip(known.shapes, known.dtypes, strict=True)]
    kernel = Kernel(SplitKernel(func), "", resolve("native").tvm)
    tensors = [tvm.runtime.tensor(array.copy()) for array in arrays]
    kernel.function(*tensors)
    return known, arrays, [tensor.numpy() for tensor in tensors]
