"""Measuring on this machine: persistent workers build together, then time one after the other.

A batch goes through rounds of two phases. First every worker builds, on all cores. Then they fall
silent, and one candidate at a time has the machine for itself. A candidate that takes its worker
down is one failed measurement; what that worker had built and not yet timed is built again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm

from tpo.measure.contract import BuildInput, Capabilities, Measurement, Runner
from tpo.measure.dispatch import Done, Job, ask, dispatch
from tpo.measure.pool import WorkerPool, build_failure
from tpo.measure.process import WorkerProcess
from tpo.measure.protocol import Build, Compare, Outcome, Time, WorkerOptions
from tpo.measure.timing import Timing

# Candidates built before they are timed: enough to keep all workers busy, few enough to lose.
_BUILT_PER_WORKER = 8
# A candidate that needs a thousand times as long as the best, and some time to get ready, is given up.
_HOPELESS_PATIENCE, _GETTING_READY = 1000, 5.0


@dataclass(frozen=True)
class MeasureOptions:
    """How candidates are measured.

    `hopeless` is how many times slower than the best ends a candidate's timing; a worker is replaced
    after `recycle` builds, or when it has grown beyond `worker_mb`. `between_mb` is how much memory the
    rest of the model touches between two calls of a candidate: so much of the caches is lost to it.
    """

    threads: int
    between_mb: float = 0.0
    workers: int = 0
    build_timeout: float = 5.0
    run_timeout: float = 10.0
    memory_gb: float = 4.0
    confidence: float = 0.02
    hopeless: float = 3.0
    recycle: int = 300
    worker_mb: int = 700


@dataclass(frozen=True)
class _Built:
    """A candidate inside a worker; gone when that worker was replaced since."""

    position: Any
    number: int
    worker: WorkerProcess
    generation: int
    build_seconds: float

    @property
    def alive(self) -> bool:
        return self.worker.alive and self.worker.generation == self.generation


class LocalRunner(Runner):
    """Builds and times on this machine's CPU."""

    def __init__(self, target: Any, options: MeasureOptions) -> None:
        self._options = options

        def settings(folder: Path) -> WorkerOptions:
            return WorkerOptions(
                target=str(target),
                threads=options.threads,
                between_bytes=int(options.between_mb * 2**20),
                memory_bytes=int(options.memory_gb * 2**30),
                confidence=options.confidence,
                hopeless=options.hopeless,
                folder=folder,
            )

        self._pool = WorkerPool(settings, options.workers, options.recycle, options.worker_mb)
        self._workers = self._pool.workers
        self._last_number = 0

    @property
    def capabilities(self) -> Capabilities:
        """Seconds, on the number of threads asked for."""
        return Capabilities("local", "seconds", self._options.threads, len(self._workers))

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        """The worker processes, for those who watch them."""
        return tuple(self._workers)

    def measure(
        self, inputs: Sequence[BuildInput], best: Mapping[str, float] | None = None
    ) -> Iterator[tuple[int, Measurement]]:
        """Build and time every input; see `Runner.measure`."""
        times = dict(best or {})
        unusable = dict(self._pool.prepare(inputs, self._options.run_timeout))
        yield from unusable.items()
        waiting = deque(k for k in range(len(inputs)) if k not in unusable)
        while waiting:
            chunk = {k: inputs[k] for k in list(waiting)[: _BUILT_PER_WORKER * len(self._workers)]}
            built: list[_Built] = []
            for position, result in self._build(chunk):
                if isinstance(result, _Built):
                    built.append(result)
                else:
                    waiting.remove(position)
                    yield position, result
            # One worker's candidates after the other's: a process that has slept is slow to get both cores.
            for item in sorted(built, key=lambda item: self._workers.index(item.worker)):
                if not item.alive:
                    continue
                key = inputs[item.position].workload.key
                measurement = self._time(item, times.get(key, math.inf))
                if measurement.seconds is not None:
                    times[key] = min(times.get(key, math.inf), measurement.seconds)
                waiting.remove(item.position)
                yield item.position, measurement

    def compare(self, groups: Sequence[Sequence[BuildInput]]) -> list[list[Measurement]]:
        """Time each group in one worker, in turns; see `Runner.compare`."""
        results: list[list[Measurement]] = []
        for start in range(0, len(groups), len(self._workers)):
            some = groups[start : start + len(self._workers)]
            together = self._compare_some(some)
            for group, measurements in zip(some, together, strict=True):
                if measurements is None:
                    # One of them took the worker down, and nobody knows who: each on its own.
                    alone = dict(self.measure(group))
                    measurements = [alone[position] for position in range(len(group))]
                results.append(measurements)
        return results

    def close(self) -> None:
        """Kill the workers and remove the reference data."""
        self._pool.close()

    def _build(self, inputs: Mapping[int, BuildInput]) -> Iterator[tuple[int, _Built | Measurement]]:
        """Build on all workers at once."""
        queue = deque(self._build_job(position, item) for position, item in inputs.items())
        for done in self._pool.do(queue, self._options.build_timeout):
            yield done.tag, self._built(done)

    def _compare_some(self, groups: Sequence[Sequence[BuildInput]]) -> list[list[Measurement] | None]:
        """One group per worker: all built at once, then timed one group after the other."""
        flat = [item for group in groups for item in group]
        if dict(self._pool.prepare(flat, self._options.run_timeout)):
            return [None] * len(groups)
        self._pool.renew()
        queues = {
            worker: deque(self._build_job((g, p), item) for p, item in enumerate(group))
            for worker, (g, group) in zip(self._workers, enumerate(groups), strict=False)
        }
        built: list[list[_Built]] = [[] for _ in groups]
        for done in dispatch(queues, self._options.build_timeout):
            item = self._built(done)
            if isinstance(item, _Built):
                built[done.tag[0]].append(item)
        return [
            self._compare_built(items) if len(items) == len(group) else None
            for items, group in zip(built, groups, strict=True)
        ]

    def _compare_built(self, built: list[_Built]) -> list[Measurement] | None:
        if not all(item.alive for item in built):
            return None
        request = Compare(tuple(item.number for item in built))
        done = ask(built[0].worker, Job(None, request), self._options.run_timeout * len(built))
        if len(done.outcomes) != len(built):
            return None
        return [
            _measurement(outcome, item.build_seconds, done.seconds / len(built))
            for item, outcome in zip(built, done.outcomes, strict=True)
        ]

    def _build_job(self, tag: Any, item: BuildInput) -> Job:
        self._last_number += 1
        return Job(tag, Build(self._last_number, item.workload.key, str(tvm.ir.save_json(item.module))))

    def _built(self, done: Done) -> _Built | Measurement:
        if done.outcomes[0].failure is not None:
            return build_failure(done)
        done.worker.builds += 1
        return _Built(done.tag, done.number, done.worker, done.worker.generation, done.seconds)

    def _time(self, item: _Built, best: float) -> Measurement:
        job = Job(item.position, Time(item.number, best))
        done = ask(item.worker, job, patience(self._options.run_timeout, best))
        return _measurement(done.outcomes[0], item.build_seconds, done.seconds)


def patience(run_timeout: float, best: float) -> float:
    """How long to wait for a candidate; a best of zero asks for a check, and says nothing about time.

    >>> patience(20.0, 0.001), patience(20.0, math.inf), patience(20.0, 0.0), patience(2.0, 0.001)
    (6.0, 20.0, 20.0, 2.0)
    """
    return min(run_timeout, _GETTING_READY + _HOPELESS_PATIENCE * (best or math.inf))


def _measurement(outcome: Outcome, build_seconds: float, run_seconds: float) -> Measurement:
    if outcome.failure is not None:
        return replace(
            Measurement.failed(outcome.failure, outcome.message, build_seconds), error=outcome.error
        )
    return Measurement(
        seconds=Timing(outcome.samples, outcome.drift).seconds,
        samples=outcome.samples,
        cut_short=outcome.cut_short,
        drift=outcome.drift,
        error=outcome.error,
        build_seconds=build_seconds,
        run_seconds=run_seconds,
    )
