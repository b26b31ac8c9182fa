"""Kernels of our rules beside ONNX Runtime: random samples, the best of them, its share of the FMA peak.

    python scripts/bench_kernels.py [--groups peak winograd other] [--only TEXT] [--threads 1 2]
                                    [--samples 64] [--seed 0] [--json FILE]

Every operator is a model of one node that went through the frontend. Random samples of our rules' sketches
(TVM's own are left out; in the group `peak` also Winograd's) are built, checked and measured, beside what
each sketch prefers and the default schedule. The three fastest are measured again, in turns; the best of
them and the default are then timed beside ONNX Runtime, in one process, in turns, with weights that come
from memory (see `tpo.testing.beside`). Shares count random samples only: valid are those that were drawn,
that TVM applied and built, and whose result was right. Matrix products are rows x columns x depth.

A row counts only if the FMA peak read just before and just after it differs by at most 5 %, if the quartiles
over the rounds of ours and of ONNX Runtime differ by at most 20 %, and if no other process was busy before
or after; otherwise it is timed once more, and if that is no better, marked.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

STEADY = 0.05  # two readings of the peak around a row may differ by this much
SPREAD = 0.2  # and a contender's quartiles over the rounds by this much
BETWEEN_MB = 64.0  # what a model touches between two calls of one kernel, so that weights come from memory
FINALISTS = 3
ATTEMPTS = 2
ROUNDS = 11
MIN_VALID, MIN_NEAR = 0.9, 0.25
MIN_PEAK, MIN_ANY_PEAK = 0.8, 0.6
MIN_RATIO = {"peak": 1.0, "winograd": 1.8, "other": 1.0}


@dataclass
class Row:
    """What came out for one operator on one number of threads; ratios above 1 mean that ours is faster."""

    group: str
    operator: str
    threads: int
    drawn: int = 0
    valid: int = 0
    near: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sketch: str = ""
    kind: str = ""
    best_is_default: bool = False
    measured_ms: dict[str, float] = field(default_factory=dict)
    ms: float = math.nan
    onnxruntime_ms: float = math.nan
    gflops: float = 0.0
    share_of_peak: float = 0.0
    ratio: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    default_ratio: float = math.nan
    peaks: list[float] = field(default_factory=list)
    attempts: int = 0
    copies: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    doubts: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Draw:
    """A candidate and where it comes from: "random", "preferred" by its sketch, or "default"."""

    kind: str
    candidate: Any


def main() -> int:
    """Measure everything asked for; the exit code says whether the figures were reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", nargs="+", default=list(MIN_RATIO), choices=list(MIN_RATIO))
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from tpo.deploy.machine import observe
    from tpo.testing.kernels import operators

    machine = observe()
    print(f"{machine.cpu}, {machine.cores} cores; other work: {', '.join(machine.busy) or 'none'}")
    chosen = [
        (group, operator)
        for group, members in operators().items()
        for operator in members
        if group in given.groups and given.only in operator.name
    ]
    rows: list[Row] = []
    print(HEADER)
    for threads in given.threads:
        with Bench(threads, given.samples, given.seed) as bench:
            for number, (group, operator) in enumerate(chosen, 1):
                row = bench.row(group, operator)
                rows.append(row)
                print(line(row), flush=True)
                if given.json:
                    save(given, machine, rows)
                progress = f"{threads} thread(s): {number} of {len(chosen)}, {operator.name}"
                print(f"{progress}, {row.seconds:.0f} s", file=sys.stderr, flush=True)
    verdicts = [verdict for threads in given.threads for verdict in judge(rows, threads)]
    print(*peaks(rows, given.threads), *(text for text, _ in verdicts), sep="\n")
    if given.json:
        content = {
            "machine": asdict(machine),
            "arguments": vars(given),
            "rows": [asdict(row) for row in rows],
        }
        given.json.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return 0 if all(reached for _, reached in verdicts) else 1


def save(given: argparse.Namespace, machine: Any, rows: Sequence[Row]) -> None:
    """Write what is known by now: a long run may not come to its end."""
    content = {"machine": asdict(machine), "arguments": vars(given), "rows": [asdict(row) for row in rows]}
    given.json.write_text(json.dumps(content, indent=1, default=str) + "\n")


class Bench:
    """A runner that measures candidates, and a process where the best meet ONNX Runtime."""

    def __init__(self, threads: int, samples: int, seed: int) -> None:
        from tpo import targets
        from tpo.measure import LocalRunner, MeasureOptions

        self.threads, self.samples, self.seed = threads, samples, seed
        self.target = targets.resolve("native", threads)
        self.runner = LocalRunner(self.target.tvm, MeasureOptions(threads, between_mb=BETWEEN_MB))
        self.side = self._new_side()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.side.shutdown()
        self.runner.close()

    def row(self, group: str, operator: Any) -> Row:
        """Everything about one operator."""
        from tpo.testing.kernels import imported
        from tpo.workload import Workload

        start = time.perf_counter()
        row = Row(group, operator.name, self.threads)
        workload = Workload.of(imported(operator).func)
        draws = self._draw(row, workload)
        chosen = self._choose(row, workload, draws)
        if chosen:
            self._compare(row, operator, chosen)
        row.seconds = time.perf_counter() - start
        return row

    def _draw(self, row: Row, workload: Any) -> list[Draw]:
        """Random samples, spread evenly over the sketches, and what the rules themselves would choose."""
        from tpo.space import build_space

        space = build_space(workload, self.target)
        row.problems += [f"{problem.rule}: {problem.message}{problem.place}" for problem in space.problems]
        sketches = [sketch for sketch in space.sketches if is_ours(sketch.name, row.group)]
        draws = [Draw("default", space.default())]
        if not sketches:
            row.problems.append("no sketch")
            return draws
        for sketch in sketches:
            found = space.preferred(sketch)
            if found is None:
                row.problems.append(f"{sketch.name}: TVM refuses what the rule prefers")
            else:
                draws.append(Draw("preferred", found))
        order = np.random.default_rng(self.seed).permutation(len(sketches))
        row.drawn = self.samples
        for number in range(self.samples):
            sketch = sketches[order[number % len(order)]]
            found = space.sample(sketch, self.seed * 1_000_000 + number + 1)
            if found is None:
                row.failures["refused"] = row.failures.get("refused", 0) + 1
            else:
                draws.append(Draw("random", found))
        return draws

    def _choose(self, row: Row, workload: Any, draws: Sequence[Draw]) -> dict[str, Any]:
        """Measure every program once, the fastest again, in turns; the best and the default, if there are."""
        from tpo.measure import BuildInput

        # Of equal programs the random one counts: it is what the figures are about.
        programs = {draw.candidate.key: draw for draw in draws}
        inputs = {key: BuildInput(workload, draw.candidate.module) for key, draw in programs.items()}
        keys = list(inputs)
        results = {keys[k]: found for k, found in self.runner.measure([inputs[key] for key in keys])}
        times = {key: found.seconds for key, found in results.items() if found.seconds is not None}
        self._count(row, draws, results)
        allowed = [key for key in times if is_ours(programs[key].candidate.sketch, row.group)]
        finalists = sorted(allowed, key=lambda key: times[key])[:FINALISTS]
        if not finalists:
            return {}
        (again,) = self.runner.compare([[inputs[key] for key in finalists]])
        best, found = min(zip(finalists, again, strict=True), key=lambda pair: pair[1].seconds or math.inf)
        row.near = count_near(draws, times, min(times[key] for key in allowed))
        row.sketch, row.kind = programs[best].candidate.sketch, programs[best].kind
        row.measured_ms = {
            kind: 1e3
            * min(times[d.candidate.key] for d in draws if d.kind == kind and d.candidate.key in times)
            for kind in {d.kind for d in draws if d.candidate.key in times}
        }
        default = draws[0].candidate.key
        row.measured_ms["best"] = 1e3 * (found.seconds or times[best])
        row.best_is_default = default == best
        wanted = (
            {"best": best, "default": default} if default in times and default != best else {"best": best}
        )
        return {name: inputs[key].module for name, key in wanted.items()}

    def _count(self, row: Row, draws: Sequence[Draw], results: dict[str, Any]) -> None:
        """How many random samples are valid, what became of the others, and what any failure said."""
        outcomes = [(draw, results[draw.candidate.key]) for draw in draws]
        row.valid = sum(found.ok for draw, found in outcomes if draw.kind == "random")
        failed = [(draw, found) for draw, found in outcomes if not found.ok]
        row.failures |= Counter(str(found.failure) for draw, found in failed if draw.kind == "random")
        said = (
            f"{draw.kind} {draw.candidate.sketch}: {found.failure}: {found.message}" for draw, found in failed
        )
        row.problems += list(dict.fromkeys(said))

    def _compare(self, row: Row, operator: Any, modules: dict[str, Any]) -> None:
        """Beside ONNX Runtime, until nothing disturbs or attempts run out."""
        import tvm

        from tpo.deploy.machine import observe

        sources = {name: str(tvm.ir.save_json(module)) for name, module in modules.items()}
        seconds = row.measured_ms["best"] / 1e3
        while row.attempts < ATTEMPTS:
            row.attempts += 1
            before = observe()
            try:
                found = self.side.submit(meet, row.group, row.operator, sources, seconds).result()
            except (BrokenProcessPool, ValueError) as error:
                row.doubts = [f"not compared: {error}"]
                self.side = self._new_side()
                return
            settle(row, operator.flops, found)
            times = {name: found.seconds[name] for name in ("best", "onnxruntime")}
            row.doubts = doubts(found.peaks, times, [*before.warnings, *observe().warnings])
            if not row.doubts:
                return

    def _new_side(self) -> ProcessPoolExecutor:
        # The number of TVM's threads is fixed once per process, and so every number has its own.
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare, (self.threads,))


def is_ours(sketch: str, group: str) -> bool:
    """Whether a sketch takes part: TVM's never do, and Winograd is no direct convolution.

    >>> is_ours("contraction/columns=16x2", "peak"), is_ours("tvm/0", "other"), is_ours("winograd/f4", "peak")
    (True, False, False)
    """
    return not sketch.startswith("tvm/") and not (group == "peak" and sketch.startswith("winograd"))


def count_near(draws: Sequence[Draw], times: dict[str, float], best: float) -> int:
    """Random samples that take at most twice the best time."""
    random = (draw.candidate.key for draw in draws if draw.kind == "random")
    return sum(times.get(key, math.inf) <= 2 * best for key in random)


def settle(row: Row, flops: int, found: Any) -> None:
    """Take over what a comparison has found."""
    ours, theirs = (np.asarray(found.seconds[name]) for name in ("best", "onnxruntime"))
    row.ratio, *interval = median_and_interval(theirs / ours)
    row.interval = (interval[0], interval[1])
    if row.best_is_default or "default" in found.seconds:
        default = np.asarray(found.seconds.get("default", ours))
        row.default_ratio = float(np.median(theirs / default))
    row.ms, row.onnxruntime_ms = 1e3 * float(np.median(ours)), 1e3 * float(np.median(theirs))
    row.peaks, row.error, row.copies = list(found.peaks), found.error, asdict(found.copies)
    row.gflops = flops / row.ms / 1e6
    row.share_of_peak = row.gflops / statistics.mean(found.peaks)


def median_and_interval(values: Any) -> tuple[float, float, float]:
    """The median, and the 95 % interval of it when rounds are drawn again."""
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0]), float(values[0])
    drawn = stats.bootstrap((values,), np.median, method="percentile", rng=0)
    low, high = drawn.confidence_interval
    return float(np.median(values)), float(low), float(high)


def doubts(peaks: Sequence[float], times: dict[str, list[float]], warnings: Sequence[str] = ()) -> list[str]:
    """Why a comparison does not count; nothing if it does.

    >>> doubts((100.0, 98.0), {"best": [1.0, 1.1, 1.1]}), doubts((100.0, 90.0), {})
    ([], ['the FMA peak went from 100 to 90 GFLOP/s'])
    >>> doubts((100.0, 98.0), {"onnxruntime": [1.0, 1.0, 1.9, 2.0]})
    ['the quartiles of onnxruntime differ by 92%']
    """
    found = []
    if min(peaks) < (1 - STEADY) * max(peaks):
        found.append(f"the FMA peak went from {peaks[0]:.0f} to {peaks[1]:.0f} GFLOP/s")
    for name, seconds in times.items():
        low, high = np.percentile(seconds, [25, 75])
        if high > (1 + SPREAD) * low:
            found.append(f"the quartiles of {name} differ by {high / low - 1:.0%}")
    return [*found, *dict.fromkeys(warnings)]


_side: dict[str, Any] = {}


def prepare(threads: int) -> None:
    """In the process where kernels meet ONNX Runtime: as many threads as it will ever have."""
    from tpo import targets, vector_math
    from tpo.testing.fma_peak import FmaPeak
    from tpo.threads import size_worker_pool

    size_worker_pool(threads)
    vector_math.register()
    _side["target"] = targets.resolve("native", threads)
    _side["peak"] = FmaPeak(_side["target"])


def meet(group: str, name: str, sources: dict[str, str], seconds: float) -> Any:
    """In that process: time scheduled functions beside ONNX Runtime."""
    import tvm

    from tpo.testing.beside import compare
    from tpo.testing.kernels import imported, operators

    operator = next(item for item in operators()[group] if item.name == name)
    candidates = {kind: tvm.ir.load_json(source)["main"] for kind, source in sources.items()}
    return compare(imported(operator), candidates, _side["target"], _side["peak"], ROUNDS, seconds)


HEADER = (
    f"{'operator':34} thr {'valid':>6} {'in 2x':>6} {'ms':>8} {'GFLOP/s':>7} {'peak':>5} {'ORT ms':>8} "
    f"{'ratio':>5} {'interval':>13} {'default':>7}  sketch"
)


def line(row: Row) -> str:
    """A row of the table."""
    valid = f"{row.valid / row.drawn:.0%}" if row.drawn else "-"
    near = f"{row.near / row.valid:.0%}" if row.valid else "-"
    speed = f"{row.gflops:7.0f} {row.share_of_peak:5.0%}" if row.gflops else f"{'-':>7} {'-':>5}"
    interval = f"[{row.interval[0]:.2f}, {row.interval[1]:.2f}]"
    note = "  NOT COUNTED: " + "; ".join(row.doubts) if row.doubts else ""
    return (
        f"{row.operator:34} {row.threads:3} {valid:>6} {near:>6} {row.ms:8.4f} {speed} "
        f"{row.onnxruntime_ms:8.4f} {row.ratio:5.2f} {interval:>13} {row.default_ratio:7.2f}  "
        f"{row.sketch} ({row.kind}){note}"
    )


def peaks(rows: Sequence[Row], threads: Sequence[int]) -> Iterator[str]:
    """The readings of the FMA peak over the whole run."""
    for count in threads:
        readings = [reading for row in rows if row.threads == count for reading in row.peaks]
        if readings:
            low, middle, high = np.percentile(readings, [0, 50, 100])
            yield f"FMA peak, {count} thread(s): {middle:.0f} GFLOP/s, readings {low:.0f} to {high:.0f}"


def judge(rows: Sequence[Row], threads: int) -> Iterator[tuple[str, bool]]:
    """What the goals ask, each with whether it was reached by the rows that count."""
    mine = [row for row in rows if row.threads == threads]
    for group, goal in MIN_RATIO.items():
        counted = [row for row in mine if row.group == group and not row.doubts and row.ratio > 0]
        everything = sum(row.group == group for row in mine)
        if not everything:
            continue
        name = f"{threads} thread(s), {group}, {len(counted)} of {everything} rows count:"
        if not counted:
            yield f"{name} nothing to judge", False
            continue
        ratio = geometric_mean([row.ratio for row in counted])
        default = geometric_mean([row.default_ratio for row in counted if row.default_ratio > 0])
        yield (
            verdict(f"{name} ratio to ONNX Runtime {ratio:.2f} (default {default:.2f})", ratio >= goal, goal)
        )
        if group == "peak":
            shares = [row.share_of_peak for row in counted]
            mean, least = geometric_mean(shares), min(shares)
            yield verdict(f"{name} share of peak {mean:.0%}", mean >= MIN_PEAK, MIN_PEAK)
            yield verdict(f"{name} least share of peak {least:.0%}", least >= MIN_ANY_PEAK, MIN_ANY_PEAK)
    drawn, valid = sum(row.drawn for row in mine), sum(row.valid for row in mine)
    if drawn:
        share, near = valid / drawn, sum(row.near for row in mine) / max(valid, 1)
        yield verdict(
            f"{threads} thread(s): {share:.1%} of {drawn} samples valid", share >= MIN_VALID, MIN_VALID
        )
        yield verdict(f"{threads} thread(s): {near:.1%} of those within 2x", near >= MIN_NEAR, MIN_NEAR)


def verdict(text: str, reached: bool, goal: float) -> tuple[str, bool]:
    """A line that says whether a goal was reached."""
    return f"{text}; goal {goal:g}: {'reached' if reached else 'NOT REACHED'}", reached


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean; not a number where there are no values."""
    return float(stats.gmean(values)) if values else math.nan


if __name__ == "__main__":
    sys.exit(main())
