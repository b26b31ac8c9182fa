"""A machine that has TVM's runtime and runs its RPC server: `python -m tvm.exec.rpc_server --port 9090`."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

from tpo.errors import BoardError
from tpo.measure.contract import Failure
from tpo.measure.cross import toolchain
from tpo.measure.cross.places import Place, Ran

_GETTING_READY = 20.0  # seconds in which the client has imported TVM


class Rpc(Place):
    """Runs kernels over TVM's RPC; what hangs or dies there costs one trial and one connection."""

    unit = "seconds"
    parallel = 1

    def __init__(self, address: str, linker: str = toolchain.LINKER) -> None:
        """The address is HOST:PORT."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise BoardError(host=address, why="the address of an RPC server is HOST:PORT")
        self.name, self.linker = f"rpc {address}", linker
        self._host, self._port = host, int(port)
        self._client: subprocess.Popen[str] | None = None

    def run(self, folder: Path, calls: int, timeout: float, memory_bytes: int) -> Ran:
        """Have the client do it; one that does not answer is replaced."""
        client = self._client or self._start()
        request = {
            "host": self._host,
            "port": self._port,
            "folder": str(folder),
            "calls": calls,
            "timeout": max(1, round(timeout)),
        }
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(json.dumps(request) + "\n")
        client.stdin.flush()
        ready, _, _ = select.select([client.stdout], [], [], timeout + _GETTING_READY)
        line = client.stdout.readline() if ready else ""
        if not line:
            self.close()
            failure = Failure.CRASH if ready else Failure.RUN_TIMEOUT
            return Ran(failure=failure, message=f"{self.name} does not answer")
        said = json.loads(line)
        if "error" not in said:
            return Ran(tuple(said["seconds"]))
        failure = _failure(said["error"])
        if failure is Failure.CRASH:  # what is left of the connection is of no use
            self.close()
        return Ran(failure=failure, message=said["error"])

    def close(self) -> None:
        """Stop the client."""
        if self._client is not None:
            self._client.kill()
            self._client.communicate()
        self._client = None

    def _start(self) -> subprocess.Popen[str]:
        self._client = subprocess.Popen(
            [sys.executable, "-m", "tpo.measure.cross.rpc_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._client


def _failure(message: str) -> Failure:
    """What an error of the RPC client's means for the candidate.

    >>> print(_failure("RPCError: connection reset"), _failure("there is no such function"))
    crash run-error
    """
    gone = ("connection", "sock", "shutdown", "rpcsessiontimeout", "closed", "eof")
    return Failure.CRASH if any(word in message.lower() for word in gone) else Failure.RUN_ERROR
