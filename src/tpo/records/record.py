"""What the store holds, as values: runs, workloads, trials; and what identifies a target."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tpo.workload import Workload


class CandidateLike(Protocol):
    """What the store needs of a candidate; `tpo.space.Candidate` has it."""

    @property
    def key(self) -> str:
        """Identity of the scheduled program."""

    @property
    def sketch(self) -> str:
        """The structure it comes from."""

    @property
    def trace_json(self) -> str:
        """Its trace, as TVM's databases hold it."""

    @property
    def program(self) -> Workload | None:
        """What its trace starts from, if that is not the workload itself."""


@dataclass(frozen=True)
class StoredCandidate:
    """A candidate known from its record alone."""

    key: str
    sketch: str
    trace_json: str
    program: Workload | None = None


@dataclass(frozen=True)
class TrialCounts:
    """How many trials there are; `ok` includes those that were `cut_short`."""

    total: int = 0
    ok: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    cut_short: int = 0

    @property
    def failed(self) -> int:
        """Trials without a time."""
        return self.total - self.ok


def versions() -> dict[str, str]:
    """The tools at work in this process."""
    import tvm

    import tpo

    return {
        "tpo": tpo.__version__,
        "tvm": str(tvm.__version__),
        "llvm": str(tvm.target.codegen.llvm_version_major()),
        "python": platform.python_version(),
    }


def machine_facts() -> dict[str, Any]:
    """The machine we are on, as far as it decides what a measurement means."""
    from tpo.hardware import available_cores, host_cpu_name

    return {
        "cpu": host_cpu_name(),
        "arch": platform.machine(),
        "cores": available_cores(),
        "host": platform.node(),
    }


@dataclass(frozen=True)
class RunInfo:
    """Where a run's trials come from. `target` is a `target_key`."""

    model_name: str
    model_path: str
    model_sha256: str
    target: str
    threads: int
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    machine: Mapping[str, Any] = field(default_factory=machine_facts)


@dataclass(frozen=True)
class Run:
    """A run as stored. `status` is running, done, interrupted, or killed: ended without saying so."""

    id: str
    info: RunInfo
    status: str
    state: Mapping[str, Any] | None
    created: datetime
    updated: datetime

    @property
    def alive(self) -> bool:
        """Whether a process is working on it."""
        return self.status == "running"


@dataclass(frozen=True)
class WorkloadRow:
    """A stored workload and how often it was tried, on all targets and by all TVM versions."""

    key: str
    name: str
    flops: int
    counts: TrialCounts


@dataclass(frozen=True)
class Group:
    """The trials of one workload that can be compared: the same target, the same TVM."""

    workload: str
    name: str
    target: str
    tvm: str
    counts: TrialCounts
    best: float | None


@dataclass(frozen=True)
class Trial:
    """One measured candidate. `seconds` is None exactly if there is a `failure`.

    It is in the unit of the target (`unit_of`): modelled cycles where an emulator has counted `counters`.
    `program` is the key of what the trace starts from, if that is not the workload itself.
    """

    id: int
    run: str
    workload: str
    target: str
    candidate: str
    sketch: str
    trace: str
    seconds: float | None
    samples: tuple[float, ...]
    failure: str | None
    message: str
    cut_short: bool
    drift: float
    error: float | None
    build_seconds: float
    run_seconds: float
    confirmed: bool
    created: datetime
    tvm: str
    machine: Mapping[str, Any]
    program: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is a time, and the numbers were right."""
        return self.failure is None


UNIT = "measured-in"  # of a target's key: what its trials are measured in, unless that is seconds
SECONDS, CYCLES = "seconds", "cycles"


def target_key(target: Any, unit: str = SECONDS) -> str:
    """The identity of a `tvm.target.Target` in records: its canonical JSON text.

    Modelled cycles are no seconds: trials in another unit are another target's.

    >>> import tvm
    >>> target_key(tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "skylake-avx512"}))
    '{"keys":["cpu"],"kind":"llvm","mcpu":"skylake-avx512","num-cores":2}'
    """
    config = json.loads(str(target))
    if not config.get("tag"):
        config.pop("tag", None)
    if unit != SECONDS:
        config[UNIT] = unit
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def unit_of(key: str) -> str:
    """What trials of a target are measured in, by its key.

    >>> unit_of('{"kind":"llvm","measured-in":"cycles"}'), unit_of('{"kind":"llvm"}')
    ('cycles', 'seconds')
    """
    try:
        return str(json.loads(key).get(UNIT, SECONDS))
    except (ValueError, AttributeError):
        return SECONDS


def tvm_target(key: str) -> dict[str, Any]:
    """What `tvm.target.Target` takes, of a target's key."""
    return {name: value for name, value in json.loads(key).items() if name != UNIT}


def target_title(key: str) -> str:
    """A target's key as people read it.

    >>> target_title('{"keys":["cpu"],"kind":"llvm","mattr":["-avx","+fma"],"mcpu":"znver3","num-cores":2}')
    'llvm mattr=-avx,+fma mcpu=znver3 num-cores=2'
    """
    try:
        config = json.loads(key)
    except ValueError:
        return key
    if not isinstance(config, dict) or "kind" not in config:
        return key
    words = [str(config.pop("kind"))]
    config.pop("keys", None)
    for name, value in sorted(config.items()):
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"{name}={text}")
    return " ".join(words)
