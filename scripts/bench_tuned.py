"""What tuning gains: a model tuned for some minutes, beside its untuned artifact and ONNX Runtime.

    python scripts/bench_tuned.py [MODEL] [--minutes 10] [--threads 2] [--seeds 0] [--db FILE] [--json FILE]

All three are run in turns, in processes of their own, on the same number of threads, and their outputs are
compared. Ratios are taken within turns: a machine that becomes slower does so for everybody. A run
beside which another process was busy is printed, marked, and does not count. `--db` takes records that
are there already instead of tuning.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIN_SPEED_UP = 1.3


def command(*arguments: str, show: bool = False) -> str:
    """Run a command as a user does and return what it prints."""
    errors = None if show else subprocess.PIPE
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed: {(done.stderr or '').strip()}")
    return done.stdout


def measure(model: str, seed: int, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tune, compile both, verify and compare."""
    path, threads = folder / f"{model}.onnx", str(given.threads)
    command(str(Path(__file__).parent / "make_models.py"), model, "-o", str(path), "--seed", str(seed))
    database = given.db or folder / f"{model}.{seed}.db"
    start = time.perf_counter()
    if given.db is None:
        budget = ("--minutes", str(given.minutes), "--seed", str(seed), "--threads", threads)
        command("-m", "tpo", "tune", str(path), "--db", str(database), *budget, show=True)
    seconds = time.perf_counter() - start
    tuned, untuned = folder / "tuned.so", folder / "untuned.so"
    made = command(
        *("-m", "tpo", "compile", str(path), "-o", str(tuned), "--db", str(database)),
        *("--threads", threads, "--json"),
    )
    functions = json.loads(made)["functions"]
    command("-m", "tpo", "compile", str(path), "-o", str(untuned), "--threads", threads)
    command("-m", "tpo", "verify", str(tuned), str(path), "--threads", threads)
    report = compare(tuned, untuned, given.threads)
    return {
        "model": model,
        "seed": seed,
        "threads": given.threads,
        "tuning_seconds": round(seconds),
        "tuned_functions": sum(function["tuned"] for function in functions),
        "functions": len(functions),
        **report,
    }


def compare(tuned: Path, untuned: Path, threads: int) -> dict[str, Any]:
    """The tuned artifact against the untuned one and ONNX Runtime, in turns."""
    from tpo.deploy.bench import bench

    report = bench(tuned, ["onnxruntime", str(untuned)], threads=threads, rounds=15, seconds=0.4)
    ratios = {ratio.engine: ratio for ratio in report.ratios}
    ours, onnxruntime, without = (timing.median_ms for timing in report.timings)
    gain, beside = ratios[str(untuned)], ratios["onnxruntime"]
    return {
        "milliseconds": {"tuned": ours, "untuned": without, "onnxruntime": onnxruntime},
        "speed_up": [1 / gain.ratio, 1 / gain.high, 1 / gain.low],
        "ratio_to_onnxruntime": [beside.ratio, beside.low, beside.high],
        "warnings": list(report.warnings),
        "machine": report.machine.cpu,
    }


def show(run: dict[str, Any]) -> None:
    """A few lines for one run."""
    note = "  NOT COUNTED: " + "; ".join(run["warnings"]) if run["warnings"] else ""
    times = ", ".join(f"{name} {value:.2f} ms" for name, value in run["milliseconds"].items())
    print(f"{run['model']} seed {run['seed']}, {run['threads']} thread(s), {run['machine']}{note}")
    functions = f"{run['tuned_functions']} of {run['functions']} functions"
    print(f"  tuned for {run['tuning_seconds']} s, {functions}; {times}")
    labels = {"speed_up": "speed-up over untuned", "ratio_to_onnxruntime": "latency / onnxruntime's"}
    for key, what in labels.items():
        value, low, high = run[key]
        print(f"  {what}: {value:.2f} [{low:.2f}, {high:.2f}]", flush=True)


def main() -> int:
    """Measure everything asked for; the exit code says whether the figure was reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="light_squeezenet")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--db", type=Path, help="records to use instead of tuning")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            runs.append(measure(given.model, seed, given, Path(folder)))
            show(runs[-1])
    if given.json:
        given.json.write_text(json.dumps(runs, indent=2) + "\n")
    counted = [run for run in runs if not run["warnings"]]
    reached = bool(counted) and all(run["speed_up"][0] >= MIN_SPEED_UP for run in counted)
    outcome = "reached" if reached else "not reached"
    print(f"{len(counted)} of {len(runs)} runs counted; at least {MIN_SPEED_UP}x: {outcome}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
