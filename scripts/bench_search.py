"""Searches beside each other: tpo's, stock MetaSchedule's, and tpo's in MetaSchedule's space.

    python scripts/bench_search.py [--operators C1D C2D ...] [--seeds 3] [--trials 64] [--threads 2]
                                   [--parts search none same long speed] [--json FILE] [--retry] [--plot FILE]
                                   [--pause FILE]

For every operator of the MetaSchedule paper and every seed, each in a fresh process, in turns:

    search  tpo with its own rules (best after a quarter of the trials, and after all); stock MetaSchedule
            without its start-up fault (`tpo.testing.stock`)
    none    no trial at all: the default schedule, and the first choice of tpo's cost model
    same    tpo's search in TVM's own sketches only
    long    stock MetaSchedule with ten times the trials
    speed   candidates scored per second on one core, beside TVM's way of scoring

Every search keeps its best program. Tuners time differently, so their own times count for nothing: at the
end of an operator all programs of all seeds are built, checked against the unscheduled function and timed by
one runner, in turns (`LocalRunner.compare`, twice). tpo's best is the best of its leaders measured again, as
`tpo tune` does it; that is part of its wall time. Wall times count from the call of the tuner, after all
imports and when TVM knows the host's intrinsics; both start their workers inside. Overhead is the share of
tpo's wall time outside its runner; `idle` is what is left when only the time is taken off that workers spent
building (divided by their number) and running. Ratios are times of the other divided by ours (above 1: ours
is faster), geometric means over seeds, then over operators.

A search, or a comparison, is marked if another process was busy just before or after it, or if others used
more than 5 % of the machine meanwhile. An operator with a mark on it, or whose two comparisons disagree by
more than 10 % about how any program does beside the others, is printed but does not count: all programs take
turns, so a machine that is slower for all of them in one of the two is no reason for doubt. A file given by
--json that exists is continued; --retry does what is marked in it once more. While the file given by --pause
exists, searches stand still, and what others do does not count: hours of searching fit into a day's work. A
trial that was stopped in the middle may look slow, or be given up by its tuner, and nobody knows how long
the search would have taken: searches that stood still are marked, but for the long ones.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PARTS = ("search", "none", "same", "long", "speed")
CONTENDERS = {"search": ("tpo", "stock"), "none": ("none",), "same": ("same",), "long": ("long",)}
LONG, EARLY = 10, 4  # times as many trials; a fraction of them
BATCH, LEADERS = 16, 4  # of tpo: candidates at once, and how many are measured again; its defaults
COMPARISONS, SPREAD, OTHERS = 2, 0.1, 0.05
LEAST_RATE = 50_000
PAUSE_STEP = 0.1  # seconds between two looks at whether to go on
# What is compared (its time above, its time below), and the least ratio. Names are those of programs.
GOALS = (
    ("stock", "tpo", 1.3),
    ("stock", "tpo", 1.54),
    ("long", "tpo", 1.0),
    ("stock", "same", 1.15),
    ("stock", "early", 1.15),
    ("tpo", "zero", 0.75),
    ("tpo", "default", 0.0),
)
MOST_WALL, MOST_OVERHEAD = 1 / 3, 0.15
PHASES = ("propose", "measure", "observe", "confirm", "not counted", "building", "running")
PROGRAMS = ("tpo", "early", "stock", "long", "same", "default", "zero")


@dataclass
class Search:
    """One tuner's search. `seconds` are its own times in the order of trials, None for failures.

    `phases` says where tpo's time went. `programs` are files that hold its best programs.
    """

    operator: str
    seed: int
    contender: str
    trials: int
    seconds: list[float | None] = field(default_factory=list)
    wall_seconds: float = math.nan
    phases: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    sketches: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    pauses: int = 0

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What makes it this search and no other."""
        return self.operator, self.seed, self.contender, self.trials

    @property
    def overhead(self) -> float:
        """The share of the time in which nothing was measured."""
        return 1 - (self.phases["measure"] + self.phases["confirm"]) / self.wall_seconds

    @property
    def idle(self) -> float:
        """The share of the time in which no worker was building or running."""
        return 1 - (self.phases["building"] + self.phases["running"]) / self.wall_seconds


@dataclass
class Comparison:
    """All programs of an operator, timed by one runner: milliseconds by name and seed."""

    operator: str
    programs: list[str]
    ms: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    spread: float = math.nan
    doubts: list[str] = field(default_factory=list)

    def mean(self, name: str) -> float:
        """The geometric mean over seeds; not a number if there is none."""
        times = self.ms.get(name)
        return geometric(list(times.values())) if times else math.nan

    def ratio(self, theirs: str, ours: str) -> float:
        """How many times faster ours is."""
        return self.mean(theirs) / self.mean(ours)


@dataclass
class Speed:
    """Candidates scored per second on one core; `compiling` is what our first call took longer."""

    operator: str
    candidates: int
    rate: float
    compiling: float
    tvm_candidates: int
    tvm_rate: float
    doubts: list[str] = field(default_factory=list)


@dataclass
class Results:
    """Everything that is known, and where it is kept."""

    path: Path | None
    folder: Path
    arguments: dict[str, Any]
    machine: dict[str, Any]
    searches: list[Search] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)

    @classmethod
    def begin(cls, folder: Path, given: argparse.Namespace) -> Results:
        """Continue the file that was given, or begin one."""
        from tpo.deploy.machine import observe

        settings = {"trials": given.trials, "threads": given.threads, "between_mb": given.between_mb}
        path: Path | None = given.json
        results = cls(path, folder, settings, asdict(observe()))
        if path is None or not path.exists():
            return results
        content = json.loads(path.read_text())
        if content["arguments"] != settings:
            sys.exit(f"{path} was made with {content['arguments']}, not {settings}")
        results.searches = [Search(**item) for item in content["searches"]]
        results.comparisons = [Comparison(**item) for item in content["comparisons"]]
        results.speeds = [Speed(**item) for item in content["speeds"]]
        if given.retry:
            results.searches = [item for item in results.searches if not item.doubts]
            results.comparisons = [item for item in results.comparisons if not item.doubts]
            results.speeds = [item for item in results.speeds if not item.doubts]
        return results

    def save(self) -> None:
        """Write what is known by now: a long run may not come to its end."""
        if self.path is None:
            return
        content = {
            "machine": self.machine,
            "arguments": self.arguments,
            "searches": [asdict(item) for item in self.searches],
            "comparisons": [asdict(item) for item in self.comparisons],
            "speeds": [asdict(item) for item in self.speeds],
        }
        temporary = self.path.with_name(self.path.name + ".part")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.path)

    def of(self, operator: str, contender: str = "") -> list[Search]:
        """The searches of an operator, by one contender or by all."""
        return [s for s in self.searches if s.operator == operator and contender in ("", s.contender)]


def main() -> int:
    """Measure everything asked for; the exit code says whether the figures were reached."""
    from tpo.testing import operators

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", nargs="+", default=operators.names(), choices=operators.names())
    parser.add_argument("--seeds", type=int, default=3, help="how many, counted from 0")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--between-mb", type=float, default=0.0, help="touched between two timed calls")
    parser.add_argument("--parts", nargs="+", default=["search", "none", "same", "speed"], choices=PARTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--retry", action="store_true", help="do once more what is marked in the file")
    parser.add_argument("--pause", type=Path, help="while this file exists, searches stand still")
    parser.add_argument("--plot", type=Path, help="draw the best time against trials; needs matplotlib")
    given = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(given.threads)  # for all processes of all contenders
    with tempfile.TemporaryDirectory(prefix="tpo-search-") as temporary:
        folder = given.json.with_suffix(".programs") if given.json else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = Results.begin(folder, given)
        show_machine(results)
        for operator in given.operators:
            run_operator(results, operator, given)
        verdicts = list(judge(results, given.trials))
        print(*(text for text, _ in verdicts), sep="\n")
        if given.plot:
            plot(results, given.plot)
    return 0 if all(reached for _, reached in verdicts) else 1


def run_operator(results: Results, operator: str, given: argparse.Namespace) -> None:
    """Every search of an operator that is missing, then the comparison of what they found."""
    contenders = [name for part in given.parts for name in CONTENDERS.get(part, ())]
    for seed in range(given.seeds):
        # Every other seed the other way around: nobody is always first on a cold machine.
        for contender in contenders if seed % 2 == 0 else reversed(contenders):
            search = Search(operator, seed, contender, given.trials * (LONG if contender == "long" else 1))
            if search.key not in {known.key for known in results.searches}:
                results.searches.append(run_search(results, search, given.pause))
                results.save()
                print(search_line(results.searches[-1]), file=sys.stderr, flush=True)
    wait_for(given.pause)
    if contenders:
        compare(results, operator)
        print(operator_line(results, operator), flush=True)
    if "speed" in given.parts and operator not in {speed.operator for speed in results.speeds}:
        results.speeds.append(speed := run_speed(operator))
        results.save()
        print(speed_line(speed), flush=True)


class Machine:
    """What the machine does for others while this process waits for its children, unless they stand still."""

    def __init__(self) -> None:
        from tpo.deploy.machine import observe

        self.warnings = observe().warnings
        self.start, self.busy, self.own = time.perf_counter(), all_cpu_seconds(), own_cpu_seconds()
        self.pauses = 0

    def stand_still(self, sign: Path) -> None:
        """Stop all children while a file exists."""
        start, busy = time.perf_counter(), all_cpu_seconds()
        children = psutil.Process().children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.suspend()
        while sign.exists():
            time.sleep(PAUSE_STEP)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.resume()
        seconds = time.perf_counter() - start
        self.start += seconds
        self.busy += all_cpu_seconds() - busy
        self.pauses += 1

    def doubts(self) -> list[str]:
        """Reasons to distrust what was measured since; to be asked when all children have ended."""
        from tpo.deploy.machine import observe

        others = all_cpu_seconds() - self.busy - (own_cpu_seconds() - self.own)
        share = others / (time.perf_counter() - self.start) / (os.cpu_count() or 1)
        found = list(dict.fromkeys([*self.warnings, *observe().warnings]))
        return [*found, f"others used {share:.0%} of the machine meanwhile"] if share > OTHERS else found


def all_cpu_seconds() -> float:
    """What all processors have worked since the machine was started, for this machine or for another one."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def own_cpu_seconds() -> float:
    """What this process has worked, and all of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# Searches ---------------------------------------------------------------------------------------------


def run_search(results: Results, search: Search, pause: Path | None) -> Search:
    """A search in a fresh process, which it may take down."""
    wait_for(pause)
    machine = Machine()
    work = {"stock": stock_search, "long": stock_search, "none": no_search}.get(search.contender, tpo_search)
    try:
        found: Search = fresh(work, search, results.arguments, results.folder, watch=(machine, pause))
    except Exception as error:  # whatever it raises, or dies of, is the end of this search only
        return replace(search, doubts=[f"it failed: {last_line(error)}"])
    found.doubts += machine.doubts()
    found.pauses = machine.pauses
    if machine.pauses and math.isfinite(found.wall_seconds):
        found.wall_seconds = math.nan  # how much of it was standing still nobody can tell
        if search.contender != "long":
            found.doubts.append("it stood still")
    return found


def wait_for(pause: Path | None) -> None:
    """Begin nothing while the file exists."""
    while pause is not None and pause.exists():
        time.sleep(PAUSE_STEP)


def fresh(work: Any, *arguments: Any, watch: tuple[Machine, Path | None] | None = None) -> Any:
    """What a function returns in a process that nobody has used before, or will again."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), die_with_parent) as pool:
        result = pool.submit(work, *arguments)
        while watch is not None and watch[1] is not None and not result.done():
            if watch[1].exists():
                watch[0].stand_still(watch[1])
            time.sleep(PAUSE_STEP)
        return result.result()


def die_with_parent() -> None:
    """Ask the kernel to: a search that nobody waits for would disturb whatever is measured next."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def stock_search(search: Search, settings: dict[str, Any], folder: Path) -> Search:
    """In a process of its own: MetaSchedule."""
    from tpo import targets
    from tpo.testing import operators, stock

    target = targets.resolve("native", settings["threads"])
    run = stock.tune(operators.workload(search.operator), target, search.trials, search.seed)
    search.seconds = [seconds if math.isfinite(seconds) else None for seconds in run.seconds]
    search.wall_seconds, search.failures, search.messages = run.wall_seconds, dict(run.failures), run.messages
    if run.module is None:
        search.doubts.append("no trial succeeded")
    else:
        keep(search, search.contender, run.module, folder)
    return search


def tpo_search(search: Search, settings: dict[str, Any], folder: Path) -> Search:
    """In a process of its own: tpo, in its own space or in TVM's sketches."""
    import xgboost  # noqa: F401 (imports do not count)

    from tpo import targets
    from tpo.measure import LocalRunner, MeasureOptions
    from tpo.search import Evolve
    from tpo.space import build_space
    from tpo.space.tvm_rules import register_intrinsics
    from tpo.testing import operators

    target = targets.resolve("native", settings["threads"])
    register_intrinsics(target.arch)
    workload = operators.workload(search.operator)
    options = MeasureOptions(settings["threads"], between_mb=settings["between_mb"])
    start = time.perf_counter()
    gc.freeze()  # as `tpo tune` does
    with LocalRunner(target.tvm, options) as runner:
        space = build_space(workload, target)
        if search.contender == "same":
            space = replace(space, sketches=[s for s in space.sketches if s.name.startswith("tvm/")])
        model, rng = new_model(settings["threads"], search.seed), np.random.default_rng(search.seed)
        strategy = Evolve(space, model, rng)
        search.phases = {"space": time.perf_counter() - start}
        loop = Loop(search, strategy, runner, workload)
        loop.run()
        best = loop.confirmed(search.trials, "confirm")
        search.wall_seconds = time.perf_counter() - start
        found = {search.contender: best}
        if search.contender == "tpo":
            found |= {"early": loop.confirmed(search.trials // EARLY, "not counted")}
    keep_candidates(search, found, folder)
    return search


def no_search(search: Search, settings: dict[str, Any], folder: Path) -> Search:
    """In a process of its own: what tpo offers before anything was measured."""
    from tpo import targets
    from tpo.search import Evolve
    from tpo.space import build_space
    from tpo.testing import operators

    space = build_space(operators.workload(search.operator), targets.resolve("native", settings["threads"]))
    first = Evolve(space, new_model(settings["threads"], search.seed), np.random.default_rng(search.seed))
    keep_candidates(search, {"default": space.default(), "zero": first.first_choice()}, folder)
    return search


def keep_candidates(search: Search, found: dict[str, Any], folder: Path) -> None:
    """Store programs of tpo's, by their names."""
    for name, candidate in found.items():
        if candidate is not None:
            search.sketches[name] = candidate.sketch
            keep(search, name, candidate.module, folder)


def new_model(threads: int, seed: int) -> Any:
    """The cost model of a run, as `tpo tune` makes it."""
    from tpo.cost.online import OnlineModel
    from tpo.cost.pretrained import pretrained_model
    from tpo.cost.ranking import RankingModel

    return OnlineModel(RankingModel(pretrained_model(), threads, seed))


class Loop:
    """Propose, measure, observe; with a clock on each."""

    def __init__(self, search: Search, strategy: Any, runner: Any, workload: Any) -> None:
        self.search, self.strategy, self.runner, self.workload = search, strategy, runner, workload
        self.results: list[tuple[Any, Any]] = []
        search.phases |= dict.fromkeys(PHASES, 0.0)

    def run(self) -> None:
        """Until trials or candidates run out."""
        known: set[str] = set()
        best = math.inf
        while len(self.results) < self.search.trials:
            with self._clock("propose"):
                proposed = self.strategy.propose(min(BATCH, self.search.trials - len(self.results)), known)
            if not proposed:
                self.search.messages.append(f"nothing more to propose after {len(self.results)} trials")
                break
            with self._clock("measure"):
                inputs = self._inputs(proposed)
                measured = dict(self.runner.measure(inputs, {self.workload.key: best}))
            batch = [(candidate, measured[k]) for k, candidate in enumerate(proposed)]
            with self._clock("observe"):
                self.strategy.observe(batch)
            known.update(candidate.key for candidate in proposed)
            best = min([best, *(found.seconds for _, found in batch if found.seconds is not None)])
            self.results += batch
            self._count([found for _, found in batch])
        self.search.seconds = [found.seconds for _, found in self.results]

    def confirmed(self, trials: int, phase: str) -> Any:
        """The best of the leaders after so many trials, measured again in turns; None if all failed."""
        first = enumerate(self.results[:trials])
        done = sorted((found.seconds, k) for k, (_, found) in first if found.ok and not found.cut_short)
        leaders = [self.results[k][0] for _, k in done[:LEADERS]]
        if len(leaders) < 2:
            return leaders[0] if leaders else None
        with self._clock(phase):
            (again,) = self.runner.compare([self._inputs(leaders)])
        if phase == "confirm":
            self._count(again)
        times = [math.inf if found.seconds is None else found.seconds for found in again]
        return leaders[int(np.argmin(times))]

    def _inputs(self, candidates: Sequence[Any]) -> list[Any]:
        from tpo.measure import BuildInput

        return [BuildInput(self.workload, candidate.module) for candidate in candidates]

    def _count(self, measured: Sequence[Any]) -> None:
        workers = self.runner.capabilities.parallel_builds
        self.search.phases["building"] += sum(found.build_seconds for found in measured) / workers
        self.search.phases["running"] += sum(found.run_seconds for found in measured)
        failed = Counter(str(found.failure) for found in measured if found.failure is not None)
        self.search.failures = dict(Counter(self.search.failures) + failed)
        said = [found.message for found in measured if found.failure is not None]
        self.search.messages = list(dict.fromkeys([*self.search.messages, *said]))[:5]

    def _clock(self, phase: str) -> Any:
        return Clock(self.search.phases, phase)


class Clock:
    """Adds the time spent inside to a phase."""

    def __init__(self, phases: dict[str, float], phase: str) -> None:
        self.phases, self.phase = phases, phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.phases[self.phase] += time.perf_counter() - self.start


def keep(search: Search, name: str, module: Any, folder: Path) -> None:
    """Store a program as TVM's JSON."""
    import tvm

    path = folder / f"{search.operator}-{search.seed}-{name}-{search.trials}.json"
    path.write_text(str(tvm.ir.save_json(module)))
    search.programs[name] = path.name


# Comparison -------------------------------------------------------------------------------------------


def compare(results: Results, operator: str) -> None:
    """Time all programs of an operator by one runner, unless that was done."""
    files = {
        f"{name} {s.seed}": path for s in results.of(operator) for name, path in sorted(s.programs.items())
    }
    found = Comparison(operator, sorted(files.values()))
    if any(known.programs == found.programs for known in results.comparisons if known.operator == operator):
        return
    machine = Machine()
    try:
        times, found.failures, found.spread = fresh(timed, operator, files, results.arguments, results.folder)
        for label, seconds in times.items():
            name, seed = label.split()
            found.ms.setdefault(name, {})[seed] = seconds * 1e3
        if not found.spread <= SPREAD:
            found.doubts.append(f"two comparisons disagree by {found.spread:.0%}")
    except Exception as error:  # the searches are worth more than their comparison, which can be made again
        found.doubts.append(f"the comparison failed: {last_line(error)}")
    found.doubts += machine.doubts()
    results.comparisons = [known for known in results.comparisons if known.operator != operator] + [found]
    results.save()


def timed(
    operator: str, files: dict[str, str], settings: dict[str, Any], folder: Path
) -> tuple[dict[str, float], dict[str, str], float]:
    """In a process of its own: seconds of programs by label, which failed, and the largest disagreement."""
    import tvm

    from tpo import targets
    from tpo.measure import BuildInput, LocalRunner, MeasureOptions
    from tpo.testing import operators
    from tpo.workload import structural_key

    workload = operators.workload(operator)
    modules = {label: tvm.ir.load_json((folder / name).read_text()) for label, name in files.items()}
    keys = {label: structural_key(module) for label, module in modules.items()}
    inputs = {key: BuildInput(workload, modules[label]) for label, key in keys.items()}
    options = MeasureOptions(settings["threads"], between_mb=settings["between_mb"])
    with LocalRunner(targets.resolve("native", settings["threads"]).tvm, options) as runner:
        # Alone first: one that crashes or is wrong must not spoil the comparison.
        alone = dict(runner.measure(list(inputs.values())))
        said = {key: f"{alone[k].failure}: {alone[k].message}" for k, key in enumerate(inputs)}
        good = [key for k, key in enumerate(inputs) if alone[k].ok]
        rounds = [runner.compare([[inputs[key] for key in good]])[0] for _ in range(COMPARISONS)]
    table = np.array([[found.seconds or math.nan for found in measured] for measured in rounds])
    means = dict(zip(good, np.exp(np.log(table).mean(axis=0)), strict=True))
    beside = table / np.exp(np.log(table).mean(axis=1, keepdims=True))
    return (
        {label: float(means[key]) for label, key in keys.items() if key in means},
        {label: said[key] for label, key in keys.items() if key not in means},
        float((beside.max(axis=0) / beside.min(axis=0)).max() - 1),
    )


# Speed ------------------------------------------------------------------------------------------------


def run_speed(operator: str) -> Speed:
    """How fast candidates of an operator are scored."""
    machine = Machine()
    try:
        speed: Speed = fresh(score, operator)
    except Exception as error:  # one operator that cannot be scored is no reason to stop
        return Speed(operator, 0, math.nan, math.nan, 0, math.nan, [f"it failed: {last_line(error)}"])
    speed.doubts += machine.doubts()
    return speed


def score(operator: str, rows: int = 4096, few: int = 96) -> Speed:
    """In a process of its own, on one core: features and predictions, ours and TVM's."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from tpo import targets
    from tpo.cost.simulator import Simulator
    from tpo.search.population import LOOKS, STRUCTURES
    from tpo.space import build_space
    from tpo.testing import operators

    space = build_space(operators.workload(operator), targets.resolve("native", 1))
    simulator, rng = Simulator.of(space), np.random.default_rng(0)
    drawn = [(sketch, sketch.domain.draw(rows, rng)) for sketch in space.sketches]
    drawn = [(sketch, found) for sketch, found in drawn if len(found)]
    start = time.perf_counter()
    for item in drawn:  # as a search does before its first look, and in some of the next
        simulator.watch(*item, LOOKS * STRUCTURES)
    features = np.concatenate([simulator.features(*item) for item in drawn])
    first = time.perf_counter() - start
    model = new_model(1, 0)
    taught = features[rng.permutation(len(features))[:64]]
    model.learn("made up", taught, rng.random(len(taught)) + 1.0)
    model.predict(features[:1])
    start = time.perf_counter()
    for item in drawn:
        model.predict(simulator.features(*item))
    seconds = time.perf_counter() - start
    tvm_count, tvm_seconds = score_as_tvm(space, few)
    return Speed(
        operator,
        len(features),
        len(features) / seconds,
        first - seconds,
        tvm_count,
        tvm_count / tvm_seconds if tvm_count else math.nan,
    )


def score_as_tvm(space: Any, count: int) -> tuple[int, float]:
    """How many candidates of TVM's sketches were applied, described and predicted as TVM does it; seconds."""
    from tvm.s_tir import meta_schedule as ms

    from tpo.workload import schedule_of

    sketches = [sketch for sketch in space.sketches if sketch.name.startswith("tvm/")]
    if not sketches:
        return 0, 0.0
    start = time.perf_counter()
    drawn = [space.sample(sketches[k % len(sketches)], k + 1) for k in range(count)]
    applied = time.perf_counter() - start
    candidates = []
    for candidate in (found for found in drawn if found is not None):
        sch = schedule_of(candidate.module)
        candidates.append(
            ms.search_strategy.MeasureCandidate(sch, ms.arg_info.ArgInfo.from_entry_func(sch.mod, True))
        )
    model = ms.cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)
    made_up = [ms.runner.RunnerResult([1e-3 * (1 + k % 7)], None) for k in range(len(candidates))]
    model.update(space.context, candidates, made_up)
    start = time.perf_counter()
    model.predict(space.context, candidates)
    return len(candidates), applied + time.perf_counter() - start


# Tables -----------------------------------------------------------------------------------------------


def show_machine(results: Results) -> None:
    """What it runs on, and what the columns are."""
    machine, settings = results.machine, results.arguments
    busy = ", ".join(machine["busy"]) or "none"
    print(f"{machine['cpu']}, {settings['threads']} threads, {settings['trials']} trials; other work: {busy}")
    trials = settings["trials"]
    titles = (
        f"tpo {trials}",
        f"tpo {trials // EARLY}",
        f"stock {trials}",
        f"stock {LONG * trials}",
        f"same {trials}",
        "default",
        "zero",
    )
    columns = " ".join(f"{title:>10}" for title in titles)
    print(f"op.  {columns}  ms, means over seeds; stock/tpo and stock/same; wall time, overhead (idle)")


def operator_line(results: Results, operator: str) -> str:
    """A row of the table."""
    (found,) = (item for item in results.comparisons if item.operator == operator)
    times = " ".join(f"{found.mean(name):10.4f}" for name in PROGRAMS)
    ratios = f"{found.ratio('stock', 'tpo'):5.2f} {found.ratio('stock', 'same'):5.2f}"
    ours = [s for s in results.of(operator, "tpo") if s.phases]
    cost = ""
    if ours:
        wall, overhead, idle = (
            float(np.mean([getattr(s, name) for s in ours])) for name in ("wall_seconds", "overhead", "idle")
        )
        theirs = [s.wall_seconds for s in results.of(operator, "stock")]
        cost = (
            f"{wall:4.0f} s / {np.mean(theirs) if theirs else math.nan:4.0f} s, {overhead:.0%} ({idle:.0%})"
        )
    failed = "".join(f"; {label} FAILED: {why}" for label, why in found.failures.items())
    marks = dict.fromkeys(mark.split(" (")[0] for mark in doubts(results, operator))  # without processes' ids
    note = f"  NOT COUNTED: {'; '.join(marks)}" if marks else ""
    return f"{operator:4} {times}  {ratios}  {cost}{failed}{note}"


def search_line(search: Search) -> str:
    """What became of one search."""
    done = [seconds for seconds in search.seconds if seconds is not None]
    best = f"best {min(done) * 1e3:.4f} ms by its own clock" if done else "no result"
    where = ", ".join(f"{name} {seconds:.1f}" for name, seconds in search.phases.items())
    return (
        f"  {search.operator} seed {search.seed} {search.contender}: {len(search.seconds)} trials, "
        f"{search.wall_seconds:.0f} s, failed {search.failures or 'none'}, {best}"
        + (f" ({where})" if where else "")
        + (f"; {search.messages}" if search.messages else "")
        + (f"; stood still {search.pauses} times" if search.pauses else "")
        + (f"  MARKED: {'; '.join(search.doubts)}" if search.doubts else "")
    )


def speed_line(speed: Speed) -> str:
    """How fast candidates of one operator are scored."""
    marks = f"  NOT COUNTED: {'; '.join(speed.doubts)}" if speed.doubts else ""
    return (
        f"{speed.operator:4} {speed.rate:,.0f} candidates/s scored on one core ({speed.candidates} after "
        f"{speed.compiling:.1f} s of compiling), TVM {speed.tvm_rate:,.0f}/s{marks}"
    )


def doubts(results: Results, operator: str) -> list[str]:
    """Why an operator does not count; nothing if it does."""
    searches = [f"{s.contender} {s.seed}: {why}" for s in results.of(operator) for why in s.doubts]
    compared = [why for item in results.comparisons if item.operator == operator for why in item.doubts]
    return [*searches, *compared]


def judge(results: Results, trials: int) -> Iterator[tuple[str, bool]]:
    """What the goals ask, each with whether it was reached by the operators that count."""
    counted = [item for item in results.comparisons if not doubts(results, item.operator)]
    if results.comparisons:
        yield f"{len(counted)} of {len(results.comparisons)} operators count", bool(counted)
    for theirs, ours, goal in GOALS:
        ratios = [r for r in (item.ratio(theirs, ours) for item in counted) if math.isfinite(r)]
        if ratios:
            name = f"{ours} against {theirs}, {len(ratios)} operators"
            yield verdict(name, mean := geometric(ratios), goal, mean >= goal)
    names = {item.operator for item in counted}
    ours_done = [s for s in results.searches if s.operator in names and s.contender == "tpo" and s.phases]
    theirs_done = [s for s in results.searches if s.operator in names and s.contender == "stock"]
    if ours_done and theirs_done:
        wall = geometric([s.wall_seconds for s in ours_done]) / geometric(
            [s.wall_seconds for s in theirs_done]
        )
        yield verdict(f"wall time of {trials} trials beside stock's", wall, MOST_WALL, wall <= MOST_WALL)
    if ours_done:
        share = sum(s.overhead * s.wall_seconds for s in ours_done) / sum(s.wall_seconds for s in ours_done)
        idle = sum(s.idle * s.wall_seconds for s in ours_done) / sum(s.wall_seconds for s in ours_done)
        name = f"overhead (idle {idle:.0%})"
        yield verdict(name, share, MOST_OVERHEAD, share <= MOST_OVERHEAD)
    rates = [speed.rate for speed in results.speeds if not speed.doubts]
    if rates:
        ratio = geometric([s.rate / s.tvm_rate for s in results.speeds if s.tvm_rate > 0 and not s.doubts])
        name = f"candidates scored per second ({ratio:.0f} times TVM's)"
        yield verdict(name, geometric(rates), LEAST_RATE, geometric(rates) >= LEAST_RATE)


def verdict(name: str, value: float, goal: float, reached: bool) -> tuple[str, bool]:
    """A line that says whether a goal was reached."""
    return f"{name}: {value:.3g}; goal {goal:.3g}: {'reached' if reached else 'NOT REACHED'}", reached


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def last_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


# Plot -------------------------------------------------------------------------------------------------


def curves(results: Results, operator: str, contender: str) -> Any:
    """The best so far of every seed, in milliseconds of the comparison that all took part in.

    A tuner's own times differ from the common runner's by a factor, which its best program tells.
    """
    found = []
    (compared,) = (item for item in results.comparisons if item.operator == operator)
    for search in results.of(operator, contender):
        own = np.array([math.inf if seconds is None else seconds for seconds in search.seconds])
        common = compared.ms.get(contender, {}).get(str(search.seed))
        if common is not None:
            best = np.minimum.accumulate(own)
            found.append(np.where(np.isfinite(best), best * common / best[-1], math.nan))
    if not found:
        return np.zeros((0, 0))
    longest = max(map(len, found))
    return np.stack([np.concatenate([curve, np.repeat(curve[-1:], longest - len(curve))]) for curve in found])


def plot(results: Results, path: Path) -> None:
    """Best latency against trials: the mean over seeds, and between which it lies."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")  # only who draws needs it
    names = [item.operator for item in results.comparisons]
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False)
    for axis, operator in zip(axes.flat, names, strict=False):
        for contender in ("tpo", "same", "stock", "long"):
            table = np.ma.masked_invalid(curves(results, operator, contender))
            if len(table):
                trials = np.arange(1, table.shape[1] + 1)
                axis.plot(trials, table.mean(axis=0), label=contender)
                axis.fill_between(trials, table.min(axis=0), table.max(axis=0), alpha=0.2)
        axis.set(title=operator, xscale="log", yscale="log", xlabel="trials", ylabel="best, ms")
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
