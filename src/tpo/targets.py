"""What to compile for: "native", a preset of `configs/targets/`, a TOML file of the user's, or a GPU."""

from __future__ import annotations

import importlib
import json
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpo.errors import NotRunnableError, TargetError, UsageError
from tpo.hardware import (
    Caches,
    Gpu,
    Hardware,
    available_cores,
    code_features,
    host_caches,
    host_cpu_name,
    host_features,
    target_arch,
    target_features,
)
from tpo.resources import folder

# The standard library has it since 3.11; tomli is the same module for 3.10.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

NATIVE = "native"
# LLVM's schedulers compare every access to memory in a block with every other one before they reorder
# them; beyond this many they give up. Its own limit, 1000, costs seconds in unrolled kernels; with ours
# kernels are as fast (within 0.4 % of each other over 48 of TVM's own candidates for conv2d and matmul).
_LLVM_OPTIONS = ["-dag-maps-huge-region:uint=200"]
# For many CPUs with AVX-512, what LLVM vectorises by itself gets half a register. Schedules fill whole ones,
# so the clock is that of wide vectors anyway.
_NARROW = "prefer-256-bit"
MAX_THREADS = 1024
EMULATED = "riscv64"  # architecture whose kernels are tuned in QEMU or on a board
VLENS = (128, 256, 512, 1024)  # of RISC-V's vector registers
CUDA, NVIDIA = "cuda", "nvidia/"  # any GPU of an architecture; what TVM's names of GPUs begin with
DEFAULT_ARCH = "sm_80"
# Bytes a block of threads may share, where a kernel asks for them at its launch; 48 KiB where it does not.
_SHARED_KIB = {70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}


@dataclass(frozen=True)
class Target:
    """What to compile for. `native` says that this machine can run what is compiled for it.

    With a `gpu`, `hardware` is the host's.
    """

    name: str
    tvm: Any
    hardware: Hardware
    compiler: str
    native: bool
    gpu: Gpu | None = None

    @property
    def device(self) -> Hardware | Gpu:
        """What runs the kernels, as schedule rules see it."""
        return self.gpu or self.hardware

    @property
    def standalone(self) -> bool:
        """Whether libraries for it need nothing but the C library: there is no TVM runtime for it."""
        return self.arch == EMULATED and not self.native

    @property
    def arch(self) -> str:
        """Architecture, as `platform.machine()` would name it there."""
        return self.hardware.arch


class _Cpu(BaseModel):
    model_config = ConfigDict(extra="forbid")
    triple: str
    mcpu: str
    mattr: list[str] = []
    mabi: str = ""
    vlen: int | None = None  # of RISC-V's vector registers, in bits
    cores: int = Field(ge=1, le=MAX_THREADS)
    compiler: str


class _CacheSizes(BaseModel):
    model_config = ConfigDict(extra="forbid")
    l1_kib: int = Field(ge=1)
    l2_kib: int = Field(ge=1)
    l3_kib: int = Field(ge=0)
    line_bytes: int = Field(default=64, ge=16)
    l1_ways: int = Field(default=8, ge=1)

    def caches(self) -> Caches:
        l1, l2, l3 = (kib * 1024 for kib in (self.l1_kib, self.l2_kib, self.l3_kib))
        return Caches(l1, l2, l3, self.line_bytes, self.l1_ways)


class _Preset(BaseModel):
    """The content of a target file."""

    model_config = ConfigDict(extra="forbid")
    cpu: _Cpu
    cache: _CacheSizes


def known_targets() -> list[str]:
    """Names `resolve` understands, without the user's own files."""
    return [NATIVE, *sorted(path.stem for path in (folder("configs") / "targets").glob("*.toml")), CUDA]


def resolve(
    text: str, threads: int | None = None, vlen: int | None = None, arch: str | None = None
) -> Target:
    """The target called `text`; `threads` is the number of cores schedules are made for.

    `vlen` are the bits of a vector register, of a target for RISC-V; `arch` is the architecture of a GPU
    for the target "cuda". A target of TVM's in JSON is one, too, and so are its names for NVIDIA's GPUs.

    >>> resolve("x86-64-v3", threads=2).hardware.isa
    'avx2'
    >>> resolve("riscv", vlen=512).hardware.lanes("float32")
    16
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(
            why=f"cannot compile for {threads} threads", advice=f"give a number from 1 to {MAX_THREADS}"
        )
    if arch is not None and text != CUDA:
        raise UsageError(why=f"target {text} has no architecture to set", advice="leave --arch out")
    if text == CUDA or text.startswith(NVIDIA):
        if vlen is not None:
            raise UsageError(why=f"target {text} has no vector length to set", advice="leave --vlen out")
        return _gpu(text, arch or DEFAULT_ARCH)
    if text in known_targets() and text != NATIVE:
        return _from_file(folder("configs") / "targets" / f"{text}.toml", text, threads, vlen)
    if text.endswith(".toml"):
        return _from_file(Path(text), Path(text).stem, threads, vlen)
    if vlen is not None:
        raise UsageError(why=f"target {text} has no vector length to set", advice="leave --vlen out")
    if text == NATIVE:
        return _native(threads)
    if text.startswith("{"):
        return _from_json(text, threads)
    raise _refuse(text, "there is no such target")


def recorded(key: str) -> Target:
    """The target of stored trials (`tpo.records.target_key`); another machine's caches are not known."""
    import tvm

    config = {name: value for name, value in json.loads(key).items() if name != "measured-in"}
    here = _native(config.get("num-cores"))
    if {**json.loads(str(here.tvm)), "tag": ""} == {**config, "tag": ""}:
        return here
    target = tvm.target.Target(config)
    return Target("recorded", target, Hardware.from_target(target), host_compiler(), native=False)


def require_runnable(target: Target) -> None:
    """Refuse a target whose programs neither this machine nor an emulator on it can run."""
    if not target.native and (target.gpu is not None or target.arch != EMULATED):
        raise NotRunnableError(target=target.name)


def for_compiling(target: Any) -> Any:
    """A `tvm.target.Target` with the options LLVM gets from us, wherever it compiles.

    They are no part of a target's identity: programs and records do not depend on them.
    """
    import tvm

    config = json.loads(str(target))
    if _NARROW in target_features(tvm.target.Target(config)):
        config["mattr"] = [*config.get("mattr", []), f"-{_NARROW}"]
    return tvm.target.Target({**config, "cl-opt": _LLVM_OPTIONS})


def required_features(target: Target) -> list[str]:
    """Features (LLVM's names) a CPU must have to run what is compiled for the target."""
    if target.gpu is not None:
        return []
    features = target_features(target.tvm)
    return [name for name in code_features(target.arch) if name in features]


def missing_features(required: list[str]) -> list[str]:
    """Those of the required features that this machine lacks, in the given order."""
    present = host_features()
    return [name for name in required if name not in present]


def _refuse(text: str, why: str) -> TargetError:
    return TargetError(target=text, why=why, known=f"{', '.join(known_targets())}, or a path to a .toml file")


def _native(threads: int | None) -> Target:
    import tvm
    from tvm.target import codegen

    mcpu = str(codegen.llvm_get_system_cpu())
    present = host_features()
    promised = target_features(tvm.target.Target({"kind": "llvm", "mcpu": mcpu}))
    # Hypervisors mask features, and an LLVM older than the CPU knows it only as something generic.
    checked = code_features(platform.machine())
    mattr = [f"-{name}" for name in checked if name in promised and name not in present]
    mattr += [f"+{name}" for name in checked if name in present and name not in promised]
    config: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads or available_cores()}
    if mattr:
        config["mattr"] = mattr
    target = tvm.target.Target(config)
    hardware = Hardware.from_target(target, host_caches(), host_cpu_name())
    return Target(NATIVE, target, hardware, host_compiler(), native=True)


def _gpu(text: str, arch: str) -> Target:
    """A GPU by its architecture, or by the name that TVM has for it."""
    import tvm

    if text == CUDA:
        sm = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
        if sm is None:
            raise UsageError(why=f"{arch!r} is no architecture of a GPU", advice="write --arch sm_80")
        config: Any = {
            "kind": CUDA,
            "arch": arch,
            "max_threads_per_block": 1024,
            "thread_warp_size": 32,
            "registers_per_block": 65536,
            "max_shared_memory_per_block": _SHARED_KIB.get(int(sm[1]), 48) * 1024,
        }
    else:
        config = text
    try:
        target = tvm.target.Target(config)
    except (ValueError, TypeError, RuntimeError) as error:  # TVM's are RuntimeErrors
        raise _refuse(text, "TVM knows no GPU of that name, such as nvidia/geforce-rtx-4090") from error
    host = _native(None)
    name = f"{text} {arch}" if text == CUDA else text
    return Target(name, target, host.hardware, host.compiler, native=False, gpu=Gpu.from_target(target))


def _from_json(text: str, threads: int | None) -> Target:
    """A target of TVM's own, as its `Target.export()` writes it."""
    import tvm

    try:
        config = json.loads(text)
        cores = threads or int(config.get("num-cores", 1))
        target = tvm.target.Target({**config, "num-cores": cores})
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:  # TVM's are RuntimeErrors
        why = (str(error).strip().splitlines() or ["TVM does not take it"])[-1]
        raise _refuse(text, f"it is no target of TVM's ({why})") from error
    if str(target.kind) != "llvm":
        raise _refuse(text, f"tpo compiles for targets of kind llvm, not {target.kind}")
    hardware = Hardware.from_target(target)
    foreign = f"{hardware.arch}-linux-gnu-{'gcc' if hardware.arch == EMULATED else 'g++'}"
    compiler = host_compiler() if hardware.arch == platform.machine() else foreign
    return Target(hardware.name, target, hardware, compiler, native=False)


def _from_file(path: Path, name: str, threads: int | None, vlen: int | None) -> Target:
    preset = _read(path)
    import tvm
    from tvm.target import codegen

    cpu = preset.cpu
    if not codegen.llvm_is_valid_cpu(cpu.mcpu, cpu.triple):
        raise _refuse(str(path), f"LLVM has no CPU {cpu.mcpu!r} for {cpu.triple!r}")
    config: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": cpu.triple,
        "mcpu": cpu.mcpu,
        "num-cores": threads or cpu.cores,
    }
    vlen = _checked_vlen(vlen or cpu.vlen, cpu.triple)
    if cpu.mattr or vlen:
        config["mattr"] = [*cpu.mattr, *([f"+zvl{vlen}b"] if vlen else [])]
    if cpu.mabi:
        config["mabi"] = cpu.mabi
    target = tvm.target.Target(config)
    hardware = Hardware.from_target(target, preset.cache.caches(), name)
    same_arch = target_arch(target) == platform.machine()
    compiler = host_compiler() if same_arch else cpu.compiler
    made = Target(name, target, hardware, compiler, native=False)
    runs_here = same_arch and not missing_features(required_features(made))
    return Target(name, target, hardware, compiler, native=runs_here)


def _checked_vlen(vlen: int | None, triple: str) -> int | None:
    """Bits of a vector register, which RISC-V leaves to whoever makes the chip."""
    if vlen is None:
        return None
    if not triple.startswith("riscv"):
        raise UsageError(why=f"a target for {triple} has no vector length to set", advice="leave --vlen out")
    if vlen not in VLENS:
        raise UsageError(
            why=f"vector registers cannot have {vlen} bits",
            advice=f"give one of {', '.join(map(str, VLENS))}",
        )
    return vlen


def _read(path: Path) -> _Preset:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return _Preset.model_validate(content)
    except OSError as error:
        raise _refuse(str(path), f"the file cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refuse(str(path), f"it is not valid TOML ({error})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _refuse(str(path), f"{where}: {first['msg']}") from error


def host_compiler() -> str:
    """The C++ compiler that links libraries for this machine."""
    return next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), "c++")
