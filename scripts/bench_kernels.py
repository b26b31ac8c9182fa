"""Kernels of our rules beside ONNX Runtime: random samples, the best of them, its share of the FMA peak.

    python scripts/bench_kernels.py [--groups peak winograd other] [--only TEXT] [--threads 1 2]
                                    [--samples 64] [--seed 0] [--json FILE]

Every operator is a model of one node that went through the frontend. Random samples of our rules' sketches
(TVM's own are left out; in the group `peak` also Winograd's) are built, checked and measured, beside what
each sketch prefers and the default schedule. The three fastest are measured again, in turns; the best of
them and the default are then timed beside ONNX Runtime, in one process, in turns, with weights that come
from memory (see `tpo.testing.beside`). Shares count random samples only: valid are those that were drawn,
that TVM applied and built, and whose result was right. Matrix products are rows x columns x depth.

A row counts only if the FMA peak read just before and just after it differs by at most 5 %, and if no other
process was busy before or after; otherwise it is timed once more, and if that is no better, marked.
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
                progress = f"{threads} thread(s): {number} of {len(chosen)}, {operator.name}"
                print(f"{progress}, {row.seconds:.0f} s", file=sys.stderr, flush=True)
    verdicts = [verdict for threads in given.threads for verdict in judge(rows, threads)]
    print(*peaks(rows, given.threads), *(text for text, _ in verdicts), sep="\n")
    if given.json:
        content = {"machine": asdict(machine), "arguments": vars(given), "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return 0 if all(reached for _, reached in verdicts) else 1


class Bench:
    """A runner that measures candidates, and a process where the best meet ONNX Runtime."""

    def __init__(self, threads: int, samples: int, seed: int) -> None:
        from tpo import targets
        from tpo.measure import LocalRunner, MeasureOptions

        self.threads, self.samples, self.seed = threads, samples, seed
        self.target = targets.resolve("native", threads)
        self.runner = LocalRunner(self.target.tvm, MeasureOptions(threads))
        self.side = self._new_side()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.side.shutdown()
        self.runner.close()

    def row(self, group: str, operator: Any) -> Row:
        """Everything about one operator."""
        from tpo.testing.kernels import imported

        start = time.perf_counter()
        row = Row(group, operator.name, self.threads)
        draws = self._draw(row, imported(operator).func)
        best, default = self._choose(row, draws)
        if best is not None:
            self._compare(row, operator, best, default)
        row.seconds = time.perf_counter() - start
        return row

    def _draw(self, row: Row, func: Any) -> list[Draw]:
        """Random samples, spread evenly over the sketches, and what the rules themselves would choose."""
        from tpo.space import build_space
        from tpo.workload import Workload

        space = build_space(Workload.of(func), self.target)
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

    def _choose(self, row: Row, draws: Sequence[Draw]) -> tuple[Draw | None, Draw]:
        """Measure every program once, and the fastest again, in turns."""
        from tpo.measure import BuildInput
        from tpo.workload import Workload, structural_key

        keys = [structural_key(draw.candidate.module) for draw in draws]
        distinct = {key: draw for key, draw in reversed(list(zip(keys, draws, strict=True)))}
        workload = Workload(draws[0].candidate.module) if False else None
        del workload
        raise NotImplementedError
