"""A worker process seen from outside: start it, talk to it, find out why it died, get rid of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import tpo
from tpo.measure.protocol import Reply, Request, WorkerOptions

_START_TIMEOUT = 120.0


class WorkerDiedError(Exception):
    """The process ended; the message says how, with the last thing it said."""


class WorkerTimeoutError(Exception):
    """The process did not answer in time, and was killed."""


class WorkerProcess:
    """One worker; `generation` counts how often it was started again."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._stderr: IO[bytes] | None = None
        self._timeout = self._deadline = 0.0
        self.ready = False
        self.builds = 0
        self.resident_bytes = 0
        self.generation = -1

    @property
    def alive(self) -> bool:
        """Whether there is a process to talk to."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid if self._process is not None else None

    @property
    def connection(self) -> Connection:
        """What `multiprocessing.connection.wait` takes."""
        assert self._connection is not None
        return self._connection

    def start(self) -> None:
        """Start the process; its first answer, to no request, says that it is ready."""
        ours, theirs = Pipe()
        # A name in the file system would outlive a killed runner.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tpo.measure.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env=_environment(self._options.threads),
                # Ctrl-C in the terminal is for the runner, which stops its workers itself.
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection = ours
        self.ready = False
        self.builds = self.resident_bytes = 0
        self.generation += 1
        self._tell(self._options, _START_TIMEOUT)

    def send(self, request: Request, timeout: float) -> None:
        """Hand over a request; the answer, or its absence, is due within `timeout` seconds."""
        self._tell(request, timeout)

    def _tell(self, message: Request | WorkerOptions, timeout: float) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        # One that died since its last answer cannot be told anything; `receive` will find out.
        with contextlib.suppress(OSError):
            self.connection.send(message)

    @property
    def seconds_left(self) -> float:
        """Until the answer is due."""
        return max(0.0, self._deadline - time.monotonic())

    def receive(self) -> Reply:
        """The answer to the last request; WorkerDiedError or WorkerTimeoutError if there is none."""
        try:
            if not self.connection.poll(self.seconds_left):
                self.stop()
                raise WorkerTimeoutError(f"no answer within {self._timeout:g} s")
            reply: Reply = self.connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerDiedError(self._obituary()) from None
        self.resident_bytes = reply.resident_bytes or self.resident_bytes
        return reply

    def stop(self) -> None:
        """Kill the process; it holds nothing that could be lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._stderr is not None:
            self._stderr.close()
        self._process = self._connection = self._stderr = None

    def _obituary(self) -> str:
        assert self._process is not None and self._stderr is not None
        code = self._process.wait()
        cause = f"exit code {code}"
        if code < 0:
            cause = signal.Signals(-code).name
        self._stderr.seek(0)
        said = self._stderr.read().decode("utf-8", "replace")
        telling = [line.strip() for line in said.splitlines() if _is_telling(line)]
        self._forget()
        return f"{cause}: {telling[-1]}" if telling else cause


def _is_telling(line: str) -> bool:
    text = line.lower()
    return any(word in text for word in ("error", "fatal", "assert", "what():", "terminate", "out of memory"))


def _environment(threads: int) -> dict[str, str]:
    """The runner's own, so that the same tpo is found, with the number of threads said explicitly."""
    source = str(Path(tpo.__file__).parent.parent)
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "TVM_NUM_THREADS": str(threads),
        "TVM_BIND_THREADS": "0",
        # numpy's own workers would wait beside the kernels that are timed.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
