"""What tests for RISC-V need: the tools, or the reason why they are skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tpo.measure.cross import toolchain

TOOLS = (toolchain.COMPILER, toolchain.LINKER, toolchain.EMULATOR)


def missing_tools() -> str:
    """What is not installed, as a sentence; nothing if all is there."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if not missing and not (toolchain.SYSROOT / "include" / "stdio.h").exists():
        missing = ["libc6-dev-riscv64-cross"]
    return f"not installed: {', '.join(missing)}" if missing else ""


needs_riscv = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all is there")


def needs_counting() -> None:
    """Skip where QEMU does not take the plugin."""
    found = toolchain.plugin()
    if found.path is None:
        pytest.skip(found.why)


def compiled_c(source: str, folder: Path, name: str = "kernel.so") -> Path:
    """A library of some C for RISC-V."""
    import subprocess

    file = folder / "source.c"
    file.write_text(source)
    command = [
        toolchain.tool(toolchain.COMPILER),
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / name),
        str(file),
    ]
    subprocess.run(command, check=True)
    return folder / name
