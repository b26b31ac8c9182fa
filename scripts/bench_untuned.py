"""Untuned artifacts beside ONNX Runtime: compile time and latency ratio, every run reported.

    python scripts/bench_untuned.py [MODEL ...] [--threads 1 2] [--seeds 0 1 2] [--json FILE]

A run counts only if nothing else was busy on the machine before or after it (`tpo bench` looks);
runs that do not count are printed too, and marked. Compile time is that of the whole `tpo compile`
command, start-up, import, build and numeric check included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS = ("light_squeezenet", "light_resnet50")
MAX_RATIO, MAX_COMPILE_SECONDS = 2.5, 60.0


def command(*arguments: str) -> str:
    """Run a command as a user does and return what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def measure(model: str, seed: int, threads: list[int], folder: Path) -> list[dict[str, Any]]:
    """Compile one model with one seed of weights and time it on each number of threads."""
    onnx, library = str(folder / f"{model}.onnx"), str(folder / f"{model}.so")
    command(str(Path(__file__).parent / "make_models.py"), model, "-o", onnx, "--seed", str(seed))
    start = time.perf_counter()
    command("-m", "tpo", "compile", onnx, "-o", library, "--threads", str(max(threads)))
    seconds = time.perf_counter() - start
    runs = []
    for count in threads:
        report = json.loads(
            command("-m", "tpo", "bench", library, "--vs", "onnxruntime", "--threads", str(count), "--json")
        )
        ours, theirs = (timing["median_ms"] for timing in report["timings"])
        ratio = report["ratios"][0]
        runs.append(
            {
                "model": model,
                "seed": seed,
                "threads": count,
                "compile_seconds": round(seconds, 1),
                "tpo_ms": ours,
                "onnxruntime_ms": theirs,
                "ratio": ratio["ratio"],
                "interval": [ratio["low"], ratio["high"]],
                "warnings": report["warnings"],
                "machine": report["machine"],
            }
        )
    return runs


def show(run: dict[str, Any]) -> None:
    """One line for one run."""
    low, high = run["interval"]
    note = "  NOT COUNTED: " + "; ".join(run["warnings"]) if run["warnings"] else ""
    name = f"{run['model']} seed {run['seed']}, {run['threads']} thread(s):"
    times = f"tpo {run['tpo_ms']:.2f} ms, onnxruntime {run['onnxruntime_ms']:.2f} ms"
    ratio = f"ratio {run['ratio']:.2f} [{low:.2f}, {high:.2f}]"
    print(f"{name} compiled in {run['compile_seconds']:.1f} s, {times}, {ratio}{note}", flush=True)


def main() -> int:
    """Measure everything asked for; the exit code says whether the figures were reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="tpo-bench-") as folder:
        for model in options.models:
            for seed in options.seeds:
                for run in measure(model, seed, options.threads, Path(folder)):
                    show(run)
                    runs.append(run)
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    counted = [run for run in runs if not run["warnings"]]
    reached = bool(counted)
    print(f"\n{len(counted)} of {len(runs)} runs count; medians over seeds:")
    for model in options.models:
        for count in options.threads:
            mine = [run for run in counted if run["model"] == model and run["threads"] == count]
            if not mine:
                print(f"  {model}, {count} thread(s): no run counts")
                reached = False
                continue
            ratio = statistics.median(run["ratio"] for run in mine)
            seconds = max(run["compile_seconds"] for run in mine)
            reached &= ratio <= MAX_RATIO and seconds <= MAX_COMPILE_SECONDS
            print(
                f"  {model}, {count} thread(s): {ratio:.2f} times ONNX Runtime, compiled in {seconds:.1f} s"
            )
    verdict = "reached" if reached else "NOT REACHED"
    print(f"figure (at most {MAX_RATIO} times, at most {MAX_COMPILE_SECONDS:.0f} s): {verdict}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
