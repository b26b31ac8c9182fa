"""How long it takes to generate MetaSchedule's space: our rules in Python, TVM's in C++, in turns.

    python scripts/bench_space.py [--rounds 5] [--json FILE]

For each of the paper's twelve operators, on a CPU and on a GPU, both make all sketches; the median of the
rounds counts. The goal is at most three times TVM's time, in the geometric mean.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

MOST = 3.0
OPERATORS = ("C1D", "C2D", "C3D", "DEP", "DIL", "GMM", "GRP", "T2D", "CBR", "TBG", "NRM", "SFM")


def main() -> int:
    """Measure all operators; the exit code says whether the goal was reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from tpo.deploy.machine import observe

    before = observe()
    rows = [measure(operator, kind, given.rounds) for kind in ("cpu", "cuda") for operator in OPERATORS]
    warnings = [*before.warnings, *observe().warnings]
    for row in rows:
        print(
            f"{row['kind']:5}{row['operator']:5}{row['sketches']:3} sketches  "
            f"tpo {row['ours'] * 1e3:6.1f} ms  "
            f"TVM {row['theirs'] * 1e3:6.1f} ms  {row['ratio']:.2f}"
        )
    ratios = [row["ratio"] for row in rows]
    mean = math.exp(statistics.mean(math.log(ratio) for ratio in ratios))
    print(f"{before.cpu}: geometric mean {mean:.2f}, largest {max(ratios):.2f}", *warnings, sep="\n  ")
    over = [row for row in rows if row["ratio"] > MOST]
    verdict = "reached" if mean <= MOST else "not reached"
    print(f"at most {MOST:g} times as long as TVM, in the geometric mean: {verdict}")
    print(f"{len(over)} of {len(rows)} spaces take longer than that")
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "warnings": warnings}, indent=2) + "\n")
    return int(mean > MOST)


def measure(operator: str, kind: str, rounds: int) -> dict[str, Any]:
    """Both sides' seconds for one operator, in turns."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.testing import te_workload

    from tpo.hardware import Gpu, Hardware
    from tpo.lang.library import metaschedule_rules
    from tpo.space.compose import compose
    from tpo.space.tvm_rules import LeanContext

    function, sizes = te_workload.CONFIGS[operator]
    module = tvm.IRModule({"main": te.create_prim_func(function(*sizes[0]))})
    if kind == "cuda":
        target = tvm.target.Target("nvidia/geforce-rtx-3070")
        hw: Any = Gpu.from_target(target)
    else:
        target = tvm.target.Target({"kind": "llvm", "num-cores": 16, "mcpu": "skylake-avx512"})
        hw = Hardware.from_target(target)
    rules = ms.schedule_rule.ScheduleRule.create("cuda" if kind == "cuda" else "llvm")
    cxx = [rule for rule in rules if not isinstance(rule, ms.schedule_rule.ApplyCustomRule)]
    generator = ms.space_generator.PostOrderApply(sch_rules=cxx, postprocs=[], mutator_probs={})
    context = LeanContext(module, target, generator, threads=1)
    ours: list[float] = []
    theirs: list[float] = []
    drafts: list[Any] = []
    for _ in range(rounds + 1):  # the first round warms up
        start = time.perf_counter()
        drafts = compose(module, metaschedule_rules(kind), hw, lambda problem: sys.exit(str(problem)))
        middle = time.perf_counter()
        context.generate_design_space()
        ours.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    own, tvms = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return {
        "operator": operator,
        "kind": kind,
        "sketches": len(drafts),
        "ours": own,
        "theirs": tvms,
        "ratio": own / tvms,
    }


if __name__ == "__main__":
    sys.exit(main())
