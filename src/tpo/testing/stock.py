"""Stock MetaSchedule to compare with: as TVM ships it, without the fault that ruins its start.

Its tuner, and each of its builder workers, import the tensor intrinsics of every GPU, which takes 26 seconds:
nobody's search should be judged by that. Here only the host's intrinsics are known, as in
`tpo.space.tvm_rules`, and the workers find an empty package. Everything else is TVM's: rules, search, cost
model, builder, runner, and `tune_tir` with its defaults, on all cores of the target.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm  # noqa: F401 (s_tir is not complete without it)
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tpo.targets import Target
from tpo.workload import Workload

PER_ITERATION = 64  # TVM's default: trials between two updates of its cost model
_INTRINSICS = "tvm.s_tir.tensor_intrin"
_OWN = {"x86_64": "x86", "aarch64": "arm_cpu", "riscv64": "riscv_cpu"}
_MESSAGES = 5  # different messages of failures that are kept


@dataclass
class StockRun:
    """A finished search. `seconds` are its own times of all trials in their order, infinite for failures.

    `module` is the best program, None if every trial failed; `wall_seconds` counts from the call of the
    tuner, after all imports. `elapsed` says when the result of each trial was known: a batch at a time.
    """

    seconds: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    wall_seconds: float = 0.0
    module: Any = None


def tune(workload: Workload, target: Target, trials: int, seed: int) -> StockRun:
    """Let MetaSchedule search for so many trials, in a process of its own, with TVM_NUM_THREADS set."""
    prepare(target.arch)
    np.random.seed(seed)  # its cost model scores at random, from here, until it has seen 100 results
    run = StockRun()
    cores = target.hardware.cores
    with tempfile.TemporaryDirectory(prefix="tpo-stock-") as folder:
        start = time.perf_counter()
        watch = [*ms.MeasureCallback.create("default"), _Watch(run, start)]
        runner = ms.runner.LocalRunner()
        database = ms.tune_tir(
            workload.module,
            target.tvm,
            folder,
            max_trials_global=trials,
            num_trials_per_iter=PER_ITERATION,
            builder=ms.builder.LocalBuilder(max_workers=cores, initializer=initializer()),
            runner=runner,
            measure_callbacks=watch,
            num_tuning_cores=cores,
            seed=seed,
        )
        run.wall_seconds = time.perf_counter() - start
        runner.pool.shutdown()  # else its worker outlives this process, and nobody knows whose work it was
        if any(math.isfinite(seconds) for seconds in run.seconds):
            found = ms.tir_integration.compile_tir(database, workload.module, target.tvm)
            run.module = None if found is None else found.mod
    return run


def prepare(arch: str) -> None:
    """Everything that tuning imports, before a clock runs; and nothing of other devices."""
    importlib.import_module("xgboost")
    # tpo switches off TVM's pinning of threads for its own processes: stock has what TVM ships.
    os.environ.pop("TVM_BIND_THREADS", None)
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    if _INTRINSICS not in sys.modules:
        package = ModuleType(_INTRINSICS)
        package.__path__ = [str(Path(s_tir.__file__).parent / "tensor_intrin")]
        sys.modules[_INTRINSICS] = package
        if arch in _OWN:
            importlib.import_module(f"{_INTRINSICS}.{_OWN[arch]}")


def initializer() -> Callable[[], None]:
    """What a builder worker runs first; a local function is sent whole, and imports nothing of ours."""

    def forget_intrinsics() -> None:
        import sys
        from types import ModuleType

        sys.modules.setdefault("tvm.s_tir.tensor_intrin", ModuleType("tvm.s_tir.tensor_intrin"))

    return forget_intrinsics


@derived_object
class _Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Notes what came out of every trial."""

    def __init__(self, run: StockRun, start: float) -> None:
        super().__init__()
        self.run, self.start = run, start

    def apply(self, scheduler: Any, task: int, candidates: Any, built: Any, ran: Any) -> None:
        """Called by TVM after every batch."""
        now = time.perf_counter() - self.start
        for build, result in zip(built, ran, strict=True):
            problem = build.error_msg or result.error_msg
            self.run.elapsed.append(now)
            self.run.seconds.append(
                math.inf if problem else float(np.mean([float(s) for s in result.run_secs]))
            )
            if problem:
                self._note("build" if build.error_msg else "run", str(problem))

    def _note(self, phase: str, problem: str) -> None:
        lines = [line.strip() for line in problem.strip().splitlines() if line.strip()]
        timed_out = "imeout" in lines[0]
        self.run.failures[f"{phase}-timeout" if timed_out else f"{phase}-error"] += 1
        message = lines[0] if timed_out else lines[-1]
        if message not in self.run.messages and len(self.run.messages) < _MESSAGES:
            self.run.messages.append(message[:300])
