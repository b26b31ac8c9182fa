"""What can be said of kernels for CUDA without a GPU: valid samples, cubins, numbers, and the time it takes.

    python scripts/bench_cuda_static.py [--samples 200] [--emulated 200] [--target cuda] [--arch sm_80]
                                        [--parts valid emulated] [--json FILE]

    valid     random samples of matrix products and convolutions in fp32, f16 and int8, of our rules and of
              TVM's own space: how many keep the device's limits and generate source; of ours, how many
              compile to a cubin without spills; and how long a checked candidate takes (space, source,
              cubin, resources), two at a time. Space and imports count once for each process and workload.
    emulated  samples of our rules over the paper's twelve operators, in sizes that a CPU can emulate, run
              in both orders of threads and compared with the unscheduled function on the CPU

Nothing here is a speed of a GPU. A sample is valid if TVM applies it, if it generates source, and if every
launch keeps the device's threads and shared memory; TVM's own samples have to pass its VerifyGPUCode, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("valid", "emulated")
PROCESSES = 2
LEAST_VALID, LEAST_BUILT, LEAST_RIGHT, MOST_SECONDS = 0.9, 0.8, 1.0, 2.5
TYPES = {"fp32": ("float32", "float32"), "f16": ("float16", "float32"), "int8": ("int8", "int32")}
SHAPES = ("matmul", "conv")
OURS, TVM = "ours", "TVM's"


@dataclass
class Sample:
    """One sample of one space: what became of it. `refused` says why, if it was."""

    workload: str
    space: str
    sketch: str = ""
    valid: bool = False
    refused: str = ""
    registers: int = 0
    shared: int = 0
    occupancy: float = 0.0
    seconds: float = 0.0


# Workloads --------------------------------------------------------------------------------------------


def typed_workload(name: str) -> Any:
    """A matrix product of 1024, or a convolution of 56 x 56 x 64 by 3 x 3, in some types."""
    from tvm import te, topi

    from tpo.workload import Workload

    shape, _, kind = name.partition(" ")
    operand, total = TYPES[kind]
    if shape == "matmul":
        left, right = (te.placeholder((1024, 1024), dtype=operand, name=n) for n in ("left", "right"))
        axis = te.reduce_axis((0, 1024), name="k")
        result = te.compute(
            (1024, 1024),
            lambda i, j: te.sum(left[i, axis].astype(total) * right[axis, j].astype(total), axis=axis),
            name="matmul",
        )
    else:
        left = te.placeholder((1, 56, 56, 64), dtype=operand, name="data")
        right = te.placeholder((3, 3, 64, 64), dtype=operand, name="weight")
        result = topi.nn.conv2d_nhwc(left, right, 1, 1, 1, out_dtype=total)
    return Workload.of(te.create_prim_func([left, right, result], index_dtype_override="int64"))


def small_operators() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The paper's twelve operators in sizes that are emulated in seconds."""
    from tvm.s_tir.meta_schedule.testing import te_workload as paper

    return {
        "C1D": (paper.conv1d_nlc, (1, 32, 16, 32, 3, 1, 1)),
        "C2D": (paper.conv2d_nhwc, (1, 18, 18, 3, 16, 7, 2, 3)),
        "C3D": (paper.conv3d_ndhwc, (1, 4, 10, 10, 3, 16, 7, 2, 3)),
        "DEP": (paper.depthwise_conv2d_nhwc, (1, 14, 14, 32, 3, 1, 1)),
        "DIL": (paper.conv2d_nhwc, (1, 18, 18, 3, 16, 7, 2, 3, 2)),
        "GMM": (paper.batch_matmul_nkkm, (2, 32, 48, 64)),
        "GRP": (paper.conv2d_nhwc, (1, 10, 10, 32, 64, 3, 1, 1, 1, 4)),
        "T2D": (paper.conv2d_transpose_nhwc, (1, 4, 4, 32, 16, 4, 2, 1)),
        "CBR": (paper.conv2d_nhwc_bn_relu, (1, 18, 18, 3, 16, 7, 2, 3)),
        "TBG": (paper.transpose_batch_matmul, (1, 32, 4, 16)),
        "NRM": (paper.norm_bmn, (2, 24, 32)),
        "SFM": (paper.softmax_mn, (24, 96)),
    }


def small_workload(name: str) -> Any:
    """One of them."""
    from tvm import te

    from tpo.workload import Workload

    maker, sizes = small_operators()[name]
    func = te.create_prim_func(list(maker(*sizes)), index_dtype_override="int64")
    return Workload.of(func)


# In worker processes ----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def space_of(kind: str, name: str, target: str, arch: str | None) -> Any:
    """The space of a workload."""
    from tpo.space import build_space
    from tpo.targets import resolve

    workload = typed_workload(name) if kind == "typed" else small_workload(name)
    return build_space(workload, resolve(target, arch=arch))


def sketches_of(space: Any, which: str) -> list[Any]:
    """Those of one of the two spaces."""
    return [sketch for sketch in space.sketches if sketch.name.startswith("tvm/") == (which == TVM)]


def check(name: str, which: str, seed: int, target: str, arch: str | None) -> Sample:
    """Sample, generate source, compile, and read what it takes."""
    from tpo.measure.cuda import CubinError, program_of, resources, resources_of
    from tpo.space.compose import message_of

    space = space_of("typed", name, target, arch)
    gpu = space.target.gpu
    sketches = sketches_of(space, which)
    start = time.perf_counter()
    sketch = sketches[seed % len(sketches)]
    found = Sample(name, which, sketch.name)
    candidate = space.sample(sketch, seed + 1)
    if candidate is None:
        found.refused = "TVM refuses it"
        return found
    try:
        program = program_of(candidate.module, space.target.tvm)
    except Exception as error:  # TVM raises many kinds
        found.refused = message_of(error)
        return found
    for launch in program.launches:
        if launch.threads > gpu.max_threads_per_block or launch.dynamic_shared > gpu.shared_bytes:
            found.refused = "it needs more threads or shared memory than there are"
            return found
    found.valid = True
    if which == OURS and resources.compiler() is not None:
        try:
            taken = resources_of(program, gpu)
        except CubinError as error:
            found.refused = str(error)
        else:
            found.refused = next((said for one in taken if (said := one.refusal(gpu))), "")
            found.registers = max(one.registers for one in taken)
            found.shared = max(one.shared for one in taken)
            found.occupancy = min(one.occupancy for one in taken)
    found.seconds = time.perf_counter() - start
    return found


def emulate(name: str, seed: int, target: str, arch: str | None) -> tuple[str, str, str]:
    """Sample and run on the CPU: the operator, the sketch, and what is wrong ("" if nothing)."""
    from tpo.measure.cuda import program_of
    from tpo.testing import emulation

    space = space_of("small", name, target, arch)
    sketches = sketches_of(space, OURS)
    sketch = sketches[seed % len(sketches)]
    candidate = space.sample(sketch, seed + 1)
    if candidate is None:
        return name, sketch.name, "TVM refuses it"
    try:
        return (
            name,
            sketch.name,
            emulation.difference(space.workload, program_of(candidate.module, space.target.tvm)),
        )
    except Exception as error:  # a candidate may make TVM raise anything
        return name, sketch.name, str(error).strip().splitlines()[-1]


# Tables -----------------------------------------------------------------------------------------------


def main() -> int:
    """Check everything asked for; the exit code says whether the figures were reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=200, help="of every workload and space")
    parser.add_argument("--emulated", type=int, default=200, help="candidates, of all operators together")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--arch")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from tpo.deploy.machine import observe
    from tpo.measure.cuda import resources

    machine = observe()
    print(f"{machine.cpu}, {PROCESSES} processes; other work: {', '.join(machine.busy) or 'none'}")
    print(f"compiler: {resources.compiler() or 'none, source-level checks only'}")
    content: dict[str, Any] = {"machine": asdict(machine)}
    reached = True
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        if "valid" in given.parts:
            samples = list(valid_part(pool, given))
            content["samples"] = [asdict(sample) for sample in samples]
            reached &= show_valid(samples)
        if "emulated" in given.parts:
            found = list(emulated_part(pool, given))
            content["emulated"] = found
            reached &= show_emulated(found)
    if given.json is not None:
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if reached else 1


def valid_part(pool: ProcessPoolExecutor, given: argparse.Namespace) -> Iterator[Sample]:
    """All samples of both spaces."""
    for shape in SHAPES:
        for kind in TYPES:
            name = f"{shape} {kind}"
            for which in (OURS, TVM):
                count = range(given.samples)
                todo = [pool.submit(check, name, which, k, given.target, given.arch) for k in count]
                found = [future.result() for future in todo]
                valid = [sample for sample in found if sample.valid]
                built = [sample for sample in valid if not sample.refused]
                line = f"{name:12} {which:6} valid {len(valid) / len(found):6.1%}"
                if which == OURS:
                    seconds = np.median([sample.seconds for sample in valid]) if valid else np.nan
                    line += f", of these a cubin without spills {len(built) / max(1, len(valid)):6.1%}"
                    line += f", {seconds:.2f} s each (median)"
                print(line, flush=True)
                for why, times in Counter(s.refused for s in found if s.refused).most_common(3):
                    print(f"    {times} times: {why}", file=sys.stderr)
                yield from found


def show_valid(samples: list[Sample]) -> bool:
    """The figures over all workloads."""
    ours, theirs = ([s for s in samples if s.space == which] for which in (OURS, TVM))
    valid = [sample for sample in ours if sample.valid]
    least = min(np.mean([s.valid for s in ours if s.workload == name]) for name in {s.workload for s in ours})
    built = float(np.mean([not sample.refused for sample in valid])) if valid else 0.0
    seconds = float(np.mean([sample.seconds for sample in valid])) if valid else np.inf
    rows = (
        ("valid samples, the workload with the fewest", least, LEAST_VALID, least >= LEAST_VALID),
        ("valid ones with a cubin without spills", built, LEAST_BUILT, built >= LEAST_BUILT),
    )
    print(f"valid samples of TVM's space: {np.mean([s.valid for s in theirs]):.1%}")
    for what, share, goal, is_reached in rows:
        print(f"{what}: {share:.1%} (goal {goal:.0%}{'' if is_reached else ', MISSED'})")
    late = "" if seconds <= MOST_SECONDS else ", MISSED"
    print(
        f"seconds for a checked candidate, {PROCESSES} at a time: {seconds:.2f} (goal {MOST_SECONDS}{late})"
    )
    return all(is_reached for *_, is_reached in rows) and not late


def emulated_part(pool: ProcessPoolExecutor, given: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """All emulated candidates, operator after operator."""
    names = list(small_operators())
    todo = [
        pool.submit(emulate, names[k % len(names)], k // len(names), given.target, given.arch)
        for k in range(given.emulated)
    ]
    for future in todo:
        name, sketch, wrong = future.result()
        if wrong:
            print(f"    {name} {sketch}: {wrong}", file=sys.stderr)
        yield name, sketch, wrong


def show_emulated(found: list[tuple[str, str, str]]) -> bool:
    """How many were right, by operator and in all."""
    counts = Counter(name for name, _, _ in found)
    right = Counter(name for name, _, wrong in found if not wrong)
    print("emulated, right: " + ", ".join(f"{name} {right[name]}/{count}" for name, count in counts.items()))
    share = sum(right.values()) / max(1, len(found))
    missed = "" if share >= LEAST_RIGHT else ", MISSED"
    print(f"emulated results that are right: {share:.1%} of {len(found)} (goal 100%{missed})")
    return not missed


if __name__ == "__main__":
    sys.exit(main())
