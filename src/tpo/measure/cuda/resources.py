"""What a kernel takes of a GPU, as NVIDIA's compiler says it: registers, spills, shared memory, occupancy.

Nobody runs anything here. Without a compiler there is nothing to read: `compiler()` is None then.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpo.hardware import Gpu
from tpo.measure.cuda.program import Launch, Program

RESIDENT_THREADS, RESIDENT_BLOCKS = 2048, 32  # of one multiprocessor, for most architectures
_FEWER_THREADS = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536}
_REGISTERS_AT_ONCE = 256  # that a warp is given, or a multiple

_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class CubinError(Exception):
    """NVIDIA's compiler refuses a source: its first complaint, in a line."""


@dataclass(frozen=True)
class Resources:
    """What one launch of a kernel takes. `occupancy` is the share of a multiprocessor's threads that run."""

    kernel: str
    registers: int
    spilled: int  # bytes that are stored and loaded again for want of registers
    shared: int  # bytes of one block
    threads: int
    occupancy: float

    def refusal(self, gpu: Gpu) -> str:
        """Why the kernel would not start, or is not worth it; "" if it would and is."""
        if self.threads > gpu.max_threads_per_block:
            return (
                f"{self.kernel}: {self.threads} threads in a block, {gpu.max_threads_per_block} is the most"
            )
        if self.shared > gpu.shared_bytes:
            return f"{self.kernel}: {self.shared} bytes of shared memory, {gpu.shared_bytes} is the most"
        if self.registers * self.threads > gpu.registers:
            return f"{self.kernel}: {self.registers} registers for each of {self.threads} threads"
        if self.spilled:
            return f"{self.kernel}: {self.spilled} bytes of registers are spilled"
        return ""


def compiler() -> str | None:
    """NVIDIA's compiler, if it is installed."""
    return shutil.which("nvcc")


def resources_of(program: Program, gpu: Gpu, timeout: float = 60.0) -> list[Resources]:
    """What every launch of a program takes on a GPU; `CubinError` if it does not compile."""
    said = _compile(program.source, gpu, timeout)
    return [_resources(launch, said[launch.kernel], gpu) for launch in program.launches]


def _compile(source: str, gpu: Gpu, timeout: float) -> Mapping[str, str]:
    """What the assembler says of every kernel."""
    nvcc = compiler()
    if nvcc is None:
        raise CubinError("nvcc is not installed")
    with tempfile.TemporaryDirectory(prefix="tpo-cubin-") as folder:
        path = Path(folder) / "kernels.cu"
        path.write_text(source, encoding="utf-8")
        command = [nvcc, "-cubin", "-w", "-O3", f"-arch=sm_{gpu.sm}", "-Xptxas", "-v"]
        try:
            done = subprocess.run(
                [*command, "-o", f"{folder}/kernels.cubin", str(path)],
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CubinError(f"nvcc takes more than {timeout:.0f} s") from error
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
        raise CubinError(next((line for line in lines if "error" in line), lines[-1]))
    parts = _KERNEL.split(done.stderr)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _resources(launch: Launch, said: str, gpu: Gpu) -> Resources:
    spills, used, static = _SPILLS.search(said), _USED.search(said), _SHARED.search(said)
    registers = int(used[1]) if used else 0
    spilled = int(spills[2]) + int(spills[3]) if spills else 0
    shared = (int(static[1]) if static else 0) + launch.dynamic_shared
    return Resources(
        launch.kernel,
        registers,
        spilled,
        shared,
        launch.threads,
        occupancy(registers, shared, launch.threads, gpu),
    )


def occupancy(registers: int, shared: int, threads: int, gpu: Gpu) -> float:
    """The share of a multiprocessor's threads that run at once.

    >>> a100 = Gpu("cuda", 80, 1024, 32, 163 * 1024)
    >>> occupancy(32, 0, 256, a100), occupancy(128, 0, 256, a100), occupancy(32, 100_000, 256, a100)
    (1.0, 0.25, 0.125)
    """
    resident = _FEWER_THREADS.get(gpu.sm, RESIDENT_THREADS)
    warps = -(-threads // gpu.warp_size)
    of_warp = -(-max(registers, 1) * gpu.warp_size // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    blocks = min(resident // (warps * gpu.warp_size), RESIDENT_BLOCKS, gpu.registers // (of_warp * warps))
    if shared:
        blocks = min(blocks, gpu.shared_bytes // shared)
    return blocks * warps * gpu.warp_size / resident
