"""Measuring on another machine: workers build here, what they built runs there, every result is checked."""

from __future__ import annotations

import math
import shutil
import statistics
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tpo.measure import data
from tpo.measure.contract import BuildInput, Capabilities, Failure, Measurement, Runner
from tpo.measure.cross import cycles, files, toolchain
from tpo.measure.cross.places import Place
from tpo.measure.dispatch import Done, Job
from tpo.measure.pool import WorkerPool, build_failure
from tpo.measure.protocol import Export, WorkerOptions
from tpo.targets import NATIVE, resolve

_CALLS = 9  # on a board, of which the median counts
_KEPT_WORKLOADS = 4  # whose inputs and results are in memory


@dataclass(frozen=True)
class CrossOptions:
    """How candidates are measured elsewhere."""

    build_timeout: float = 20.0
    run_timeout: float = 30.0
    memory_gb: float = 1.0
    workers: int = 0
    recycle: int = 300
    worker_mb: int = 700
    cycles: Path | None = None  # weights of the emulator's counts, if not those that come with tpo


class CrossRunner(Runner):
    """Builds on this machine and runs at a `Place`, in modelled cycles or in seconds, as the place has it."""

    def __init__(self, target: Any, place: Place, options: CrossOptions | None = None) -> None:
        self._options = options = options or CrossOptions()
        self._place, self._weights = place, cycles.load(options.cycles)
        self._linker = toolchain.tool(place.linker)

        def settings(folder: Path) -> WorkerOptions:
            return WorkerOptions(
                target=str(target),
                threads=1,
                between_bytes=0,
                memory_bytes=4 * 2**30,  # of a worker that compiles
                confidence=1.0,
                hopeless=math.inf,
                folder=folder,
                host=str(resolve(NATIVE, 1).tvm),
            )

        self._pool = WorkerPool(settings, options.workers, options.recycle, options.worker_mb)
        self._threads = ThreadPoolExecutor(place.parallel, "tpo-place")
        self._known: OrderedDict[str, tuple[data.Signature, list[data.Array]]] = OrderedDict()
        self._number = 0

    @property
    def capabilities(self) -> Capabilities:
        """What its place measures."""
        return Capabilities(self._place.name, self._place.unit, 1, len(self._pool.workers))

    def measure(
        self, inputs: Sequence[BuildInput], best: Mapping[str, float] | None = None
    ) -> Iterator[tuple[int, Measurement]]:
        """Build all, and run each as soon as it is built; see `Runner.measure`."""
        unusable = dict(self._pool.prepare(inputs, self._options.run_timeout))
        yield from unusable.items()
        jobs, folders = deque[Job](), dict[int, Path]()
        for position, item in enumerate(inputs):
            if position not in unusable:
                self._known_of(item)
                folders[position] = self._folder()
                jobs.append(Job(position, self._export(item, folders[position])))
        waiting: dict[Future[Measurement], int] = {}
        try:
            for done in self._pool.do(jobs, self._options.build_timeout):
                if done.outcomes[0].failure is not None:
                    yield done.tag, build_failure(done)
                    continue
                done.worker.builds += 1
                run = self._threads.submit(self._run, inputs[done.tag], folders[done.tag], done)
                waiting[run] = done.tag
            for run in as_completed(waiting):
                yield waiting[run], run.result()
        finally:
            for run in waiting:
                run.cancel()
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)

    def compare(self, groups: Sequence[Sequence[BuildInput]]) -> list[list[Measurement]]:
        """Counts do not change, and a board has nothing else to do: measuring again is comparing."""
        found = [dict(self.measure(group)) for group in groups]
        return [[group[position] for position in range(len(group))] for group in found]

    def close(self) -> None:
        """Stop the workers; leave the place as it was."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
        self._place.close()

    def _folder(self) -> Path:
        self._number += 1
        # Names of one length: they are on the stack of what runs, and move what the caches see.
        folder = self._pool.folder / f"candidate-{self._number:06}"
        folder.mkdir()
        return folder

    def _export(self, item: BuildInput, folder: Path) -> Export:
        import tvm

        return Export(item.workload.key, str(tvm.ir.save_json(item.module)), folder, self._linker)

    def _known_of(self, item: BuildInput) -> tuple[data.Signature, list[data.Array]]:
        """Inputs and results of a workload, from the folder the workers wrote them to."""
        key = item.workload.key
        if key not in self._known:
            self._known[key] = data.load(self._pool.folder / key)
            while len(self._known) > _KEPT_WORKLOADS:
                self._known.popitem(last=False)
        return self._known[key]

    def _run(self, item: BuildInput, folder: Path, done: Done) -> Measurement:
        """Run a library that was built, and compare what it computes."""
        options = self._options
        ran = self._place.run(folder, _CALLS, options.run_timeout, int(options.memory_gb * 2**30))
        if ran.failure is not None:
            return Measurement.failed(ran.failure, ran.message, done.seconds)
        known, arrays = self._known_of(item)
        made = files.read_results(folder / files.RESULTS, folder / files.ARGUMENTS)
        checks = []
        for k in known.outputs:
            result = np.frombuffer(made[k], arrays[k].dtype).reshape(arrays[k].shape)
            checks.append(data.difference(result, arrays[k]))
        error, wrong = max(e for e, _ in checks), next((text for _, text in checks if text), "")
        if wrong:
            failed = Measurement.failed(Failure.WRONG_RESULT, wrong, done.seconds)
            return replace(failed, error=error, counters=ran.counters)
        modelled = self._place.unit == "cycles"
        if modelled and not ran.counters:
            return Measurement.failed(Failure.RUN_ERROR, f"right, but {self._place.note}", done.seconds)
        samples = (self._weights.cycles(ran.counters),) if modelled else ran.seconds
        return Measurement(
            statistics.median(samples),
            samples,
            error=error,
            build_seconds=done.seconds,
            run_seconds=sum(ran.seconds),
            counters=ran.counters,
        )
