"""A worker process seen from outside: start it, talk to it, find out why it died, get rid of it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

from tpo.measure.protocol import Reply, Request, WorkerOptions
from tpo.measure.template import Template, TemplateDiedError, last_words

_START_TIMEOUT = 120.0


class WorkerDiedError(Exception):
    """The process ended; the message says how, with the last thing it said."""


class WorkerTimeoutError(Exception):
    """The process did not answer in time, and was killed."""


class WorkerProcess:
    """One worker; `generation` counts how often it was started again."""

    def __init__(self, options: WorkerOptions, template: Template) -> None:
        self._options = options
        self._template = template
        self._number: int | None = None  # of the process, among those that the template has made
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
        return self._number is not None

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._template.pid(self._number) if self._number is not None else None

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
            self._number = self._template.fork(theirs.fileno(), self._stderr.fileno())
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
        with contextlib.suppress(TemplateDiedError):  # which took the worker along
            if self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)
                self._template.wait(self.pid)
        self._forget()

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._stderr is not None:
            self._stderr.close()
        self._number = self._connection = self._stderr = None

    def _obituary(self) -> str:
        assert self.alive and self._stderr is not None
        try:
            assert self.pid is not None
            code = self._template.wait(self.pid)
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except TemplateDiedError as error:
            cause = str(error)
        said = last_words(self._stderr)
        self._forget()
        return f"{cause}: {said}" if said else cause
