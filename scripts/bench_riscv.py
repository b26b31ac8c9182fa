"""Kernels and models for RISC-V beside what compilers make of them, in modelled cycles.

    python scripts/bench_riscv.py [--vlens 256 1024] [--trials 64] [--seed 0] [--gcc COMMAND]
                                  [--operators PART ...] [--models NAME ...] [--json FILE]

For every operator (`tpo.testing.riscv`) and vector length, all run in QEMU and counted by the same plugin,
with the same weights (`configs/riscv/cycles.toml`), on the same inputs:

    gcc     plain C, `-O3 -ffast-math` (GCC 14 or newer: older ones find no vectors), in the better of two
            settings: vectors of one register, and of as many as GCC likes
    llvm    the unscheduled program and the same with its reduction outside the innermost loop, whichever is
            faster, compiled by TVM's LLVM
    tvm     TVM's own evolutionary search in TVM's sketches, so many trials
    tpo     the default schedule, and the best of so many trials

Everything is compared with numpy before it counts: a result that is wrong ends the benchmark. Ratios are
cycles of the other divided by tpo's (above 1: ours is faster), geometric means over operators. Counts do not
depend on what else runs; only the candidates per second do, and they are marked if something else ran.

Whole models are compiled twice, by default schedules and without any (LLVM alone), and compared with ONNX
Runtime.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOALS = (("gcc", 1.46), ("llvm", 1.35), ("tvm", 1.3))
LEAST_RATE = 4.0
GCC_SETTINGS = ("-mrvv-max-lmul=m1", "-mrvv-max-lmul=dynamic")
OLDEST_GCC = 14
# Models, with the sizes of what is dynamic in them.
MODELS: dict[str, dict[str, tuple[int, ...]]] = {
    "light_squeezenet": {},
    "quantised_qlinear": {},
    "bert": {"input_ids": (1, 16), "attention_mask": (1, 16)},
}


@dataclass
class Row:
    """One operator at one vector length: modelled cycles by contender."""

    operator: str
    group: str
    vlen: int
    cycles: dict[str, float] = field(default_factory=dict)
    sketches: dict[str, int] = field(default_factory=dict)  # how often tpo has measured each
    best: str = ""
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0  # of building, running and checking tpo's trials
    warnings: list[str] = field(default_factory=list)


@dataclass
class ModelRow:
    """A whole model, by default schedules and by LLVM alone."""

    model: str
    vlen: int
    cycles: float
    unscheduled: float
    error: float
    code: int
    constants: int
    workspace: int


def main() -> int:
    """Measure everything asked for; the exit code says whether the figures were reached."""
    from tpo.deploy.machine import observe
    from tpo.testing import riscv

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vlens", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gcc", help="a GCC for RISC-V, 14 or newer (default: the newest installed)")
    parser.add_argument("--operators", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    gcc = given.gcc or newest_gcc()
    print(f"other work: {', '.join(observe().busy) or 'none'}; GCC: {version_of(gcc) if gcc else 'none'}")
    rows, models = [], []
    for vlen in given.vlens:
        print(
            f"\nVLEN {vlen}\n{'operator':34}"
            + "".join(f"{name:>10}" for name in ("gcc", "llvm", "tvm", "default", "tpo"))
        )
        for operator in (o for o in riscv.operators() if any(part in o.name for part in given.operators)):
            row = compared(operator, vlen, gcc, given.trials, given.seed)
            rows.append(row)
            print(line(row), flush=True)
        for name in given.models:
            models.append(whole(name, vlen))
            print(model_line(models[-1]), flush=True)
        if given.json:
            content = {"rows": [asdict(row) for row in rows], "models": [asdict(m) for m in models]}
            given.json.write_text(json.dumps(content, indent=1) + "\n")
    return judge(rows)


def newest_gcc() -> str | None:
    """The newest cross compiler that is installed, if it finds vectors."""
    names = [f"riscv64-linux-gnu-gcc{suffix}" for suffix in ("-17", "-16", "-15", "-14", "")]
    found = [name for name in names if shutil.which(name)]
    return next((name for name in found if major_of(version_of(name)) >= OLDEST_GCC), None)


def version_of(gcc: str) -> str:
    """What a compiler says of itself."""
    done = subprocess.run([gcc, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["unknown"])[0]


def major_of(version: str) -> int:
    """The first number of the last word."""
    number = version.split()[-1].split(".")[0]
    return int(number) if number.isdigit() else 0


# Operators --------------------------------------------------------------------------------------------


def compared(operator: Any, vlen: int, gcc: str | None, trials: int, seed: int) -> Row:
    """All contenders on one operator."""
    from tpo import targets
    from tpo.deploy.machine import observe
    from tpo.measure.cross.places import Qemu
    from tpo.measure.cross.runner import CrossRunner

    row = Row(operator.name, operator.group, vlen, warnings=list(observe().warnings))
    target, place = targets.resolve("riscv", vlen=vlen), Qemu(vlen)
    if gcc:
        row.cycles["gcc"] = min(by_gcc(operator, gcc, flag, place) for flag in GCC_SETTINGS)
    with CrossRunner(target.tvm, place) as runner:
        row.cycles["llvm"] = by_llvm(operator, runner)
        row.cycles["tvm"] = by_tvm(operator, target, runner, trials, seed)
        by_tpo(operator, target, runner, trials, seed, row)
    row.warnings += [text for text in observe().warnings if text not in row.warnings]
    return row


def by_gcc(operator: Any, gcc: str, setting: str, place: Any) -> float:
    """What GCC makes of the operator in C."""
    from tpo.measure import data
    from tpo.measure.cross import cycles, files, toolchain

    with tempfile.TemporaryDirectory(prefix="tpo-gcc-") as name:
        folder = Path(name)
        (folder / "kernel.c").write_text(operator.source)
        options = ["-O3", "-ffast-math", "-fPIC", f"-march=rv64gcv_zvl{place.vlen}b", "-mabi=lp64d", setting]
        compiled = folder / "kernel.o"
        subprocess.run([gcc, *options, "-c", str(folder / "kernel.c"), "-o", str(compiled)], check=True)
        linker = [
            toolchain.tool(toolchain.LINKER),
            "-shared",
            "-o",
            str(folder / files.LIBRARY),
            str(compiled),
        ]
        subprocess.run(linker, check=True)
        rng = np.random.default_rng(0)
        left, right = (data.random_array(shape, operator.dtype, rng) for shape in operator.shapes[:2])
        result = np.full(operator.shapes[2], 77, operator.result)
        files.write_arguments(folder / files.ARGUMENTS, [left, right, result])
        ran = place.run(folder, 1, 120.0, 2**30)
        if ran.failure is not None:
            raise RuntimeError(f"{operator.name} by GCC: {ran.message}")
        content = files.read_results(folder / files.RESULTS, folder / files.ARGUMENTS)[2]
        made = np.frombuffer(content, operator.result).reshape(operator.shapes[2])
        _, wrong = data.difference(made, operator.reference(left, right).astype(operator.result))
        if wrong:
            raise RuntimeError(f"{operator.name} by GCC: {wrong}")
        return cycles.load().cycles(ran.counters)


def by_llvm(operator: Any, runner: Any) -> float:
    """The better of two programs that nobody has scheduled, or only reordered."""
    from tpo.measure import BuildInput

    workload = operator.workload
    found = dict(runner.measure([BuildInput(workload, m) for m in (workload.module, reordered(workload))]))
    return min(seconds_of(found[k], operator.name) for k in found)


def reordered(workload: Any) -> Any:
    """The program with its innermost loop along the result's memory."""
    from tpo.lang import analysis
    from tpo.workload import schedule_of

    sch = schedule_of(workload.module)
    (block,) = analysis.blocks(sch)
    count = analysis.reduction_count(sch, block)
    *outer, last = sch.get_loops(block)[:-count]
    reduction = sch.get_loops(block)[-count:]
    sch.reorder(*outer, *reduction, last)
    sch.decompose_reduction(block, reduction[0])
    return sch.mod


def by_tvm(operator: Any, target: Any, runner: Any, trials: int, seed: int) -> float:
    """TVM's search in TVM's sketches."""
    from tpo.search.tvm_search import TvmEvolutionary
    from tpo.space import build_space

    space = build_space(operator.workload, target)
    found = searched(TvmEvolutionary(space, np.random.default_rng(seed)), space, runner, trials)
    return float(min(measured.seconds for _, measured in found if measured.ok))


def by_tpo(operator: Any, target: Any, runner: Any, trials: int, seed: int, row: Row) -> None:
    """Tpo's search in all of its space."""
    from tpo.cost.online import OnlineModel
    from tpo.cost.pretrained import pretrained_model
    from tpo.cost.ranking import RankingModel
    from tpo.measure import BuildInput
    from tpo.search import Evolve
    from tpo.space import build_space

    space = build_space(operator.workload, target)
    default = dict(runner.measure([BuildInput(operator.workload, space.default().module)]))[0]
    row.cycles["default"] = seconds_of(default, operator.name)
    model = OnlineModel(RankingModel(pretrained_model(), 1, seed))
    start = time.perf_counter()
    found = searched(Evolve(space, model, np.random.default_rng(seed)), space, runner, trials)
    row.seconds = time.perf_counter() - start
    row.trials, row.failed = len(found), sum(not measured.ok for _, measured in found)
    for candidate, _ in found:
        row.sketches[candidate.sketch] = row.sketches.get(candidate.sketch, 0) + 1
    best, measured = min((pair for pair in found if pair[1].ok), key=lambda pair: pair[1].seconds)
    row.cycles["tpo"], row.best = measured.seconds, best.sketch


def searched(strategy: Any, space: Any, runner: Any, trials: int, batch: int = 16) -> list[tuple[Any, Any]]:
    """Candidates and what was measured, until trials or candidates run out."""
    from tpo.measure import BuildInput

    found: list[tuple[Any, Any]] = []
    known: set[str] = set()
    while len(found) < trials:
        proposed = strategy.propose(min(batch, trials - len(found)), known)
        if not proposed:
            break
        measured = dict(runner.measure([BuildInput(space.workload, c.module) for c in proposed]))
        pairs = [(candidate, measured[k]) for k, candidate in enumerate(proposed)]
        strategy.observe(pairs)
        known.update(candidate.key for candidate in proposed)
        found += pairs
    wrong = [m.message for _, m in found if str(m.failure) == "wrong-result"]
    if wrong:
        raise RuntimeError(f"a candidate is wrong: {wrong[0]}")
    return found


def seconds_of(measured: Any, name: str) -> float:
    """Its modelled cycles; what did not work ends the benchmark."""
    if not measured.ok:
        raise RuntimeError(f"{name}: {measured.failure}: {measured.message}")
    return float(measured.seconds)


# Models -----------------------------------------------------------------------------------------------


def whole(name: str, vlen: int) -> ModelRow:
    """A model by default schedules, compared with ONNX Runtime, and by LLVM alone."""
    import onnx

    import tpo
    from tpo import targets
    from tpo.deploy.compile import compile_model
    from tpo.testing import models

    with tempfile.TemporaryDirectory(prefix="tpo-model-") as folder:
        file, library = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.so"
        onnx.save(models.make(name, 0), str(file))
        model, target = tpo.load_onnx(file, MODELS[name]), targets.resolve("riscv", vlen=vlen)
        manifest = compile_model(model, library, target)
        counted = emulated_cycles(library, manifest, model)
        compile_model(model, library, target, verify=False, schedule=False)
        from tpo.deploy import manifest as manifests

        plain = emulated_cycles(library, manifests.read(library), model)
    assert manifest.memory is not None and manifest.numeric_check is not None
    memory = manifest.memory
    error = manifest.numeric_check.max_rel_error
    return ModelRow(name, vlen, counted, plain, error, memory.code, memory.constants, memory.workspace)


def emulated_cycles(library: Path, manifest: Any, model: Any) -> float:
    """Of one run of a whole model."""
    from tpo.deploy.reference import random_inputs
    from tpo.deploy.standalone.emulated import Emulated
    from tpo.measure.cross import cycles

    artifact = Emulated(library, manifest)
    artifact.run(random_inputs(artifact.inputs, 0, {}))
    return cycles.load().cycles(artifact.ran.counters)


# Tables -----------------------------------------------------------------------------------------------


def line(row: Row) -> str:
    """A row of the table, in thousands of cycles."""
    numbers = [row.cycles.get(name, math.nan) / 1e3 for name in ("gcc", "llvm", "tvm", "default", "tpo")]
    groups = sorted({sketch.split("lmul=")[1][0] for sketch in row.sketches if "lmul=" in sketch})
    return (
        f"{row.operator:34}"
        + "".join(f"{number:10.1f}" for number in numbers)
        + f"  kcycles; {row.trials / row.seconds:.1f}/s, {row.failed} failed, LMUL {','.join(groups)}; "
        + row.best
        + (f"  BUSY: {'; '.join(row.warnings)}" if row.warnings else "")
    )


def model_line(row: ModelRow) -> str:
    """A whole model."""
    return (
        f"{row.model}: {row.cycles / 1e6:.2f} million cycles, LLVM alone {row.unscheduled / 1e6:.2f} "
        f"({row.unscheduled / row.cycles:.2f} times as many), error {row.error:.1g}, "
        f"code {row.code / 1e3:.0f} kB, weights {row.constants / 1e3:.0f} kB, "
        f"workspace {row.workspace / 1e3:.0f} kB"
    )


def judge(rows: Sequence[Row]) -> int:
    """What the goals ask, for every vector length and for all."""
    reached = []
    print()
    for other, goal in GOALS:
        for vlen in (*sorted({row.vlen for row in rows}), None):
            chosen = [row for row in rows if other in row.cycles and vlen in (row.vlen, None)]
            if not chosen:
                continue
            ratio = geometric([row.cycles[other] / row.cycles["tpo"] for row in chosen])
            title = "all" if vlen is None else f"VLEN {vlen}"
            print(f"against {other}, {title}, {len(chosen)} operators: {ratio:.2f}; goal {goal}")
            if vlen is None:
                reached.append(ratio >= goal)
    quiet = [row for row in rows if not row.warnings]
    if quiet:
        rate = sum(row.trials for row in quiet) / sum(row.seconds for row in quiet)
        print(f"candidates built, run and verified: {rate:.1f} per second; goal {LEAST_RATE}")
        reached.append(rate >= LEAST_RATE)
    return 0 if all(reached) else 1


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


if __name__ == "__main__":
    sys.exit(main())
