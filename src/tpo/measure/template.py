"""The process that workers are copies of: `python -m tpo.measure.template FD`.

Importing TVM takes almost two seconds of a core. The template does it once; a new worker is a fork of it,
ready in some milliseconds, whether it is the first one or follows one that crashed. The template never runs
what a candidate asks for, and has one thread: only that makes forking safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import tpo

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_MESSAGE = 64  # bytes, more than any
_TELLING = ("error", "fatal", "assert", "what():", "terminate", "out of memory")


class TemplateDiedError(Exception):
    """The process is gone, and all workers with it."""


class Template:
    """The process seen from outside. It is started when it is first needed, and again if it died."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr: IO[bytes] | None = None
        self._pids: list[int] = []  # of the workers whose making it has confirmed
        self._asked = self._first = 0  # numbers: of the next worker, and of the first one of this process

    def fork(self, connection: int, stderr: int) -> int:
        """Have a worker made that talks through one file and complains into the other; its number.

        Returns at once, even if TVM has yet to be imported.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._socket is not None
        with contextlib.suppress(OSError):  # whoever waits for the worker finds out
            socket.send_fds(self._socket, [b"fork"], [connection, stderr])
        self._asked += 1
        return self._asked - 1

    def pid(self, number: int) -> int:
        """The process id of a worker; TemplateDiedError if it never came to be."""
        if number < self._first:
            raise TemplateDiedError("the process that made it was killed")
        while len(self._pids) <= number - self._first:  # answers come in the order of the questions
            self._pids.append(self._answer())
        return self._pids[number - self._first]

    def wait(self, pid: int) -> int:
        """The exit code of a worker, when it has ended; a negative one is a signal's."""
        self.pid(self._asked - 1)
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.send(f"wait {pid}".encode())
        return self._answer()

    def stop(self) -> None:
        """Kill it, and all that is left of its workers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for file in (self._socket, self._stderr):
            if file is not None:
                file.close()
        self._process = self._socket = self._stderr = None

    def _answer(self) -> int:
        assert self._socket is not None and self._stderr is not None
        said = b""
        with contextlib.suppress(OSError):
            said = self._socket.recv(_MESSAGE)
        if not said:
            why = last_words(self._stderr) or "it was killed"
            raise TemplateDiedError(f"the process that makes workers has ended: {why}")
        return int(said)

    def _start(self) -> None:
        self.stop()
        self._pids, self._first = [], self._asked
        # A name in the file system would outlive a killed runner.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tpo.measure.template", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env=_environment(self._threads),
                # Ctrl-C in the terminal is for the runner, which stops its workers itself.
                start_new_session=True,
            )


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


def last_words(stderr: IO[bytes]) -> str:
    """The last line of what a process has said that tells why it ended; nothing if there is none."""
    stderr.seek(0)
    lines = [line.strip() for line in stderr.read().decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if any(word in line.lower() for word in _TELLING)), "")


def die_with_parent(parent: int) -> None:
    """Ask the kernel to: whoever dies without a word takes its workers along, even from endless loops."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(0)


def serve(asked: socket.socket, parent: int) -> None:
    """Make workers, and wait for those that have died, until the other side is gone."""
    die_with_parent(parent)
    from tpo import vector_math
    from tpo.measure import worker

    vector_math.register()
    gc.freeze()  # a collection in a worker would copy every page of what was imported
    own = os.getpid()
    while True:
        said, files, _, _ = socket.recv_fds(asked, _MESSAGE, 2)
        if not said:
            return
        if said.startswith(b"wait"):
            _, status = os.waitpid(int(said.split()[1]), 0)
            asked.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if not pid:
            asked.close()
            die_with_parent(own)
            os.dup2(files[1], 1)
            os.dup2(files[1], 2)
            os.close(files[1])
            worker.serve(Connection(files[0]))
            os._exit(0)
        for file in files:
            os.close(file)
        asked.send(str(pid).encode())


if __name__ == "__main__":
    # Under its real module's name, like everything that is pickled.
    from tpo.measure import template as module

    module.serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
