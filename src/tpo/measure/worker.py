"""The process that builds and times candidates, a fork of `tpo.measure.template`.

It does what it is told, one request at a time, and may die of any of them: whoever asked notices,
and starts another. It never exports or links; what it built runs where it was built.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import tvm

from tpo.measure import data
from tpo.measure.contract import Failure
from tpo.measure.cross import files
from tpo.measure.kernels import Kernel, Surroundings, compiled, pack
from tpo.measure.packing import SplitKernel, split_kernel, written_parameters
from tpo.measure.protocol import (
    Build,
    Compare,
    Export,
    Outcome,
    Reference,
    Reply,
    Request,
    Time,
    WorkerOptions,
)
from tpo.measure.timing import Clock, Run
from tpo.targets import for_compiling
from tpo.threads import size_worker_pool
from tpo.workload import structural_key

# Workloads whose arrays are kept: batches rarely mix more.
_KEPT_WORKLOADS = 2
# Layouts of a workload's weights that are kept: a batch has candidates of a few sketches.
_KEPT_PACKINGS = 8


class Arrays:
    """Inputs and reference results of one workload."""

    def __init__(self, signature: data.Signature, arrays: list[data.Array]) -> None:
        self.signature = signature
        self.inputs = {k: arrays[k] for k in signature.inputs}
        self.reference = {k: arrays[k] for k in signature.outputs}
        self._tensors = {k: tvm.runtime.tensor(array) for k, array in self.inputs.items()}
        self._weights: dict[Any, list[Any]] = {}
        # All kernels write to the same place: else, in turns, they push each other out of the caches.
        self._results = {k: tvm.runtime.tensor(_garbage(array)) for k, array in self.reference.items()}

    def arguments(self, kernel: Kernel) -> list[Any]:
        """Tensors to call a kernel with; the results' hold garbage, so that leaving one out shows."""
        tensors = {**self._tensors, **self._results}
        tensors.update(zip(kernel.split.packed, self._packed(kernel), strict=True))
        for k, expected in self.reference.items():
            self._results[k].copyfrom(_garbage(expected))
        return [tensors[k] for k in range(len(tensors))]

    def _packed(self, kernel: Kernel) -> list[Any]:
        """Its weights as it wants them: candidates of a sketch mostly want the same."""
        positions, prepack = kernel.split.packed, kernel.split.prepack
        if prepack is None:
            return []
        key = (positions, structural_key(tvm.IRModule({"main": prepack})))
        if key not in self._weights:
            while len(self._weights) >= _KEPT_PACKINGS:
                self._weights.pop(next(iter(self._weights)))
            packed = kernel.pack([self.inputs[k] for k in positions])
            self._weights[key] = [tvm.runtime.tensor(array) for array in packed]
        return self._weights[key]

    def check(self, arguments: list[Any]) -> tuple[float, str]:
        """The worst error of the results, and what is wrong with them."""
        found = [data.difference(arguments[k].numpy(), expected) for k, expected in self.reference.items()]
        wrong = next((message for _, message in found if message), "")
        return max(error for error, _ in found), wrong


def _garbage(like: data.Array) -> data.Array:
    made = np.empty_like(like)
    made.reshape(-1).view(np.uint8).fill(
        0xFF
    )  # NaN in every float type, -1 or the largest number in integers
    if like.dtype == np.bool_:
        np.logical_not(like, out=made)
    return made


@dataclass(frozen=True)
class _Checked:
    """A kernel that ran once: how to time it, how long that first call took, and how its result was."""

    evaluator: Run
    seconds: float
    error: float
    wrong: str


class Worker:
    """Answers requests; holds the kernels that were built and not yet timed."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._target = for_compiling(options.target)
        self._host = for_compiling(options.host) if options.host else self._target
        self._kernels: dict[int, Kernel] = {}
        self._arrays: dict[str, Arrays] = {}
        if not options.host:
            self._surroundings = Surroundings(self._target, options.threads, options.between_bytes)

    def answer(self, request: Request) -> Reply:
        """Do what a request asks; whatever it raises is a failed outcome."""
        started = time.perf_counter()
        outcomes = self._do(request)
        resident = psutil.Process().memory_info().rss
        return Reply(outcomes, resident, time.perf_counter() - started)

    def _do(self, request: Request) -> tuple[Outcome, ...]:
        match request:
            case Reference():
                return (self._guard(Failure.RUN_ERROR, self._reference, request),)
            case Build():
                return (self._guard(Failure.BUILD_ERROR, self._build, request),)
            case Export():
                return (self._guard(Failure.BUILD_ERROR, self._export, request),)
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
        known = data.signature(func, written_parameters(func))
        kernel = Kernel(SplitKernel(func), request.key, self._host)
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
        split = self._split(request)
        self._kernels[request.number] = Kernel(split, request.key, self._target)
        return Outcome()

    def _split(self, request: Build | Export) -> SplitKernel:
        func = tvm.ir.load_json(request.module)["main"]
        outputs = written_parameters(func)
        if data.signature(func, outputs) != self._arrays_of(request.key).signature:
            raise ValueError("its parameters are not the workload's")
        return split_kernel(func, outputs)

    def _export(self, request: Export) -> Outcome:
        split, arrays = self._split(request), self._arrays_of(request.key)
        files.link(compiled(split.kernel, self._target), request.folder / files.LIBRARY, request.linker)
        given = {**arrays.inputs, **{k: _garbage(array) for k, array in arrays.reference.items()}}
        if split.prepack is not None:
            weights = pack(split, [arrays.inputs[k] for k in split.packed], self._host)
            given.update(zip(split.packed, weights, strict=True))
        files.write_arguments(request.folder / files.ARGUMENTS, [given[k] for k in sorted(given)])
        return Outcome()

    def _time(self, request: Time) -> Outcome:
        run = self._run(self._kernels[request.number])
        if run.wrong:
            return Outcome(Failure.WRONG_RESULT, run.wrong, error=run.error)
        timing = self._clock.time(run.evaluator, run.seconds, request.best, self._options.hopeless)
        return Outcome(
            samples=timing.samples, drift=timing.drift, cut_short=timing.cut_short, error=run.error
        )

    def _compare(self, request: Compare) -> tuple[Outcome, ...]:
        outcomes: dict[int, Outcome] = {}
        runs: dict[int, _Checked] = {}

        def prepare(number: int) -> Outcome:
            run = self._run(self._kernels[number])
            if run.wrong:
                return Outcome(Failure.WRONG_RESULT, run.wrong, error=run.error)
            runs[number] = run
            return Outcome()

        for number in request.numbers:
            outcomes[number] = self._guard(Failure.RUN_ERROR, prepare, number)
        timings = self._clock.compare([run.evaluator for run in runs.values()])
        for (number, run), timing in zip(runs.items(), timings, strict=True):
            outcomes[number] = Outcome(samples=timing.samples, drift=timing.drift, error=run.error)
        for number in request.numbers:
            self._kernels.pop(number, None)
        return tuple(outcomes[number] for number in request.numbers)

    def _run(self, kernel: Kernel) -> _Checked:
        arrays = self._arrays_of(kernel.key)
        arguments = arrays.arguments(kernel)
        start = time.perf_counter()
        kernel.function(*arguments)
        seconds = time.perf_counter() - start
        return _Checked(kernel.evaluator(arguments, self._surroundings), seconds, *arrays.check(arguments))

    def _arrays_of(self, key: str) -> Arrays:
        if key not in self._arrays:
            while len(self._arrays) >= _KEPT_WORKLOADS:
                self._arrays.pop(next(iter(self._arrays)))
            self._arrays[key] = Arrays(*data.load(self._options.folder / key))
        return self._arrays[key]

    @cached_property
    def _clock(self) -> Clock:
        """Made at the first request for times: its first readings need a machine of their own."""
        return Clock(self._surroundings.read, self._options.confidence)


def _says_out_of_memory(message: str) -> bool:
    signs = ("out of memory", "bad_alloc", "cannot allocate", "memory allocation")
    return any(sign in message.lower() for sign in signs)


def serve(connection: Connection) -> None:
    """Answer requests until the other side is gone."""
    options: WorkerOptions = connection.recv()
    size_worker_pool(options.threads)
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
