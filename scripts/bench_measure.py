"""How fast, how steady and how small measurement is, beside stock MetaSchedule in the same run.

    python scripts/bench_measure.py [--trials 192] [--stock 64] [--threads 2] [--json FILE]
    python scripts/bench_measure.py --endurance 5000        # does the pool grow?

Both sides measure random samples of TVM's own schedule rules on two workloads. Ours counts from the
start of the first worker, sampling included; stock is `ms.tune_tir(strategy="replay-trace")` as
shipped, in a process of its own. The best sample is then measured ten times, each time built anew;
its spread is (largest - smallest) / median. Every run is printed; one beside which another process
was busy is marked and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

MIN_RATE, MAX_SPREAD, MAX_POOL_GB = 6.0, 0.05, 2.0
WORKLOADS = {
    "conv2d 56x56x64->64 3x3": ("conv2d_nhwc", (1, 56, 56, 64, 64, 3, 1, 1)),
    "matmul 192x768x768": ("matmul", (192, 768, 768)),
}
STOCK = """
import sys, tempfile, time
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing import te_workload
maker, sizes, target, trials = {maker!r}, {sizes!r}, tvm.target.Target({target!r}), {trials}
module = tvm.IRModule({{"main": te.create_prim_func(getattr(te_workload, maker)(*sizes))}})
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    database = ms.tune_tir(
        module, target, folder, max_trials_global=trials, num_trials_per_iter=64, strategy="replay-trace"
    )
    seconds = time.perf_counter() - start
    done = [r for r in database.get_all_tuning_records()]
    failed = sum(all(float(s) >= 1e9 for s in r.run_secs) for r in done)
print("RESULT", len(done), failed, seconds)
"""


def main() -> int:
    """Measure everything; the exit code says whether the figures were reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=192, help="random samples of ours per workload")
    parser.add_argument("--stock", type=int, default=64, help="trials of stock MetaSchedule; 0 for none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--endurance", type=int, default=0, help="only watch the pool for so many trials")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.endurance:
        return endurance(given.endurance, given.threads, given.seed)
    runs = []
    for name in WORKLOADS:
        run = measure(name, given.trials, given.threads, given.seed)
        if given.stock:
            run.update(stock(name, given.stock, given.threads))
        runs.append(run)
        show(run)
    if given.json:
        given.json.write_text(json.dumps(runs, indent=2) + "\n")
    counted = [run for run in runs if not run["warnings"]]
    reached = len(counted) == len(runs) and all(
        run["rate"] >= MIN_RATE and run["spread"] <= MAX_SPREAD and run["pool_gb"] <= MAX_POOL_GB
        for run in runs
    )
    print(
        f"at least {MIN_RATE:g} trials/s, spread under {MAX_SPREAD:.0%}, pool under {MAX_POOL_GB:g} GB: ",
        end="",
    )
    print("reached" if reached else "not reached")
    return 0 if reached else 1


def sampler(name: str, threads: int, seed: int) -> Any:
    """The workload, the target and an endless stream of random samples of TVM's own rules."""
    from tvm import te
    from tvm.s_tir.meta_schedule.testing import te_workload

    from tpo import targets
    from tpo.measure import BuildInput
    from tpo.space import build_space
    from tpo.workload import Workload

    maker, sizes = WORKLOADS[name]
    target = targets.resolve("native", threads)
    workload = Workload.of(te.create_prim_func(getattr(te_workload, maker)(*sizes)))
    space = build_space(workload, target)
    sketches = [sketch for sketch in space.sketches if sketch.name.startswith("tvm/")]

    def samples() -> Any:
        number = seed * 1_000_000
        while True:
            number += 1
            candidate = space.sample(sketches[number % len(sketches)], number)
            if candidate is not None:
                yield BuildInput(workload, candidate.module)

    return workload, target, samples()


def measure(name: str, trials: int, threads: int, seed: int) -> dict[str, Any]:
    """Our rate on random samples, the pool's size, and the spread of the best one measured ten times."""
    from tpo.deploy.machine import observe
    from tpo.measure import LocalRunner, MeasureOptions

    before = observe()
    workload, target, samples = sampler(name, threads, seed)
    failures: Counter[str] = Counter()
    best: tuple[float, Any] | None = None
    cut_short, pool = 0, 0
    build_seconds: list[float] = []
    with LocalRunner(target.tvm, MeasureOptions(threads)) as runner:
        start = time.perf_counter()
        done = 0
        while done < trials:
            batch = [next(samples) for _ in range(min(32, trials - done))]
            times = {workload.key: best[0]} if best else {}
            for position, measured in runner.measure(batch, times):
                done += 1
                build_seconds.append(measured.build_seconds)
                cut_short += measured.cut_short
                if measured.seconds is None:
                    failures[str(measured.failure)] += 1
                elif best is None or measured.seconds < best[0]:
                    best = (measured.seconds, batch[position])
            pool = max(pool, pool_bytes(runner))
        seconds = time.perf_counter() - start
        assert best is not None
        again = [dict(runner.measure([best[1]]))[0] for _ in range(10)]
    after = observe()
    times_again = [item.seconds for item in again if item.seconds is not None]
    raw = [statistics.median(item.samples) for item in again if item.samples]
    return {
        "workload": name,
        "threads": threads,
        "trials": trials,
        "rate": trials / seconds,
        "best_ms": best[0] * 1e3,
        "mean_build_seconds": statistics.mean(build_seconds),
        "cut_short": cut_short,
        "failures": dict(failures),
        "pool_gb": pool / 1e9,
        "ten_times_ms": [value * 1e3 for value in times_again],
        "spread": (max(times_again) - min(times_again)) / statistics.median(times_again),
        "spread_without_drift_correction": (max(raw) - min(raw)) / statistics.median(raw),
        "drift": [item.drift for item in again],
        "machine": before.cpu,
        "warnings": [*before.warnings, *after.warnings],
    }


def stock(name: str, trials: int, threads: int) -> dict[str, Any]:
    """Stock MetaSchedule's rate on random samples, in its own process, as shipped."""
    from tpo import targets

    maker, sizes = WORKLOADS[name]
    code = STOCK.format(
        maker=maker, sizes=sizes, target=str(targets.resolve("native", threads).tvm), trials=trials
    )
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not result:
        sys.exit(f"stock tune_tir failed: {done.stderr.strip().splitlines()[-1:]}")
    count, failed, seconds = result[0].split()[1:]
    return {
        "stock_trials": int(count),
        "stock_failed": int(failed),
        "stock_seconds": float(seconds),
        "stock_rate": int(count) / float(seconds),
    }


def endurance(trials: int, threads: int, seed: int) -> int:
    """Measure thousands of random samples and watch the size of the pool."""
    from tpo.measure import LocalRunner, MeasureOptions

    streams = [sampler(name, threads, seed) for name in WORKLOADS]
    best: dict[str, float] = {}
    sizes: list[float] = []
    failures: Counter[str] = Counter()
    done = 0
    local = LocalRunner(streams[0][1].tvm, MeasureOptions(threads))
    with local as runner:
        start = time.perf_counter()
        while done < trials:
            workload, _, samples = streams[(done // 250) % len(streams)]
            batch = [next(samples) for _ in range(50)]
            for _, measured in runner.measure(batch, best):
                done += 1
                if measured.seconds is None:
                    failures[str(measured.failure)] += 1
                else:
                    best[workload.key] = min(best.get(workload.key, measured.seconds), measured.seconds)
            sizes.append(pool_bytes(local) / 1e9)
            if done % 250 == 0:
                own = psutil.Process().memory_info().rss / 1e9
                line = f"{done} trials, {time.perf_counter() - start:.0f} s: pool {max(sizes[-5:]):.2f} GB"
                print(f"{line}, this process {own:.2f} GB, failed {dict(failures)}", flush=True)
        restarts = sum(worker.generation for worker in local.workers)
    fifth = max(1, len(sizes) // 5)
    first, last = max(sizes[:fifth]), max(sizes[-fifth:])
    print(f"largest pool in the first fifth of the trials {first:.2f} GB, in the last {last:.2f} GB")
    print(f"{restarts} workers replaced")
    grown = last > 1.1 * first or max(sizes) > MAX_POOL_GB
    print("the pool grew" if grown else "the pool did not grow")
    return int(grown)


def pool_bytes(runner: Any) -> int:
    """Resident memory of all workers."""
    return sum(psutil.Process(worker.pid).memory_info().rss for worker in runner.workers if worker.pid)


def show(run: dict[str, Any]) -> None:
    """One paragraph for one workload."""
    note = "  NOT COUNTED: " + "; ".join(run["warnings"]) if run["warnings"] else ""
    print(f"{run['workload']}, {run['threads']} threads, {run['machine']}{note}")
    print(
        f"  tpo:   {run['rate']:.1f} trials/s ({run['trials']} trials, {run['cut_short']} cut short, "
        f"failed {run['failures'] or 'none'}, {run['mean_build_seconds'] * 1e3:.0f} ms per build), "
        f"best {run['best_ms']:.3f} ms, pool {run['pool_gb']:.2f} GB"
    )
    if "stock_rate" in run:
        print(
            f"  stock: {run['stock_rate']:.2f} trials/s ({run['stock_trials']} trials, "
            f"{run['stock_failed']} failed, {run['stock_seconds']:.0f} s)"
        )
    print(
        f"  the best one measured ten times: spread {run['spread']:.1%} "
        f"({run['spread_without_drift_correction']:.1%} without drift correction)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
