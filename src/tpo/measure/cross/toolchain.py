"""What it takes to run RISC-V code here: a cross compiler, an emulator, and two small programs of ours.

These are built from their sources when they are first needed, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpo.errors import ToolMissingError

COMPILER, LINKER, EMULATOR = "riscv64-linux-gnu-gcc", "riscv64-linux-gnu-ld", "qemu-riscv64"
SIZES = "riscv64-linux-gnu-size"
SYSROOT = Path("/usr/riscv64-linux-gnu")
PACKAGES = {
    COMPILER: ("gcc-riscv64-linux-gnu libc6-dev-riscv64-cross", "compile for RISC-V"),
    LINKER: ("binutils-riscv64-linux-gnu", "link libraries for RISC-V"),
    SIZES: ("binutils-riscv64-linux-gnu", "read libraries for RISC-V"),
    EMULATOR: ("qemu-user", "run RISC-V code"),
    "cc": ("gcc", "compile the plugin that counts instructions"),
}
_SOURCES = Path(__file__).parent
_PROBE_TIMEOUT = 60.0


def tool(name: str) -> str:
    """The path of a program; ToolMissingError with the package that has it."""
    found = shutil.which(name) or shutil.which(f"{name}-static")
    if found is None:
        package, purpose = PACKAGES.get(name, (name, "measure elsewhere"))
        raise ToolMissingError(tool=name, purpose=purpose, command=f"apt-get install {package}")
    return found


@cache
def harness() -> Path:
    """The program that runs one function of a library on a RISC-V machine."""
    # Compiled functions call the C library's mathematics without saying so.
    options = ["-O2", "-std=gnu11", "-rdynamic", "-Wl,--no-as-needed", "-ldl", "-lm"]
    return built(tool(COMPILER), _SOURCES / "harness.c", options, "harness")


@dataclass(frozen=True)
class Plugin:
    """The plugin that counts instructions; no path where it cannot work, and the reason why."""

    path: Path | None
    why: str = ""


@cache
def plugin() -> Plugin:
    """The plugin, if this QEMU takes it."""
    try:
        emulator = tool(EMULATOR)
        path = built(
            tool("cc"), _SOURCES / "counters.c", ["-O2", "-std=gnu11", "-shared", "-fPIC"], "counters.so"
        )
    except (ToolMissingError, RuntimeError) as error:
        return Plugin(None, str(error))
    # Without arguments the harness says how it is used: that it says so is all that is wanted.
    command = [emulator, "-L", str(SYSROOT), "-plugin", str(path), str(harness())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return Plugin(None, "QEMU does not answer with it")
    if "usage" in done.stderr:
        return Plugin(path)
    lines = done.stderr.strip().splitlines() or ["no message"]
    return Plugin(None, f"this QEMU does not take it: {lines[0]}")


def built(compiler: str, source: Path, options: list[str], name: str) -> Path:
    """A program made of one C file; kept under the hash of all that it was made of."""
    content = source.read_bytes() + " ".join([compiler, *options]).encode()
    place = _cache() / hashlib.sha256(content).hexdigest()[:16] / name
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder) / name
        command = [compiler, "-o", str(made), str(source), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"compiling {source.name}: {complaint(done.stderr)}")
        made.replace(place)
    return place


def complaint(said: str) -> str:
    """What a compiler says is wrong, of all it says."""
    lines = said.strip().splitlines() or ["it failed"]
    return next((line for line in lines if "error" in line or "undefined" in line), lines[-1])


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpo"
