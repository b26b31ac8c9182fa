"""Is this machine ready for tpo? What it has, what is missing, and the command that fixes it."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from tpo.hardware import Hardware, cgroup_cpu_limit

Status = Literal["ok", "warn", "missing"]

FFI_PIN = "apache-tvm-ffi>=0.1.14.post0,<0.1.15"
_FFI_GOOD = re.compile(r"0\.1\.14\.post\d+")
_TVM_WANTED = "0.27.0.post1"
_LOW_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Finding:
    """One thing looked at. Without what is `required`, tpo cannot work."""

    name: str
    value: str
    status: Status = "ok"
    fix: str = ""
    required: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything; never raises, whatever is broken."""
    found: list[Finding] = []
    for look in (_python, _tvm, _packages, _cpu, _threads, _load, _space, _compilers, _gpu):
        found += look()
    return found


def ready(findings: list[Finding]) -> bool:
    """Whether nothing that is required is missing."""
    return not any(finding.required and finding.status == "missing" for finding in findings)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> list[Finding]:
    return [Finding("python", f"{platform.python_version()} ({sys.executable})", required=True)]


def _tvm() -> list[Finding]:
    """The ffi's version first: with a wrong one TVM imports, and crashes later."""
    tvm, ffi = _version("apache-tvm"), _version("apache-tvm-ffi")
    found = []
    if tvm is None:
        install = f"pip install apache-tvm=={_TVM_WANTED} '{FFI_PIN}'"
        found.append(Finding("tvm", "not installed", "missing", install, required=True))
    elif tvm != _TVM_WANTED:
        install = f"pip install apache-tvm=={_TVM_WANTED}"
        found.append(Finding("tvm", f"{tvm}, tpo is made for {_TVM_WANTED}", "warn", install, required=True))
    else:
        found.append(Finding("tvm", tvm, required=True))
    if ffi is None or not _FFI_GOOD.fullmatch(ffi):
        value = f"{ffi}, crashes this TVM" if ffi else "not installed"
        found.append(Finding("tvm-ffi", value, "missing", f"pip install '{FFI_PIN}'", required=True))
    else:
        found.append(Finding("tvm-ffi", ffi, required=True))
    if all(finding.status != "missing" for finding in found):
        found.append(_llvm())
    return found


def _llvm() -> Finding:
    try:
        codegen = importlib.import_module("tvm.target.codegen")
        return Finding(
            "llvm", f"{codegen.llvm_version_major()}, CPU {codegen.llvm_get_system_cpu()}", required=True
        )
    # A broken native library fails in ways of its own; any of them means the same here.
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        fix = f"pip install --force-reinstall apache-tvm=={_TVM_WANTED} '{FFI_PIN}'"
        return Finding("llvm", f"tvm cannot be imported: {first}", "missing", fix, required=True)


def _packages() -> list[Finding]:
    found = []
    for name, required in (
        ("numpy", True),
        ("onnx", True),
        ("onnxruntime", True),
        ("onnxscript", True),
        ("pydantic", True),
        ("psutil", True),
        ("xgboost", False),
        ("cloudpickle", False),
    ):
        version = _version(name)
        if version is None:
            found.append(Finding(name, "not installed", "missing", f"pip install {name}", required))
        else:
            found.append(Finding(name, version, required=required))
    return found


def _cpu() -> list[Finding]:
    hardware = Hardware.detect()
    vectors = f"{hardware.isa}, {hardware.vector_bytes * 8} bit, {hardware.vector_registers} registers"
    caches = ", ".join(
        f"{name} {_bytes(size)}"
        for name, size in (("L1", hardware.l1_bytes), ("L2", hardware.l2_bytes), ("L3", hardware.l3_bytes))
    )
    slow = hardware.isa in ("sse2", "sse4", "generic")
    return [
        Finding("cpu", f"{hardware.name} ({hardware.arch})"),
        Finding("vector unit", vectors, "warn" if slow else "ok"),
        Finding("features", " ".join(sorted(hardware.features)) or "unknown"),
        Finding("caches", f"{caches}, line {hardware.line_bytes} B"),
    ]


def _threads() -> list[Finding]:
    usable, installed = Hardware.detect().cores, os.cpu_count() or 1
    limit = cgroup_cpu_limit()
    container = f", container limit {limit:g}" if limit is not None else ""
    wanted = os.environ.get("TVM_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    stock = wanted or str(max(1, installed // 2 if platform.machine() == "x86_64" else installed))
    return [
        Finding("cores", f"{usable} usable of {installed}{container}"),
        Finding("threads", f"tpo uses {usable} by default; plain TVM would use {stock} here"),
    ]


def _load() -> list[Finding]:
    try:
        # psutil may be what is missing.
        from tpo.deploy.machine import governor
    except ImportError:
        return []
    load, cores, mode = os.getloadavg()[0], Hardware.detect().cores, governor()
    busy = load > 0.5 * cores
    found = [
        Finding(
            "load", f"{load:.2f}", "warn" if busy else "ok", "benchmark on an idle machine" if busy else ""
        )
    ]
    if mode and mode != "performance":
        fix = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        return [*found, Finding("governor", mode, "warn", fix)]
    return [*found, Finding("governor", mode or "none (virtual machine or fixed frequency)")]


def _space() -> list[Finding]:
    found = []
    disk = shutil.disk_usage(Path.cwd()).free
    low = disk < _LOW_BYTES
    found.append(
        Finding("free disk", _bytes(disk), "warn" if low else "ok", "free some disk space" if low else "")
    )
    memory = re.search(r"MemAvailable:\s+(\d+) kB", _text("/proc/meminfo"))
    if memory:
        free = int(memory.group(1)) * 1024
        low = free < _LOW_BYTES
        found.append(
            Finding(
                "free memory", _bytes(free), "warn" if low else "ok", "close other programs" if low else ""
            )
        )
    return found


def _compilers() -> list[Finding]:
    found = []
    compiler = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None:
        found.append(Finding("c++ compiler", "not found", "missing", "sudo apt install g++", required=True))
    else:
        found.append(Finding("c++ compiler", _first_line([compiler, "--version"]), required=True))
    for name, command, package in (
        ("cross compiler (Arm)", "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
        ("cross compiler (RISC-V)", "riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"),
        ("qemu (Arm)", "qemu-aarch64", "qemu-user"),
        ("qemu (RISC-V)", "qemu-riscv64", "qemu-user"),
        ("nvcc", "nvcc", "nvidia-cuda-toolkit"),
    ):
        path = shutil.which(command) or shutil.which(f"{command}-static")
        if path is None:
            found.append(Finding(name, "not found (optional)", "missing", f"sudo apt install {package}"))
        else:
            found.append(Finding(name, _first_line([path, "--version"])))
    return [*found, *_emulation()]


def _emulation() -> list[Finding]:
    """Whether kernels for RISC-V can be counted, where there is what runs them."""
    try:
        from tpo.errors import ToolMissingError
        from tpo.measure.cross import toolchain
    except ImportError:  # TVM or another package is missing, which was said above
        return []
    try:
        toolchain.tool(toolchain.EMULATOR), toolchain.harness()
    except (ToolMissingError, RuntimeError, OSError):
        return []
    plugin = toolchain.plugin()
    if plugin.path is None:
        why = f"only checked, not counted: {plugin.why}"
        return [Finding("kernels for RISC-V", why, "warn", "use Debian 12's qemu-user, or tune with --board")]
    return [Finding("kernels for RISC-V", "checked and counted in qemu")]


def _gpu() -> list[Finding]:
    if shutil.which("nvidia-smi") is None:
        return [Finding("gpu", "none (no nvidia-smi)")]
    lines = _run(["nvidia-smi", "-L"]).splitlines()
    return [Finding("gpu", line) for line in lines] or [Finding("gpu", "nvidia-smi lists none", "warn")]


def _first_line(command: list[str]) -> str:
    lines = _run(command).splitlines() or ["does not say its version"]
    # nvcc opens with its copyright.
    return next((line for line in lines if "release" in line), lines[0])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
