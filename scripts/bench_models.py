"""Whole models beside ONNX Runtime, OpenVINO and stock TVM: untuned and tuned, every run reported.

    python scripts/bench_models.py [MODEL ...] [--threads 1 2] [--trials 64] [--minutes 30] [--seed 0]
                                   [--engines onnxruntime openvino] [--stock] [--untuned] [--rounds 15]
                                   [--folder DIR] [--json FILE] [--plot FILE]

For every model, by the commands a user has: it is compiled without records (the whole command is timed),
tuned for at most --trials per function on average and at most --minutes, on the most threads asked for, and
compiled again. Then all engines run in turns, each in a process of its own, in short rounds whose order
alternates, on equal threads; outputs are compared before anything is timed (`tpo.deploy.bench`). Ratios are
taken within rounds: medians, with 95 % intervals. All is fp32 and batch 1. `--stock` adds MetaSchedule as TVM
ships it, with as many trials as were spent here. `--untuned` leaves out tuning.

The artifact is the same for every number of threads: it was tuned for the largest. A run beside which another
process was busy is printed, marked, and does not count. With --folder, models, records and libraries are
kept, and a later run goes on from them. A file given by --json that exists is continued.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PEERS = ("onnxruntime", "openvino")
LEAST_TUNED, LEAST_OF_ANY, LEAST_UNTUNED, LEAST_STOCK = 1.15, 0.9, 0.75, 2.5
LEAST_OF = {"light_vgg19": 1.5, "light_resnet50": 1.15}
MOST_COMPILE_SECONDS, MOST_ERROR = 60.0, 1e-3
SHOWN_FUNCTIONS = 6  # those that take the most time


@dataclass
class Run:
    """One model on one number of threads. `ratios` are tpo's tuned latency by another's, with intervals."""

    model: str
    threads: int
    seed: int
    compile_seconds: float
    tuning_seconds: float
    trials: int
    functions: int
    tuned: bool
    ms: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]
    errors: dict[str, float]
    profile: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    machine: str = ""

    def speed(self, *others: str) -> float:
        """How many times faster tpo is than the better of some others."""
        return min((1 / self.ratios[name][0] for name in others if name in self.ratios), default=math.nan)

    def untuned_speed(self, other: str) -> float:
        """The same of the untuned library."""
        return self.ms[other] / self.ms["untuned"] if {other, "untuned"} <= set(self.ms) else math.nan


def main() -> int:
    """Measure everything asked for; the exit code says whether the figures were reached."""
    from tpo.testing import models

    known = models.benchmark_names()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=known, metavar="MODEL", help=", ".join(known))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trials", type=int, default=64, help="of a function, on average")
    parser.add_argument("--minutes", type=float, default=30.0, help="that tuning of a model may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--stock", action="store_true", help="tune with stock MetaSchedule, too")
    parser.add_argument("--untuned", action="store_true", help="leave out tuning")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn")
    parser.add_argument("--folder", type=Path, help="where models, records and libraries are kept")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="draw speeds beside the peers; needs matplotlib")
    given = parser.parse_args()
    unknown = set(given.models) - set(known)
    if unknown:
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    runs = [Run(**item) for item in json.loads(given.json.read_text())] if _exists(given.json) else []
    with tempfile.TemporaryDirectory(prefix="tpo-models-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for model in given.models:
            done = {run.threads for run in runs if (run.model, run.tuned) == (model, not given.untuned)}
            wanted = [threads for threads in given.threads if threads not in done]
            for run in measure(model, wanted, given, folder) if wanted else []:
                runs.append(run)
                print(line(run), flush=True)
                if given.json:
                    given.json.write_text(json.dumps([asdict(item) for item in runs], indent=1) + "\n")
    runs = [run for run in runs if run.model in given.models]
    print(*table(runs), sep="\n")
    verdicts = judge(runs)
    print(*(text for text, _ in verdicts), sep="\n")
    if given.plot:
        plot(runs, given.plot)
    return 0 if all(reached for _, reached in verdicts) else 1


def _exists(path: Path | None) -> bool:
    return path is not None and path.exists()


# Measuring --------------------------------------------------------------------------------------------


def measure(model: str, threads: list[int], given: argparse.Namespace, folder: Path) -> list[Run]:
    """Make, compile, tune and compare one model."""
    from tpo.deploy.bench import bench

    onnx, untuned, tuned = (folder / f"{model}{suffix}" for suffix in (".onnx", ".untuned.so", ".so"))
    if not onnx.exists():
        script = str(Path(__file__).parent / "make_models.py")
        command(script, model, "-o", str(onnx), "--seed", str(given.seed))
    most, shapes = str(max(given.threads)), shape_options(model)
    start = time.perf_counter()
    command("-m", "tpo", "compile", str(onnx), "-o", str(untuned), "--threads", most, *shapes)
    compile_seconds = time.perf_counter() - start
    functions = len(json.loads(command("-m", "tpo", "tasks", str(onnx), *shapes, "--json")))
    tuning = Tuning()
    if given.untuned:
        tuned = untuned
    else:
        tuning = tune(onnx, folder / f"{model}.db", functions, most, shapes, given)
        store = ("--db", str(folder / f"{model}.db"))
        command("-m", "tpo", "compile", str(onnx), "-o", str(tuned), *store, "--threads", most, *shapes)
    others = [*given.engines]
    if not given.untuned:
        others.append(str(untuned))
    if given.stock:
        library = folder / f"{model}.stock.so"
        others.append(str(stock(onnx, library, tuning.trials, most, given.seed, shapes[1::2])))
    runs = []
    for count in threads:
        report = bench(tuned, others, threads=count, rounds=given.rounds, seconds=given.seconds)
        names = {str(untuned): "untuned", str(folder / f"{model}.stock.so"): "stock"}
        ours = "untuned" if given.untuned else "tuned"
        ms = {names.get(t.engine, t.engine): t.median_ms for t in report.timings[1:]}
        ratios = {names.get(r.engine, r.engine): (r.ratio, r.low, r.high) for r in report.ratios}
        runs.append(
            Run(
                model=model,
                threads=count,
                seed=given.seed,
                compile_seconds=round(compile_seconds, 1),
                tuning_seconds=tuning.seconds,
                trials=tuning.trials,
                functions=functions,
                tuned=not given.untuned,
                ms={ours: report.timings[0].median_ms, **ms},
                ratios=ratios,
                errors={names.get(r.engine, r.engine): r.max_rel_difference for r in report.ratios},
                profile=profile(tuned, count),
                warnings=list(report.warnings),
                machine=report.machine.cpu,
            )
        )
    return runs


@dataclass(frozen=True)
class Tuning:
    """What tuning has taken."""

    seconds: float = 0.0
    trials: int = 0


def tune(
    onnx: Path, store: Path, functions: int, threads: str, shapes: list[str], given: argparse.Namespace
) -> Tuning:
    """Tune a model, unless that was done; how long it took is kept beside the records."""
    notes = store.with_suffix(".tuning.json")
    if notes.exists():
        return Tuning(**json.loads(notes.read_text()))
    start = time.perf_counter()
    budget = ("--trials", str(given.trials * functions), "--minutes", str(given.minutes))
    words = ("tune", str(onnx), "--db", str(store), *budget, "--threads", threads, "--seed", str(given.seed))
    command("-m", "tpo", *words, *shapes, *(["--resume"] if store.exists() else []))
    seconds = time.perf_counter() - start
    from tpo.records import Records

    with Records.open(store, create=False, readonly=True) as records:
        trials = records.count().total
    done = Tuning(round(seconds), trials)
    notes.write_text(json.dumps(asdict(done)) + "\n")
    return done


def stock(onnx: Path, library: Path, trials: int, threads: str, seed: int, shapes: list[str]) -> Path:
    """The model as TVM's own importer, tuner and compiler make it, unless that was done."""
    if not library.exists():
        words = [str(onnx), str(library), str(trials), threads, str(seed), *shapes]
        command("-m", "tpo.testing.stock_model", *words)
    return library


def shape_options(model: str) -> list[str]:
    """Options that fix the shapes a model leaves open."""
    from tpo.testing import models

    found = models.shapes(model).items()
    return [word for name, shape in found for word in ("--shape", f"{name}={','.join(map(str, shape))}")]


def profile(library: Path, threads: int) -> list[dict[str, Any]]:
    """The functions that take the most time."""
    report = json.loads(command("-m", "tpo", "profile", str(library), "--threads", str(threads), "--json"))
    kept = ("name", "calls", "milliseconds", "share", "gflops", "scheduled_by")
    return [{key: row[key] for key in kept} for row in report["rows"][:SHOWN_FUNCTIONS]]


def command(*arguments: str) -> str:
    """Run a command as a user does and return what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["nothing said"]
        sys.exit(f"{' '.join(arguments)} failed: {lines[-1]}")
    return done.stdout


# Showing ----------------------------------------------------------------------------------------------


def line(run: Run) -> str:
    """What came out of one run."""
    times = ", ".join(f"{name} {value:.2f}" for name, value in run.ms.items())
    ratios = ", ".join(
        f"{name} {1 / ratio:.2f} ({1 / high:.2f} to {1 / low:.2f})"
        for name, (ratio, low, high) in run.ratios.items()
    )
    spent = f"{run.trials} trials in {run.tuning_seconds:.0f} s, " if run.tuned else ""
    note = f"  NOT COUNTED: {'; '.join(run.warnings)}" if run.warnings else ""
    what = f"{run.model}, {run.threads} thread(s), {run.machine}"
    done = f"compiled in {run.compile_seconds:.0f} s, {spent}{times} ms"
    error = max(run.errors.values(), default=0.0)
    return f"{what}: {done}; times as fast as {ratios}; error {error:.1e}{note}"


def table(runs: list[Run]) -> list[str]:
    """All runs, as Markdown."""
    names = list(dict.fromkeys(name for run in runs for name in run.ms))
    heads = ["model", "threads", *(f"{name} ms" for name in names), "speed", "compile s", "tuning s", "error"]
    lines = ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for run in runs:
        times = [f"{run.ms[name]:.2f}" if name in run.ms else "" for name in names]
        cells = [
            *(run.model + ("" if not run.warnings else " (not counted)"), str(run.threads), *times),
            *(f"{run.speed(*PEERS):.2f}", f"{run.compile_seconds:.0f}", f"{run.tuning_seconds:.0f}"),
            f"{run.errors.get('onnxruntime', math.nan):.0e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "speed: times as fast as the better of ONNX Runtime and OpenVINO"]


def judge(runs: list[Run]) -> list[tuple[str, bool]]:
    """What the goals ask, each with whether it was reached by the runs that count."""
    counted = [run for run in runs if not run.warnings]
    found = [(f"{len(counted)} of {len(runs)} runs count", bool(counted))]
    for threads in sorted({run.threads for run in counted}):
        mine = [run for run in counted if run.threads == threads]
        tuned = [run for run in mine if run.tuned]
        speeds = {run.model: run.speed(*PEERS) for run in tuned}
        where = f"{threads} thread(s), {len(speeds)} models"
        if speeds:
            found.append(
                verdict(f"tuned against the better, {where}", geometric(speeds.values()), LEAST_TUNED)
            )
            found.append(verdict(f"the worst of them, {where}", min(speeds.values()), LEAST_OF_ANY))
        found += [
            verdict(f"{name} against the better, {threads} thread(s)", speeds[name], least)
            for name, least in LEAST_OF.items()
            if name in speeds
        ]
        plain = [run.untuned_speed("onnxruntime") for run in mine if "onnxruntime" in run.ms]
        if plain:
            name = f"untuned against ONNX Runtime, {threads} thread(s), {len(plain)} models"
            found.append(verdict(name, geometric(plain), LEAST_UNTUNED))
        beside = [run.speed("stock") for run in tuned if "stock" in run.ratios]
        if beside:
            found.append(
                verdict(f"tuned against stock TVM, {len(beside)} models", geometric(beside), LEAST_STOCK)
            )
    if runs:
        slowest = max(run.compile_seconds for run in runs)
        found.append((f"slowest compilation: {slowest:.0f} s", slowest <= MOST_COMPILE_SECONDS))
        worst = max(run.errors.get("onnxruntime", 0.0) for run in runs)
        found.append((f"largest error against ONNX Runtime: {worst:.1e}", worst <= MOST_ERROR))
    return found


def verdict(name: str, value: float, goal: float) -> tuple[str, bool]:
    """A line that says whether a goal was reached."""
    return (
        f"{name}: {value:.2f}; goal {goal:.2f}: {'reached' if value >= goal else 'NOT REACHED'}",
        value >= goal,
    )


def geometric(values: Any) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(list(values)))))


def plot(runs: list[Run], path: Path) -> None:
    """Speeds beside each peer, model by model, with intervals."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")  # only who draws needs it
    threads = sorted({run.threads for run in runs})
    figure, axes = pyplot.subplots(len(threads), 1, figsize=(10, 3.5 * len(threads)), squeeze=False)
    for axis, count in zip(axes.flat, threads, strict=True):
        mine = [run for run in runs if run.threads == count]
        peers = [name for name in PEERS if any(name in run.ratios for run in mine)]
        for k, peer in enumerate(peers):
            places = np.arange(len(mine)) + k * 0.8 / len(peers)
            found = np.array([run.ratios.get(peer, (math.nan,) * 3) for run in mine])
            speeds = 1 / found
            errors = [speeds[:, 0] - speeds[:, 2], speeds[:, 1] - speeds[:, 0]]
            axis.bar(places, speeds[:, 0], 0.8 / len(peers), yerr=errors, label=f"against {peer}")
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks(np.arange(len(mine)) + 0.3, [run.model for run in mine], rotation=30, ha="right")
        axis.set(ylabel="times as fast", title=f"{count} thread(s)")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
