"""Kernels for other CPUs than this one: compiled, and run by an emulator without TVM on its side."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm_ffi import libinfo

from tpo import vector_math
from tpo.lang import apply_rule, condition
from tpo.lang.library import shipped_rule
from tpo.measure import packing
from tpo.measure.packing import SplitKernel
from tpo.targets import Target, for_compiling, resolve
from tpo.workload import Workload, schedule_of

# What `run_on_arm` needs: command -> Debian's package.
ARM_TOOLS = {"aarch64-linux-gnu-gcc": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}
HARNESS = Path(__file__).with_name("run_kernel.c")

Array = np.ndarray[Any, Any]


def missing_arm_tools() -> list[str]:
    """Debian's packages that are needed to run a kernel on Arm and are not here."""
    return [package for command, package in ARM_TOOLS.items() if shutil.which(command) is None]


def scheduled(rule: str, workload: Workload, target: Target, **choices: Any) -> SplitKernel:
    """A workload as a rule prefers it for a target, the packing of weights taken out."""
    sch = schedule_of(workload.module)
    adapted = condition(shipped_rule(rule), choices)
    (way,) = apply_rule(adapted, sch, sch.get_sblock("root"), target.hardware, first_only=True)
    func = way.sch.mod["main"]
    return packing.split_kernel(func, packing.written_parameters(func))


def build(func: Any, target: Target) -> Any:
    """The library of one function, as deployment compiles it."""
    vector_math.register()
    module = tvm.IRModule({packing.KERNEL: func.with_attr("global_symbol", packing.KERNEL)})
    return tvm.tirx.build(module, for_compiling(target.tvm))


def packed(split: SplitKernel, arrays: list[Array]) -> list[Array]:
    """The arguments of a kernel, its weights packed as that happens at compile time: here."""
    arrays = list(arrays)
    if split.packed:
        weights = [arrays[k] for k in split.packed]
        here = resolve("native")
        results = packing.pack(split, weights, lambda func: build(func, here)[packing.KERNEL])
        for k, result in zip(split.packed, results, strict=True):
            arrays[k] = result
    return arrays


def run_on_arm(library: Any, arguments: list[Array], folder: Path) -> list[Array]:
    """What the arguments of a kernel compiled for aarch64 hold after a call, by qemu."""
    compiler, emulator = ARM_TOOLS
    kernel, program = folder / "kernel.o", folder / "run_kernel"
    library.write_to_file(str(kernel))
    _run([compiler, "-O1", "-static", f"-I{libinfo.find_include_path()}"], HARNESS, kernel, "-o", program)
    words: list[Any] = []
    files = [folder / f"{k}.raw" for k in range(len(arguments))]
    for array, file in zip(arguments, files, strict=True):
        array.tofile(file)
        dtype = tvm_ffi.dtype(str(array.dtype))
        words += [dtype.type_code, dtype.bits, "x".join(map(str, array.shape)), file]
    _run([emulator], program, *words)
    return [np.fromfile(file, a.dtype).reshape(a.shape) for a, file in zip(arguments, files, strict=True)]


def _run(command: list[str], *arguments: Any) -> None:
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr or f"exit code {done.returncode}"
