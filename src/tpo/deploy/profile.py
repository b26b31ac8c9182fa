"""Where the time of a run goes: per compiled function, joined with the operators it computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tpo.deploy.artifact import Artifact
from tpo.deploy.inputs import Array, bind
from tpo.deploy.reference import random_inputs
from tpo.deploy.runner import Program
from tpo.errors import UsageError

REST = "(virtual machine)"


@dataclass(frozen=True)
class ProfileRow:
    """One function: all its calls in one run of the model."""

    name: str
    operators: tuple[str, ...]
    calls: int
    milliseconds: float
    share: float
    gflops: float | None
    scheduled_by: str


@dataclass(frozen=True)
class ProfileReport:
    """Rows sorted by time; the last is what no function accounts for.

    `latency_ms` is the median of runs without profiling. Reading the clock around a function costs
    about a microsecond, which counts as the function's own.
    """

    library: str
    threads: int
    runs: int
    latency_ms: float
    rows: tuple[ProfileRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def profile(artifact: Artifact, runs: int = 10, inputs: Mapping[str, Array] | None = None) -> ProfileReport:
    """Time every function over `runs` runs, on the given or on random inputs."""
    if runs < 1:
        raise UsageError(why=f"cannot profile {runs} runs", advice="give --runs 1 or more")
    chosen = random_inputs(artifact.inputs, seed=0) if inputs is None else inputs
    arrays = bind(artifact.inputs, (), chosen)
    latency, spent = artifact.with_program(lambda program: _measure(program, arrays, runs))
    counted = sum(seconds for seconds, _ in spent.values())
    total = max(latency * runs, counted)
    known = {function.name: function for function in artifact.manifest.functions}
    rows = []
    for name, (seconds, calls) in spent.items():
        function = known.get(name)
        gflops = function.flops * calls / seconds / 1e9 if function and function.flops and seconds else None
        rows.append(
            ProfileRow(
                name=name,
                operators=function.operators if function else (),
                calls=calls // runs,
                milliseconds=seconds / runs * 1e3,
                share=seconds / total,
                gflops=gflops,
                scheduled_by=function.scheduled_by if function else "",
            )
        )
    rows.sort(key=lambda row: row.milliseconds, reverse=True)
    rest = total - counted
    rows.append(ProfileRow(REST, (), 1, rest / runs * 1e3, rest / total, None, ""))
    return ProfileReport(str(artifact.path), artifact.threads, runs, latency * 1e3, tuple(rows))


def _measure(program: Program, arrays: list[Array], runs: int) -> tuple[float, dict[str, tuple[float, int]]]:
    """Median seconds of a plain run; seconds and calls by function over all profiled runs."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    program.set_inputs(arrays)
    plain = []
    for _ in range(runs + 2):
        start = time.perf_counter()
        program.compute()
        plain.append(time.perf_counter() - start)
    # A machine of its own: an instrument cannot be taken off again.
    machine = VirtualMachine(program.module, tvm.cpu())
    clock = _Clock()
    machine.set_instrument(clock)
    main = machine[program.entry]
    main(*program.buffers)
    clock.spent.clear()
    for _ in range(runs):
        main(*program.buffers)
    return statistics.median(plain[2:]), clock.spent


class _Clock:
    """Adds up the time of calls by function; builtins of the virtual machine count as its own."""

    def __init__(self) -> None:
        self.spent: dict[str, tuple[float, int]] = {}
        self._starts: list[float] = []

    def __call__(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        now = time.perf_counter()
        if before:
            self._starts.append(now)
        else:
            seconds = now - self._starts.pop()
            if not name.startswith("vm.builtin"):
                spent, calls = self.spent.get(name, (0.0, 0))
                self.spent[name] = (spent + seconds, calls + 1)
        return 0
