"""Handing jobs to worker processes, and turning every way a worker can fail into an outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from tpo.measure.contract import Failure
from tpo.measure.process import WorkerDiedError, WorkerProcess, WorkerTimeoutError
from tpo.measure.protocol import Build, Outcome, Reply, Request


@dataclass(frozen=True)
class Job:
    """A request, and what the one who asked calls it."""

    tag: Any
    request: Request


@dataclass(frozen=True)
class Done:
    """What became of a job; a worker that failed altogether leaves one failed outcome."""

    tag: Any
    worker: WorkerProcess
    outcomes: tuple[Outcome, ...]
    number: int = 0
    seconds: float = 0.0


def dispatch(queues: Mapping[WorkerProcess, deque[Job]], timeout: float) -> Iterator[Done]:
    """Have the jobs of all queues done, each worker taking from its own; workers may share a queue.

    A worker that dies is started again at once. Returns when all workers are idle and ready.
    """
    current: dict[WorkerProcess, Job | None] = {}  # None: it is starting
    for worker in queues:
        if not worker.ready:
            current[worker] = None
        elif queues[worker]:
            current[worker] = _next(worker, queues[worker], timeout)
    try:
        yield from _collect(queues, current, timeout)
    finally:
        # Whoever stopped listening leaves workers with an answer that belongs to nobody.
        for worker, job in current.items():
            if job is not None:
                worker.stop()


def _collect(
    queues: Mapping[WorkerProcess, deque[Job]], current: dict[WorkerProcess, Job | None], timeout: float
) -> Iterator[Done]:
    while current:
        soonest = min(worker.seconds_left for worker in current)
        answering = wait([worker.connection for worker in current], soonest)
        for worker in [w for w in current if w.connection in answering or w.seconds_left == 0]:
            job = current.pop(worker)
            done = _receive(worker, job)
            if not worker.alive:
                worker.start()
                current[worker] = None
            elif queues[worker]:
                current[worker] = _next(worker, queues[worker], timeout)
            if job is not None:
                yield done


def ask(worker: WorkerProcess, job: Job, timeout: float) -> Done:
    """Have one job done by one worker, while all others are silent. It is not started again."""
    worker.send(job.request, timeout)
    return _receive(worker, job)


def _next(worker: WorkerProcess, queue: deque[Job], timeout: float) -> Job:
    job = queue.popleft()
    worker.send(job.request, timeout)
    return job


def _receive(worker: WorkerProcess, job: Job | None) -> Done:
    tag = job.tag if job is not None else None
    number = job.request.number if job is not None and isinstance(job.request, Build) else 0
    try:
        reply: Reply = worker.receive()
    except WorkerTimeoutError as error:
        if job is None:
            raise RuntimeError(f"a measuring process did not start: {error}") from error
        return Done(tag, worker, (Outcome(Failure.RUN_TIMEOUT, str(error)),), number)
    except WorkerDiedError as error:
        if job is None:
            raise RuntimeError(f"a measuring process did not start: {error}") from error
        memory = "memory" in str(error) or "bad_alloc" in str(error)
        failure = Failure.OUT_OF_MEMORY if memory else Failure.CRASH
        return Done(tag, worker, (Outcome(failure, str(error)),), number)
    worker.ready = True
    return Done(tag, worker, reply.outcomes, number, reply.seconds)
