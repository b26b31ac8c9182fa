"""The process that builds and times candidates: `python -m tpo.measure.worker FD`.

It does what it is told, one request at a time, and may die of any of them: whoever asked notices,
and starts another. It never exports or links; what it built runs where it was built.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import tvm

from tpo import vector_math
from tpo.measure import data, packing
from tpo.measure.contract import Failure
from tpo.measure.protocol import Build, Compare, Outcome, Reference, Reply, Request, Time, WorkerOptions
from tpo.measure.timing import Clock, Run
from tpo.threads import size_worker_pool

# Checking arguments on every call takes longer to compile than most kernels; arguments here are ours.
_LEAN = {"tirx.disable_assert": True}
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
# Workloads whose arrays are kept: batches rarely mix more.
_KEPT_WORKLOADS = 2


class Kernel:
    """A built candidate."""

    def __init__(self, split: packing.SplitKernel, key: str, target: Any) -> None:
        self.split = split
        self.key = key
        self._target = target
        self._library = self._build(split.kernel)
        # Looking the function up is what makes LLVM generate the code.
        self.function = self._library[packing.KERNEL]

    def pack(self, weights: list[data.Array]) -> list[data.Array]:
        """Its weights in the layout it wants."""
        return packing.pack(self.split, weights, lambda func: self._build(func)[packing.KERNEL])

    def evaluator(self, arguments: list[Any]) -> Run:
        """Samples of calls with these arguments."""

        def run(number: int, repeat: int) -> list[float]:
            evaluate = self._library.time_evaluator(packing.KERNEL, tvm.cpu(), number=number, repeat=repeat)
            return list(evaluate(*arguments).results)

        return run

    def _build(self, func: Any) -> Any:
        module = tvm.IRModule({packing.KERNEL: func.with_attr("global_symbol", packing.KERNEL)})
        with tvm.transform.PassContext(config=_LEAN):
            return tvm.tirx.build(module, self._target)


class Arrays:
    """Inputs and reference results of one workload."""

    def __init__(self, signature: data.Signature, arrays: list[data.Array]) -> None:
        self.signature = signature
        self.inputs = {k: arrays[k] for k in signature.inputs}
        self.reference = {k: arrays[k] for k in signature.outputs}
        self._tensors = {k: tvm.runtime.tensor(array) for k, array in self.inputs.items()}

    def arguments(self, kernel: Kernel) -> list[Any]:
        """Tensors to call a kernel with; the results' hold garbage, so that leaving one out shows."""
        tensors = dict(self._tensors)
        packed = kernel.split.packed
        if packed:
            weights = kernel.pack([self.inputs[k] for k in packed])
            tensors.update(zip(packed, map(tvm.runtime.tensor, weights), strict=True))
        for k, expected in self.reference.items():
            tensors[k] = tvm.runtime.tensor(_garbage(expected))
        return [tensors[k] for k in range(len(tensors))]

    def check(self, arguments: list[Any]) -> tuple[float, str]:
        """The worst error of the results, and what is wrong with them."""
        found = [data.difference(arguments[k].numpy(), expected) for k, expected in self.reference.items()]
        wrong = next((message for _, message in found if message), "")
        return max(error for error, _ in found), wrong


def _garbage(like: data.Array) -> data.Array:
    made = np.empty_like(like)
    made.view(np.uint8).fill(0xFF)  # NaN in every float type, -1 or the largest number in integers
    if like.dtype == np.bool_:
        np.logical_not(like, out=made)
    return made


class Worker:
    """Answers requests; holds the kernels that were built and not yet timed."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._target = tvm.target.Target(options.target)
        self._kernels: dict[int, Kernel] = {}
        self._arrays: dict[str, Arrays] = {}
        self._clock: Clock | None = None

    def answer(self, request: Request) -> Reply:
        """Do what a request asks; whatever it raises is a failed outcome."""
        started = time.perf_counter()
        outcomes = self._do(request)
        baseline = self._clock.baseline if self._clock is not None else None
        resident = psutil.Process().memory_info().rss
        return Reply(outcomes, baseline, resident, time.perf_counter() - started)

    def _do(self, request: Request) -> tuple[Outcome, ...]:
        match request:
            case Reference():
                return (self._guard(Failure.RUN_ERROR, self._reference, request),)
            case Build():
                return (self._guard(Failure.BUILD_ERROR, self._build, request),)
            case Time(number=number):
                outcome = self._guard(Failure.RUN_ERROR, self._time, request)
                self._kernels.pop(number, None)
                return (outcome,)
            case Compare():
                return self._compare(request)

    def _guard(self, failure: Failure, work: Any, request: Any) -> Outcome:
        try:
            made: Outcome = work(request)
            return made
        except Exception as error:  # a candidate may make TVM raise anything
            memory = isinstance(error, MemoryError) or _says_out_of_memory(str(error))
            lines = str(error).strip().splitlines() or [type(error).__name__]
            # TVM puts the message of a failed check last, after the stack.
            return Outcome(Failure.OUT_OF_MEMORY if memory else failure, lines[-1])

    def _reference(self, request: Reference) -> Outcome:
        func = tvm.ir.load_json(request.module)["main"]
        known = data.signature(func, packing.written_parameters(func))
        kernel = Kernel(packing.SplitKernel(func), request.key, self._target)
        for positive in (False, True):
            rng = np.random.default_rng(int(request.key, 16))
            arrays = [
                data.random_array(shape, dtype, rng, positive)
                for shape, dtype in zip(known.shapes, known.dtypes, strict=True)
            ]
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            kernel.function(*tensors)
            for k in known.outputs:
                arrays[k] = tensors[k].numpy()
            if data.well_defined([arrays[k] for k in known.outputs]):
                break
        data.store(self._options.folder / request.key, known, arrays)
        return Outcome()

    def _build(self, request: Build) -> Outcome:
        func = tvm.ir.load_json(request.module)["main"]
        outputs = packing.written_parameters(func)
        if data.signature(func, outputs) != self._arrays_of(request.key).signature:
            return Outcome(Failure.BUILD_ERROR, "its parameters are not the workload's")
        split = packing.split_kernel(func, outputs)
        self._kernels[request.number] = Kernel(split, request.key, self._target)
        return Outcome()

    def _time(self, request: Time) -> Outcome:
        kernel = self._kernels[request.number]
        arguments, error, wrong = self._run(kernel)
        if wrong:
            return Outcome(Failure.WRONG_RESULT, wrong, error=error)
        timing = self._ready_clock(request.baseline).time(kernel.evaluator(arguments), request.limit)
        return Outcome(samples=timing.samples, drift=timing.drift, cut_short=timing.cut_short, error=error)

    def _compare(self, request: Compare) -> tuple[Outcome, ...]:
        outcomes: dict[int, Outcome] = {}
        runs: dict[int, tuple[Run, float]] = {}

        def prepare(number: int) -> Outcome:
            kernel = self._kernels[number]
            arguments, error, wrong = self._run(kernel)
            if wrong:
                return Outcome(Failure.WRONG_RESULT, wrong, error=error)
            runs[number] = (kernel.evaluator(arguments), error)
            return Outcome()

        for number in request.numbers:
            outcomes[number] = self._guard(Failure.RUN_ERROR, prepare, number)
        timings = self._ready_clock(request.baseline).compare([run for run, _ in runs.values()])
        for (number, (_, error)), timing in zip(runs.items(), timings, strict=True):
            outcomes[number] = Outcome(samples=timing.samples, drift=timing.drift, error=error)
        for number in request.numbers:
            self._kernels.pop(number, None)
        return tuple(outcomes[number] for number in request.numbers)

    def _run(self, kernel: Kernel) -> tuple[list[Any], float, str]:
        arrays = self._arrays_of(kernel.key)
        arguments = arrays.arguments(kernel)
        kernel.function(*arguments)
        return arguments, *arrays.check(arguments)

    def _arrays_of(self, key: str) -> Arrays:
        if key not in self._arrays:
            while len(self._arrays) >= _KEPT_WORKLOADS:
                self._arrays.pop(next(iter(self._arrays)))
            self._arrays[key] = Arrays(*data.load(self._options.folder / key))
        return self._arrays[key]

    def _ready_clock(self, baseline: float | None) -> Clock:
        if self._clock is None:
            kernel = reference_kernel(self._target)
            shapes = data.signature(kernel.split.kernel, []).shapes
            run = kernel.evaluator([tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes])
            self._clock = Clock(run, self._options.confidence, baseline)
        return self._clock


def reference_kernel(target: Any) -> Kernel:
    """A matrix product of our own: about a quarter of a millisecond of arithmetic in every core's cache."""
    from tvm import te

    rows, columns, depth = 192, 256, 256
    left = te.placeholder((rows, depth), name="left")
    right = te.placeholder((depth, columns), name="right")
    axis = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), name="product"
    )
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([left, right, product])}))
    block = sch.get_sblock("product")
    i, j, k = sch.get_loops(block)
    i_outer, i_inner = sch.split(i, [None, 4])
    j_outer, j_inner = sch.split(j, [None, 32])
    sch.reorder(i_outer, j_outer, k, i_inner, j_inner)
    sch.vectorize(j_inner)
    sch.unroll(i_inner)
    sch.parallel(sch.fuse(i_outer, j_outer))
    sch.decompose_reduction(block, k)
    return Kernel(packing.SplitKernel(sch.mod["main"]), "", target)


def _says_out_of_memory(message: str) -> bool:
    signs = ("out of memory", "bad_alloc", "cannot allocate", "memory allocation")
    return any(sign in message.lower() for sign in signs)


def serve(connection: Connection) -> None:
    """Answer requests until the other side is gone."""
    options: WorkerOptions = connection.recv()
    # Whoever dies without saying goodbye takes its workers along, even from inside an endless kernel.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != options.parent:
        return
    size_worker_pool(options.threads)
    vector_math.register()
    limit = psutil.Process().memory_info().vms + options.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = Worker(options)
    connection.send(Reply(()))
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            return
        connection.send(worker.answer(request))


if __name__ == "__main__":
    # The runner started us with pickles of our own classes under their real module's name.
    from tpo.measure import worker as module

    module.serve(Connection(int(sys.argv[1])))
