"""CUDA C run on the CPU: slowly, but with all that decides about its numbers.

`include/` says how: threads are fibers, barriers wait, asynchronous copies happen when they are waited for.
A kernel that forgets a barrier computes something else in one of the two orders of threads.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tpo.errors import ToolMissingError
from tpo.measure.cuda.program import Launch, Program
from tpo.targets import host_compiler

ORDERS = ("forwards", "backwards")

_INCLUDE = Path(__file__).with_name("include")
_REFUSED = 3  # exit code of the emulation that says what is wrong
_OPTIONS = [
    *("-std=c++17", "-O1", "-w", "-fpermissive"),
    "-fno-strict-aliasing",  # kernels look at numbers as vectors of others
    "-ftrivial-auto-var-init=pattern",  # what nobody has written must not be zero by chance
]

Array = np.ndarray[Any, Any]


class EmulationError(Exception):
    """A program that cannot be emulated, or that no GPU would run: what is wrong with it, in a line."""


class Emulator:
    """A program that was compiled for this machine's CPU; a context manager, because it has a folder."""

    def __init__(self, program: Program, build_timeout: float = 120.0) -> None:
        self._program = program
        self._holder = tempfile.TemporaryDirectory(prefix="tpo-cuda-")
        self._folder = Path(self._holder.name)
        try:
            self._compile(build_timeout)
        except BaseException:
            self._holder.cleanup()
            raise

    def run(
        self, arrays: Sequence[Array], outputs: Sequence[int], order: str = ORDERS[0], timeout: float = 300.0
    ) -> list[Array]:
        """Call the function with some arrays, and return all of them, its outputs as it wrote them."""
        for number, array in enumerate(arrays):
            self._file(number).unlink(missing_ok=True)  # a result is nothing before it is written
            if number not in outputs:
                np.ascontiguousarray(array).tofile(self._file(number))
        try:
            done = subprocess.run(
                [str(self._folder / "emulated"), str(self._folder), order, *map(str, outputs)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EmulationError(f"it does not end within {timeout:.0f} s") from error
        if done.returncode == -signal.SIGSEGV:
            raise EmulationError("it reads or writes beyond the end of an array")
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EmulationError(
                said if done.returncode == _REFUSED else f"exit code {done.returncode}: {said}"
            )
        return [
            np.fromfile(self._file(number), array.dtype).reshape(array.shape) if number in outputs else array
            for number, array in enumerate(arrays)
        ]

    def __enter__(self) -> Emulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.cleanup()

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.bin"

    def _compile(self, timeout: float) -> None:
        source = self._folder / "emulated.cpp"
        source.write_text(emulated_source(self._program), encoding="utf-8")
        command = [
            host_compiler(),
            *_OPTIONS,
            f"-I{_INCLUDE}",
            str(source),
            "-o",
            str(self._folder / "emulated"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except FileNotFoundError as error:
            raise ToolMissingError(
                tool="a C++ compiler", purpose="emulate CUDA", command="apt-get install g++"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise EmulationError(f"compiling it takes more than {timeout:.0f} s") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise EmulationError(next((line for line in lines if "error" in line), lines[-1]))


def emulated_source(program: Program) -> str:
    """The program in C++: its kernels, and a `main` that does what the host would do."""
    kernels = _in_cpp(program.source)
    # TVM's own names for types are macros, which would be in the way of what follows.
    clean = "#undef uint\n#undef uchar\n#undef ushort\n"
    lines = ["emulation::begin(count, given);"]
    for number, size in enumerate(program.sizes):
        made = f"argument({number}, {size})" if number < program.parameters else f"guarded({size})"
        lines.append(f"unsigned char *b{number} = emulation::{made};")
    lines += [_launched(launch) for launch in program.launches]
    lines += [
        f"emulation::result({number}, b{number}, {size});"
        for number, size in enumerate(program.sizes[: program.parameters])
    ]
    body = "\n".join(f"  {line}" for line in lines)
    return f'#include "cuda_language.h"\n{kernels}\n{clean}int main(int count, char **given) {{\n{body}\n}}\n'


def _launched(launch: Launch) -> str:
    grid, block = ("{" + ", ".join(map(str, extents)) + "}" for extents in (launch.grid, launch.block))
    buffers = "".join(f", b{number}" for number in launch.buffers)
    return f"emulation::launch({grid}, {block}, {launch.dynamic_shared}, {launch.kernel}{buffers});"


# From CUDA to C++ --------------------------------------------------------------------------------------

_STRING = r'"(?:[^"\\]|\\.)*"'
_ASSEMBLY = re.compile(
    rf"(?:asm|__asm__)\s+(?:volatile|__volatile__)\s*\(\s*({_STRING}(?:\s*{_STRING})*)\s*(:.*?)?\)\s*;",
    re.DOTALL,
)
_OPERAND = re.compile(r'"[^"]*"\s*\(([^()]*)\)')
_COPY = r"cp\.async\.c[ag]\.shared\.global(?:\.L2::128B)? \[%0\], \[%1\], %2;"
# Instructions that are known, and what becomes of them: operands have the numbers they have there.
_INSTRUCTIONS = (
    (_COPY, "copy_later({0}, {1}, {2})"),
    # Only under a condition: else zeros are stored at once.
    (
        rf"\{{ \.reg \.pred p; setp\.eq\.u32 p, %3, 1; @p {_COPY}"
        r" @!p st\.shared\.(?:v[24]\.)?u\d+ \[%0\], \{[%\d, ]+\}; \}",
        "copy_later_if({3}, {0}, {1}, {2})",
    ),
    (r"cp\.async\.commit_group;", "commit_copies()"),
    (r"cp\.async\.wait_group (?P<but>\d+);", "wait_for_copies({but})"),
    (r"cp\.async\.wait_all;", "wait_for_all_copies()"),
    (r"dp4a\.u32\.s32 %0, %1, %2, %3;", "dot_of_bytes<uint8_t, int8_t>({0}, {1}, {2}, {3})"),
    (r"dp4a\.s32\.u32 %0, %1, %2, %3;", "dot_of_bytes<int8_t, uint8_t>({0}, {1}, {2}, {3})"),
)


def _in_cpp(source: str) -> str:
    """Generated CUDA C without what no macro of ours can turn into C++."""
    source = re.sub(r"extern __shared__[^;]*\bbuf_dyn_shmem_ptr\[\];", "", source)
    source = re.sub(r"__shared__ (alignas\(\d+\))", r"\1 __shared__", source)
    # An address is no longer a number of 32 bits.
    source = re.sub(r"unsigned int (\w+) = __cvta_generic_to_shared\(", r"void *\1 = (void *)(", source)
    return _ASSEMBLY.sub(_instruction, source)


def _instruction(found: re.Match[str]) -> str:
    parts = [literal[1:-1].replace("\\n", " ") for literal in re.findall(_STRING, found[1])]
    text, operands = " ".join(" ".join(parts).split()), _OPERAND.findall(found[2] or "")
    for known, call in _INSTRUCTIONS:
        matched = re.fullmatch(known, text)
        if matched is not None and all(value == "0" for value in operands[4:]):
            return f"emulation::{call.format(*operands, **matched.groupdict())};"
    raise EmulationError(f"its source has assembly that cannot be emulated: {text}")
