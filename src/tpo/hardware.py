"""What a schedule rule may ask about the machine: vector width, registers, caches, cores.

`Hardware.detect()` looks at this machine, `Hardware.from_target(...)` at what a TVM target says.
CPU features are always called by LLVM's names ("sse4.2", "avx512vnni"), whatever Linux calls them.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

# LLVM's name -> the flag in /proc/cpuinfo, for every feature whose instructions a compiler emits by
# itself. Tuning flags ("fast-gather") and system instructions ("invpcid") cannot stop code from running.
X86_FEATURES = {
    "cx16": "cx16",
    "sahf": "lahf_lm",
    "popcnt": "popcnt",
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "adx": "adx",
    "aes": "aes",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "avx2": "avx2",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "avxvnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
ARM_FEATURES = {
    "neon": "asimd",
    "crc": "crc32",
    "aes": "aes",
    "sha2": "sha2",
    "lse": "atomics",
    "rdm": "asimdrdm",
    "rcpc": "lrcpc",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
# Linux names the extensions of a RISC-V CPU as LLVM does, in one word ("rv64imafdcv_zba_zbb").
RISCV_FEATURES = {
    name: name
    for name in ("m", "a", "f", "d", "c", "v", "zba", "zbb", "zbs", "zicond", "zfh", "zvfh", "zvbb", "zve64d")
}
_FEATURES_OF = {"x86_64": X86_FEATURES, "aarch64": ARM_FEATURES, "riscv64": RISCV_FEATURES}

# isa -> (feature that gives it, bytes of a vector register, architectural vector registers); widest first.
_VectorUnits = dict[str, tuple[str | None, int, int]]
_VECTOR_UNITS: dict[str, _VectorUnits] = {
    "x86_64": {
        "avx512": ("avx512vl", 64, 32),
        "avx2": ("avx2", 32, 16),
        "avx": ("avx", 32, 16),
        "sse4": ("sse4.1", 16, 16),
        "sse2": (None, 16, 16),
    },
    "aarch64": {"neon": (None, 16, 32)},
}
_UNKNOWN_UNIT: _VectorUnits = {"generic": (None, 16, 16)}
_RVV_REGISTERS = 32
_RVV_GROUPS = (1, 2, 4, 8)  # registers that one instruction can take together: LMUL


@dataclass(frozen=True)
class Caches:
    """Data caches in bytes: L1 and L2 of one core, L3 as a whole (0 when there is none)."""

    l1: int = 32 * 1024
    l2: int = 512 * 1024
    l3: int = 8 * 1024 * 1024
    line: int = 64
    l1_ways: int = 8  # places for addresses that fall into the same set


@dataclass(frozen=True)
class Gpu:
    """One GPU as schedules see it; `sm` is CUDA's compute capability, 86 for 8.6."""

    name: str
    sm: int
    max_threads_per_block: int
    warp_size: int
    shared_bytes: int  # of one block of threads
    registers: int = 65536  # of one multiprocessor, and the most that a block has
    registers_per_thread: int = 255

    @property
    def has_async_copy(self) -> bool:
        """Whether threads can copy to shared memory without waiting."""
        return self.sm >= 80

    @classmethod
    def from_target(cls, target: Any) -> Gpu:
        """What a TVM target for CUDA says."""
        attributes = dict(target.attrs)
        sm = re.fullmatch(r"sm_(\d+)\w*", str(attributes.get("arch", "")))
        return cls(
            str(target.kind),
            int(sm[1]) if sm else 0,
            int(attributes["max_threads_per_block"]),
            int(attributes["thread_warp_size"]),
            int(attributes.get("max_shared_memory_per_block", 0)),
            int(attributes.get("registers_per_block", 65536)),
        )


@dataclass(frozen=True)
class Hardware:
    """One CPU as schedules see it; `lmul` is how many of its vector registers count as one here.

    >>> Hardware.from_features("avx2-box", "x86_64", {"avx2", "fma"}).lanes("float32")
    8
    """

    name: str
    arch: str
    isa: str
    vector_bytes: int
    vector_registers: int
    fma: bool
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int
    l1_ways: int
    cores: int
    features: frozenset[str]
    lmul: int = 1

    def lanes(self, dtype: str) -> int:
        """How many elements of `dtype` one vector register holds (at least one)."""
        return max(1, self.vector_bytes // dtype_bytes(dtype))

    @property
    def vlen(self) -> int:
        """Bits of a vector register."""
        return 8 * self.vector_bytes // self.lmul

    @property
    def lmuls(self) -> tuple[int, ...]:
        """How many vector registers one instruction can take together; more than one on RISC-V only."""
        return _RVV_GROUPS if self.isa == "rvv" else (1,)

    @property
    def element_bits(self) -> tuple[int, ...]:
        """Sizes of the elements that vectors may have."""
        widest = 64 if self.isa != "rvv" or self.features & {"v", "zve64x", "zve64f", "zve64d"} else 32
        return tuple(bits for bits in (8, 16, 32, 64) if bits <= widest)

    def grouped(self, lmul: int) -> Hardware:
        """The same hardware, each `lmul` of its vector registers seen as one.

        >>> rvv = Hardware.from_features("board", "riscv64", {"zve64d", "zvl256b"})
        >>> [(hw.lanes("float32"), hw.vector_registers) for hw in (rvv, rvv.grouped(4))]
        [(8, 32), (32, 8)]
        """
        whole = replace(self, vector_bytes=self.vector_bytes // self.lmul, lmul=1)
        if lmul not in self.lmuls:
            raise ValueError(f"registers of {self.name} cannot be grouped by {lmul}")
        return replace(
            whole,
            vector_bytes=whole.vector_bytes * lmul,
            vector_registers=self.vector_registers * self.lmul // lmul,
            lmul=lmul,
        )

    def has(self, feature: str) -> bool:
        """Whether instructions of this feature (LLVM's name) may be used."""
        return feature in self.features

    @classmethod
    def from_features(
        cls,
        name: str,
        arch: str,
        features: set[str] | frozenset[str],
        caches: Caches | None = None,
        cores: int = 1,
    ) -> Hardware:
        """Hardware with the widest vector unit that the features allow."""
        caches = caches or Caches()
        units = _rvv(features) if arch == "riscv64" else _VECTOR_UNITS.get(arch, _UNKNOWN_UNIT)
        isa = next(isa for isa, (feature, _, _) in units.items() if feature is None or feature in features)
        _, vector_bytes, registers = units[isa]
        return cls(
            name=name,
            arch=arch,
            isa=isa,
            vector_bytes=vector_bytes,
            vector_registers=registers,
            fma="fma" in features or arch == "aarch64" or (arch == "riscv64" and "f" in features),
            l1_bytes=caches.l1,
            l2_bytes=caches.l2,
            l3_bytes=caches.l3,
            line_bytes=caches.line,
            l1_ways=caches.l1_ways,
            cores=cores,
            features=frozenset(features),
        )

    @classmethod
    def from_target(cls, target: Any, caches: Caches | None = None, name: str | None = None) -> Hardware:
        """What a `tvm.target.Target` of kind llvm describes; caches are not in it, so give them if known."""
        arch, features = target_arch(target), target_features(target)
        cores = int(target.attrs.get("num-cores", 0)) or available_cores()
        cpu = str(target.attrs.get("mcpu", "")) or "generic"
        return cls.from_features(name or cpu, arch, features, caches, cores)

    @classmethod
    def detect(cls) -> Hardware:
        """Describe this machine, as far as this process may use it."""
        return cls.from_features(
            host_cpu_name(), platform.machine(), host_features(), host_caches(), available_cores()
        )


def _rvv(features: set[str] | frozenset[str]) -> _VectorUnits:
    """RISC-V's vector unit, whose registers are as long as a feature promises; scalars without one."""
    if not features & {"v", "zve32x", "zve32f", "zve64x", "zve64f", "zve64d"}:
        return {"generic": (None, 8, _RVV_REGISTERS)}
    lengths = [int(found[1]) for name in features if (found := re.fullmatch(r"zvl(\d+)b", name))]
    return {"rvv": (None, max(lengths, default=128) // 8, _RVV_REGISTERS)}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype named as numpy, ml_dtypes or TVM name it.

    >>> [dtype_bytes(name) for name in ("float32", "bfloat16", "bool", "uint8", "float8_e4m3fn")]
    [4, 2, 1, 1, 1]
    """
    if dtype == "bool":
        return 1
    bits = re.search(r"\d+", dtype)
    if bits is None:
        raise ValueError(f"cannot tell the size of dtype {dtype!r}")
    return max(1, int(bits.group()) // 8)


def code_features(arch: str) -> tuple[str, ...]:
    """Features (LLVM's names) that decide whether code for `arch` runs on a CPU."""
    return tuple(_FEATURES_OF.get(arch, {}))


def target_arch(target: Any) -> str:
    """Architecture of a TVM target: "x86_64", "aarch64", ... (that of this machine if it names none)."""
    triple = str(target.attrs.get("mtriple", "")) or platform.machine()
    arch = triple.split("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)


def target_features(target: Any) -> frozenset[str]:
    """All LLVM features of a TVM llvm target: those of its mcpu, plus and minus its mattr."""
    from tvm.target import codegen

    return frozenset(str(feature) for feature in codegen.llvm_get_cpu_features(target))


# This machine -------------------------------------------------------------------------------------


@cache
def _cpuinfo() -> dict[str, str]:
    """Fields of the first CPU in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return fields
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def host_cpu_name() -> str:
    """The CPU's marketing name, or its architecture where Linux does not know one."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def host_features() -> frozenset[str]:
    """Features (LLVM's names) this machine really has: a virtual machine may hide some of its CPU's."""
    flags = set((_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split())
    single, *longer = _cpuinfo().get("isa", "").removeprefix("rv64").split("_")
    flags |= {*single, *longer}
    names = _FEATURES_OF.get(platform.machine(), {})
    return frozenset(name for name, flag in names.items() if flag in flags)


def host_caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> Caches:
    """Cache sizes Linux reports; typical ones where it reports none (some containers and boards)."""
    sizes: dict[int, int] = {}
    line, l1_ways = Caches.line, Caches.l1_ways
    for index in sorted(root.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = _parse_size((index / "size").read_text())
            line = int((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            sizes[level] = size
            l1_ways = (level == 1 and _ways(index)) or l1_ways
    if not sizes:
        return Caches()
    return Caches(sizes.get(1, Caches.l1), sizes.get(2, Caches.l2), sizes.get(3, 0), line, l1_ways)


def _ways(index: Path) -> int:
    """Ways of a cache, 0 where Linux does not know."""
    try:
        return int((index / "ways_of_associativity").read_text())
    except (OSError, ValueError):
        return 0


def _parse_size(text: str) -> int:
    text = text.strip()
    scale = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def available_cores() -> int:
    """Logical CPUs this process may use: its affinity mask, capped by the container's CPU quota."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_limit()
    return max(1, cpus if quota is None else min(cpus, int(quota + 0.5)))


def cgroup_cpu_limit(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """CPUs the tightest enclosing control group (v1 or v2) grants, or None when nothing limits us."""
    limits: list[float] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    folders = {root, root / "cpu"}
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) == 3:
            for base in (root, root / "cpu"):
                inside = base / parts[2].lstrip("/")
                folders.update(folder for folder in (inside, *inside.parents) if folder.is_relative_to(root))
    for folder in folders:
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            try:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            except OSError:
                continue
        if quota not in ("max", "-1") and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)
