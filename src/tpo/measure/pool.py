"""The worker processes of a runner, and the folder with the inputs and results to compare with."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tpo.hardware import available_cores
from tpo.measure.contract import BuildInput, Failure, Measurement
from tpo.measure.dispatch import Done, Job, dispatch
from tpo.measure.process import WorkerProcess
from tpo.measure.protocol import Reference, WorkerOptions
from tpo.measure.template import Template

# A reference is an unscheduled function: it may take a hundred times longer than what is timed.
_REFERENCE_PATIENCE = 30


class WorkerPool:
    """Workers that are replaced after some builds, when they have grown too large, and when they died."""

    def __init__(
        self,
        options: Callable[[Path], WorkerOptions],
        count: int = 0,
        recycle: int = 300,
        worker_mb: int = 700,
    ) -> None:
        """`options` are those of a worker, given the folder; one worker for every core, unless counted."""
        self.folder = Path(tempfile.mkdtemp(prefix="tpo-measure-"))
        settings = options(self.folder)
        template = Template(settings.threads)
        self.workers = [WorkerProcess(settings, template) for _ in range(count or available_cores())]
        self._recycle, self._worker_mb = recycle, worker_mb
        self._problems: dict[str, str] = {}  # of references, by workload key; "" when there is none
        self.close = weakref.finalize(self, _clean_up, template, self.workers, self.folder, os.getpid())
        self.renew()  # they get ready while others think about what to measure

    def renew(self) -> None:
        """Stop workers that have built enough or grown too large, and start all that are missing."""
        for worker in self.workers:
            worn_out = worker.builds >= self._recycle
            if worker.alive and (worn_out or worker.resident_bytes > self._worker_mb * 2**20):
                worker.stop()
        for worker in self.workers:
            if not worker.alive:
                worker.start()

    def prepare(self, inputs: Sequence[BuildInput], timeout: float) -> Iterator[tuple[int, Measurement]]:
        """Start workers, compute references that are missing; inputs that cannot have one fail."""
        self.renew()
        new = {i.workload.key: i.workload for i in inputs if i.workload.key not in self._problems}
        queue = deque(Job(key, Reference(key, workload.to_json())) for key, workload in new.items())
        for done in dispatch(dict.fromkeys(self.workers, queue), timeout * _REFERENCE_PATIENCE):
            outcome = done.outcomes[0]
            self._problems[done.tag] = outcome.message if outcome.failure is not None else ""
        for position, item in enumerate(inputs):
            problem = self._problems[item.workload.key]
            if problem:
                text = f"the unscheduled function itself fails: {problem}"
                yield position, Measurement.failed(Failure.RUN_ERROR, text)

    def do(self, jobs: deque[Job], timeout: float) -> Iterator[Done]:
        """Have some jobs done, by all workers at once."""
        self.renew()
        yield from dispatch(dict.fromkeys(self.workers, jobs), timeout)


def build_failure(done: Done) -> Measurement:
    """What a build that failed is for those who wait for a time."""
    outcome = done.outcomes[0]
    assert outcome.failure is not None
    failure = Failure.BUILD_TIMEOUT if outcome.failure is Failure.RUN_TIMEOUT else outcome.failure
    return Measurement.failed(failure, f"while building: {outcome.message}", done.seconds)


def _clean_up(template: Template, workers: list[WorkerProcess], folder: Path, owner: int) -> None:
    # A forked child inherits the runner, and must not kill the workers of its parent.
    if os.getpid() == owner:
        for worker in workers:
            worker.stop()
        template.stop()
        shutil.rmtree(folder, ignore_errors=True)
