"""Latency side by side: each engine in its own process, taking turns on the same input.

Turns are short and their order alternates, so that a machine that grows slower or busier does so
for every engine. Ratios are taken within a round and then summarised.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tpo.deploy.arrays import load_npz, save_npz
from tpo.deploy.artifact import check
from tpo.deploy.engines import ENGINES, Job
from tpo.deploy.inputs import Array
from tpo.deploy.machine import MachineState, observe, wait_until_idle
from tpo.deploy.manifest import Manifest
from tpo.deploy.reference import random_inputs
from tpo.deploy.tolerance import tolerance_for
from tpo.deploy.verify import compare
from tpo.errors import EngineError, MismatchError, ToolMissingError, UsageError

OURS = "tpo"


@dataclass(frozen=True)
class Timing:
    """Latency of one engine in milliseconds; how long it took to start, with its first run; its memory."""

    engine: str
    version: str
    start_seconds: float
    memory_mb: float
    median_ms: float
    p10_ms: float
    p90_ms: float
    best_ms: float
    runs: int
    round_medians_ms: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """tpo's latency divided by another engine's, with a 95 % interval: below 1 tpo is faster."""

    engine: str
    ratio: float
    low: float
    high: float
    max_rel_difference: float


@dataclass(frozen=True)
class BenchReport:
    """A finished benchmark."""

    library: str
    model: str
    threads: int
    rounds: int
    timings: tuple[Timing, ...]
    ratios: tuple[Ratio, ...]
    machine: MachineState
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def bench(
    library: str | Path,
    vs: Sequence[str] = ("onnxruntime",),
    model: str | Path | None = None,
    threads: int | None = None,
    rounds: int = 7,
    seconds: float = 0.5,
    min_runs: int = 5,
    seed: int = 0,
) -> BenchReport:
    """Time a library and others, `rounds` turns of `seconds` each, on equal threads.

    `vs` names engines, or other libraries of the same model: paths that end in `.so`.
    """
    if rounds < 1 or not seconds > 0 or min_runs < 1:
        raise UsageError(why="rounds, seconds and runs must be positive", advice="for example --rounds 7")
    manifest, threads = check(Path(library), threads)
    for name in vs:
        _check_contender(name, manifest)
    source = _find_model(manifest, model) if vs else ""
    before = observe()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpo-bench-")))
        inputs = random_inputs(manifest.inputs, seed, _ranges(source))
        save_npz(folder / "inputs.npz", inputs)
        workers: dict[str, _Worker] = {}
        for name in (OURS, *dict.fromkeys(vs)):
            outputs = folder / f"outputs{len(workers)}.npz"
            ours = name == OURS or _is_library(name)
            job = Job(
                engine=OURS if ours else name,
                library=name if _is_library(name) else str(library),
                model=source,
                threads=threads,
                inputs=str(folder / "inputs.npz"),
                outputs=str(outputs),
            )
            workers[name] = stack.enter_context(_Worker(job, name))
        differences = _compare_outputs(workers, str(library), source)
        times = _take_turns(list(workers.values()), rounds, seconds, min_runs)
    timings = tuple(_summarise(workers[name], times[name]) for name in workers)
    ratios = tuple(
        _ratio(other, timings[0].round_medians_ms, other.round_medians_ms, differences[other.engine], seed)
        for other in timings[1:]
    )
    return BenchReport(
        library=str(library),
        model=source or manifest.model.path,
        threads=threads,
        rounds=rounds,
        timings=timings,
        ratios=ratios,
        machine=before,
        warnings=tuple(before.warnings or observe().warnings),
    )


def _is_library(name: str) -> bool:
    return name.endswith(".so")


def _check_contender(name: str, manifest: Manifest) -> None:
    """Refuse what cannot be compared with before anything is started."""
    if _is_library(name):
        other, _ = check(Path(name), None)
        if (other.inputs, other.outputs) != (manifest.inputs, manifest.outputs):
            raise UsageError(
                why=f"cannot compare with {name}: its inputs and outputs are others",
                advice="give a library of the same model",
            )
    elif name not in ENGINES or name == OURS:
        known = ", ".join(sorted(set(ENGINES) - {OURS}))
        raise UsageError(
            why=f"cannot compare with {name!r}", advice=f"known engines: {known}, or another library"
        )
    elif find_spec(name) is None:
        raise ToolMissingError(tool=name, purpose="compare with it", command="pip install 'tpo[bench]'")


def _find_model(manifest: Manifest, given: str | Path | None) -> str:
    """The ONNX file other engines run: the one given, or the one the library was compiled from."""
    path = Path(given) if given is not None else Path(manifest.model.path)
    if not path.is_file():
        raise UsageError(why=f"the model {path} is not there", advice="give its path with --model")
    from tpo.frontend.read import digest

    if given is None and digest(path) != manifest.model.sha256:
        raise UsageError(
            why=f"{path} has changed since it was compiled",
            advice="compile it again, or give the right --model",
        )
    return str(path)


def _ranges(source: str) -> dict[str, tuple[float, float]]:
    from tpo.deploy.reference import Reference

    return Reference(source).ranges if source else {}


class _Worker:
    """An engine's process, loaded and waiting for turns."""

    def __init__(self, job: Job, name: str) -> None:
        self.job = job
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tpo.deploy.engines"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Ctrl-C is for the parent, which ends its workers itself.
            start_new_session=True,
        )
        self._stats = psutil.Process(self._process.pid)
        self.version = ""
        self.start_seconds = self.memory_mb = 0.0

    def __enter__(self) -> _Worker:
        try:
            started = self._ask(self.job.line())
            self.version = started["version"]
            self.start_seconds = float(started["start_seconds"])
            self.memory_mb = started["memory_bytes"] / 2**20
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def outputs(self) -> dict[str, Array]:
        """What the engine computed from the common input."""
        return load_npz(Path(self.job.outputs))

    def turn(self, seconds: float, runs: int) -> list[float]:
        """Run for a while, then wait until the process is quiet again."""
        times = self._ask(json.dumps({"seconds": seconds, "runs": runs}))["times"]
        wait_until_idle(self._stats)
        return [float(value) for value in times]

    def stop(self) -> None:
        """End the process; it is idle or broken, so nothing is lost."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._log.seek(0)
            said = self._log.read().strip().splitlines()
            why = f"its process ended with code {code}" + (f", saying: {said[-1]}" if said else "")
            raise EngineError(engine=self.name, why=why)
        content: dict[str, Any] = json.loads(answer)
        if "error" in content:
            raise EngineError(engine=self.name, why=content["error"])
        return content


def _compare_outputs(workers: dict[str, _Worker], library: str, source: str) -> dict[str, float]:
    """Largest relative difference from each other engine; a wrong result is not worth timing."""
    ours = workers[OURS].outputs()
    differences = {}
    for name, worker in workers.items():
        if name == OURS:
            continue
        tolerance = tolerance_for(source)
        theirs = worker.outputs()
        reports = [compare(output, ours[output], theirs[output], tolerance) for output in ours]
        for report in reports:
            if not report.passed:
                why = f"output {report.name!r} {report.problem}"
                raise MismatchError(path=library, reference=f"{name} {worker.version}", why=why)
        differences[name] = max((report.max_rel_error for report in reports), default=0.0)
    return differences


def _take_turns(
    workers: list[_Worker], rounds: int, seconds: float, min_runs: int
) -> dict[str, list[list[float]]]:
    """Times by engine and round; the order is reversed in every second round."""
    times: dict[str, list[list[float]]] = {worker.name: [] for worker in workers}
    for worker in workers:
        wait_until_idle(worker._stats)
    for number in range(rounds):
        for worker in workers if number % 2 == 0 else reversed(workers):
            times[worker.name].append(worker.turn(seconds, min_runs))
    return times


def _summarise(worker: _Worker, rounds: list[list[float]]) -> Timing:
    everything = np.concatenate([np.asarray(one) for one in rounds]) * 1e3
    p10, median, p90 = (float(value) for value in np.percentile(everything, [10, 50, 90]))
    medians = tuple(float(np.median(one)) * 1e3 for one in rounds)
    best = float(everything.min())
    return Timing(
        engine=worker.name,
        version=worker.version,
        start_seconds=worker.start_seconds,
        memory_mb=worker.memory_mb,
        median_ms=median,
        p10_ms=p10,
        p90_ms=p90,
        best_ms=best,
        runs=everything.size,
        round_medians_ms=medians,
    )


def _ratio(
    other: Timing, ours: Sequence[float], theirs: Sequence[float], difference: float, seed: int
) -> Ratio:
    """Median of the rounds' ratios, and how it varies when rounds are drawn again (bootstrap)."""
    ratios = np.asarray(ours) / np.asarray(theirs)
    draws = np.random.default_rng(seed).choice(ratios, (2000, ratios.size))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Ratio(other.engine, float(np.median(ratios)), float(low), float(high), difference)
