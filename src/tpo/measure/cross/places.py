"""Where kernels of another machine run: in QEMU, which counts instructions, or on a board, with a clock."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpo.errors import BoardError
from tpo.hardware import available_cores
from tpo.measure.contract import Failure
from tpo.measure.cross import files, toolchain

# The harness's exit codes: its own refusals, and memory that was asked for beyond its limit.
_ERROR, _OUT_OF_MEMORY = 3, 4
_MODELLED_L1_KIB, _MODELLED_L2_KIB = 32, 512


@dataclass(frozen=True)
class Ran:
    """What became of a kernel that was started: its results are in its folder if nothing failed."""

    seconds: tuple[float, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    message: str = ""


class Place(ABC):
    """Somewhere to run kernels, so many at a time. `unit` is what is measured there, if anything is."""

    name: str
    unit: str
    parallel: int
    note: str = ""  # what a user should know of it
    linker: str = toolchain.LINKER

    @abstractmethod
    def run(self, folder: Path, calls: int, timeout: float, memory_bytes: int) -> Ran:
        """Call the kernel of a folder so often; the results of the last call end up in the folder."""

    def close(self) -> None:  # noqa: B027 (most places have nothing to leave)
        """Leave nothing behind."""


class Qemu(Place):
    """QEMU's user mode emulation. Its times mean nothing; with our plugin it counts what kernels do."""

    unit = "cycles"

    def __init__(self, vlen: int) -> None:
        self._emulator, self._harness = toolchain.tool(toolchain.EMULATOR), toolchain.harness()
        self._plugin = toolchain.plugin()
        self.vlen = vlen
        self.name = f"qemu, vlen {vlen}"
        self.parallel = available_cores()
        if self._plugin.path is None:
            self.note = f"nothing can be counted, only checked: {self._plugin.why}"

    @property
    def counts(self) -> bool:
        """Whether kernels are counted; else they are only checked."""
        return self._plugin.path is not None

    def command(self, *program: str) -> list[str]:
        """A command that runs a program of the guest's, without counting."""
        cpu = f"rv64,v=true,vext_spec=v1.0,vlen={self.vlen},elen=64"
        return [self._emulator, "-cpu", cpu, "-L", str(toolchain.SYSROOT), *program]

    def run(self, folder: Path, calls: int, timeout: float, memory_bytes: int) -> Ran:
        """Once is enough, however many calls are asked for: counts do not change."""
        return self.run_program(
            [str(self._harness), *_harness_arguments(str(folder), 1, memory_bytes)], timeout
        )

    def run_program(self, program: Sequence[str], timeout: float) -> Ran:
        """Run a program that marks what is to be counted, and prints times as the harness does."""
        plugin = ["-plugin", ",".join([str(self._plugin.path), *self._settings()])] if self.counts else []
        process = subprocess.Popen(
            self.command(*plugin, *program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Ran(failure=Failure.RUN_TIMEOUT, message=f"no result within {timeout:g} s")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return understood(process.returncode, out, err)

    def _settings(self) -> list[str]:
        return [f"vlen={self.vlen}", f"l1={_MODELLED_L1_KIB}", f"l2={_MODELLED_L2_KIB}"]


class Board(Place):
    """A machine that is reached by ssh, and needs nothing but a shell and the C library.

    `wrapper` is a command that runs the harness there, such as `taskset 0x2`.
    """

    unit = "seconds"
    parallel = 1

    def __init__(self, host: str, options: Sequence[str] = (), wrapper: str = "") -> None:
        """Connects at once, so that a board that cannot be reached is known before anything is built."""
        if shutil.which("ssh") is None:
            raise BoardError(host=host, why="there is no ssh here (apt-get install openssh-client)")
        self.name = f"board {host}"
        self._host, self._wrapper = host, wrapper
        self._sockets = tempfile.mkdtemp(prefix="tpo-ssh-")
        shared = [
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=60",
            "-o",
            f"ControlPath={self._sockets}/%C",
        ]
        self._ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *shared, *options, host]
        self._folder = f".tpo-{uuid.uuid4().hex[:12]}"
        self._finish = weakref.finalize(self, _leave, self._ssh, self._folder, self._sockets)
        self._tell(f"mkdir -p {self._folder}", timeout=30.0)
        self._send(toolchain.harness(), "harness", timeout=30.0)
        self._tell(f"chmod +x {self._folder}/harness", timeout=30.0)

    def run(self, folder: Path, calls: int, timeout: float, memory_bytes: int) -> Ran:
        """Send, run, fetch."""
        for name in (files.LIBRARY, files.ARGUMENTS):
            self._send(folder / name, name, timeout)
        program = [*shlex.split(self._wrapper), "./harness", *_harness_arguments(".", calls, memory_bytes)]
        # The shell's number is the program's: so it can be killed, whatever it does.
        script = f"cd {self._folder} && echo $$ > pid && exec {shlex.join(program)}"
        try:
            done = self._do(f"sh -c {shlex.quote(script)}", timeout)
        except subprocess.TimeoutExpired:
            self._do(f"kill -9 $(cat {self._folder}/pid)", timeout=30.0)
            return Ran(failure=Failure.RUN_TIMEOUT, message=f"no result within {timeout:g} s")
        ran = understood(
            _signalled(done.returncode), done.stdout.decode(), done.stderr.decode("utf-8", "replace")
        )
        if ran.failure is None:
            fetched = self._tell(f"cat {self._folder}/{files.RESULTS}", timeout)
            (folder / files.RESULTS).write_bytes(fetched)
        return ran

    def close(self) -> None:
        """Remove what was sent."""
        self._finish()

    def _send(self, file: Path, name: str, timeout: float) -> None:
        with file.open("rb") as content:
            self._tell(f"cat > {self._folder}/{name}", timeout, content.read())

    def _tell(self, command: str, timeout: float, content: bytes = b"") -> bytes:
        """What a command prints that cannot fail unless the board does."""
        try:
            done = self._do(command, timeout, content)
        except subprocess.TimeoutExpired as error:
            raise BoardError(host=self._host, why=f"no answer within {timeout:g} s") from error
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["the command failed"]
            raise BoardError(host=self._host, why=lines[-1])
        return done.stdout

    def _do(self, command: str, timeout: float, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self._ssh, command], input=content, capture_output=True, timeout=timeout, check=False
        )


def _harness_arguments(folder: str, calls: int, memory_bytes: int) -> list[str]:
    place = f"{folder}/"
    return [
        *(f"{place}{files.LIBRARY}", files.FUNCTION, f"{place}{files.ARGUMENTS}", f"{place}{files.RESULTS}"),
        *(str(calls), str(memory_bytes)),
    ]


def _signalled(code: int) -> int:
    """A shell's exit code as Python has it: negative for a signal."""
    return 128 - code if code > 128 else code


def understood(code: int, out: str, err: str) -> Ran:
    """What the harness, and perhaps the plugin, have said.

    >>> understood(0, "TIME 0.5", "TPO vector=7 branch=1").counters
    {'vector': 7, 'branch': 1}
    >>> understood(-11, "", "").message
    'SIGSEGV'
    """
    said = [line.removeprefix("error: ") for line in err.splitlines() if line.startswith("error: ")]
    if code < 0:
        return Ran(failure=Failure.CRASH, message=_signal_name(-code))
    if code == _OUT_OF_MEMORY:
        return Ran(failure=Failure.OUT_OF_MEMORY, message=(said or ["out of memory"])[0])
    if code:
        lines = said or err.strip().splitlines() or [f"exit code {code}"]
        return Ran(failure=Failure.RUN_ERROR, message=lines[0])
    seconds = tuple(float(text) for text in re.findall(r"^TIME (\S+)$", out, re.MULTILINE))
    counted = [line for line in err.splitlines() if line.startswith("TPO ")]
    pairs = re.findall(r"(\w+)=(\d+)", counted[-1]) if counted else []
    return Ran(seconds, {name: int(number) for name, number in pairs})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _leave(ssh: list[str], folder: str, sockets: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([*ssh, f"rm -rf {folder}"], capture_output=True, timeout=10.0, check=False)
        # To the process that holds the connection open.
        subprocess.run([*ssh[:-1], "-O", "exit", ssh[-1]], capture_output=True, timeout=10.0, check=False)
    shutil.rmtree(sockets, ignore_errors=True)
