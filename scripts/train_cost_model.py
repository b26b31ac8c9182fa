"""Measure many workloads, and train on them the cost model that tpo comes with.

    python scripts/train_cost_model.py collect --db cost.db [--target native] [--threads 2] [--each 96]
                                               [--minutes 30]
    python scripts/train_cost_model.py train --db cost.db [-o src/tpo/cost/pretrained.zip] [--json FILE]

`collect` measures candidates of the workloads of `tpo.testing.operators.training_workloads` and of the
operators of `scripts/bench_kernels.py`: what each sketch prefers, and others spread evenly over its
decisions, half of them of our rules. It goes on where it was stopped. None of the twelve operators
that searches are compared on is among them. `train` prints how well models rank each workload that were
trained on all others, then trains on everything. "stores" is MetaSchedule's way: speeds predicted from
PerStoreFeature, for which every program is made again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

BETWEEN_MB = 16.0  # what the rest of a model touches between two calls
OURS = 1 / 2  # share of candidates of our rules
ENOUGH = 0.6  # share of the candidates wanted, with which a workload counts as done


def main() -> int:
    """Collect, or train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["collect", "train"])
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--target", default="native", help="one whose code this machine can run")
    parser.add_argument("--each", type=int, default=96, help="candidates of a workload")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("src/tpo/cost/pretrained.zip"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    return collect(given) if given.what == "collect" else train(given)


def workloads() -> Iterator[tuple[str, Any]]:
    """Names and workloads, no workload twice."""
    from tpo.testing.kernels import imported, operators
    from tpo.testing.operators import training_workloads
    from tpo.workload import Workload

    seen: set[str] = set()
    for name, workload in training_workloads():
        if workload.key not in seen:
            seen.add(workload.key)
            yield name, workload
    for operator in (item for group in operators().values() for item in group):
        workload = Workload.of(imported(operator).func)
        if workload.key not in seen:
            seen.add(workload.key)
            yield operator.name, workload


def collect(given: argparse.Namespace) -> int:
    """Measure, workload after workload, until all are done or the time is up."""
    from tpo import targets
    from tpo.deploy.machine import observe
    from tpo.measure import BuildInput, LocalRunner, MeasureOptions
    from tpo.records import Records, RunInfo, target_key
    from tpo.space import build_space

    end = time.monotonic() + 60 * given.minutes
    print(f"other work: {', '.join(observe().busy) or 'none'}")
    target = targets.resolve(given.target, given.threads)
    key = target_key(target.tvm)
    options = MeasureOptions(given.threads, between_mb=BETWEEN_MB, hopeless=8.0, confidence=0.05)
    with Records.open(given.db) as records, LocalRunner(target.tvm, options) as runner:
        run = records.begin_run(RunInfo("training", "", "", key, given.threads, given.seed))
        for name, workload in workloads():
            known = records.known(workload.key, key)
            if len(known) >= ENOUGH * given.each:
                continue
            if time.monotonic() > end:
                print("time is up; go on with the same command")
                break
            start = time.monotonic()
            records.add_workload(workload, name)
            chosen = candidates(build_space(workload, target), given.each, given.seed, known)
            ok = 0
            for position, found in runner.measure([BuildInput(workload, c.module) for c in chosen]):
                records.add(run, workload.key, key, chosen[position], found)
                ok += found.ok
            print(f"{name}: {ok} of {len(chosen)} ok, {time.monotonic() - start:.0f} s", flush=True)
        records.end_run(run, "done")
    return 0


def candidates(space: Any, count: int, seed: int, known: set[str]) -> list[Any]:
    """What sketches prefer, and rows spread over them; only new programs."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    groups = [
        ([s for s in space.sketches if not s.name.startswith("tvm/")], OURS),
        ([s for s in space.sketches if s.name.startswith("tvm/")], 1 - OURS),
    ]
    for sketches, share in groups:
        for sketch in sketches:
            each = max(2, round(count * share / len(sketches)))
            rows = np.concatenate([sketch.preferred_row, sketch.domain.spread(each, rng)])[:each]
            made = (space.at(sketch, row) for row in rows)
            found.update({c.key: c for c in made if c is not None and c.key not in known})
    return list(found.values())[: round(1.2 * count)]


def train(given: argparse.Namespace) -> int:
    """Judge by leaving workloads out, then train on all of them."""
    from tpo.cost.contract import CostModel
    from tpo.cost.ranking import RankingModel
    from tpo.cost.regression import RegressionModel
    from tpo.cost.stores import StoreFeatures
    from tpo.cost.training import Quality, dataset, leave_one_out
    from tpo.records import Records

    with Records.open(given.db, create=False, readonly=True) as records:
        data = dataset(records, lambda line: print(line, file=sys.stderr))
        stores = dataset(records, describe=StoreFeatures)
    groups = len(set(data.groups))
    print(f"{len(data)} trials of {groups} workloads")
    judged: dict[str, tuple[Any, Any]] = {
        "random": (data, lambda: None),
        "stores": (stores, RegressionModel),
        "regression": (data, RegressionModel),
        "ranking": (data, RankingModel),
    }
    table: dict[str, Any] = {}
    print(f"{'model':12} {'top-1':>7} {'top-5':>7} {'correlation':>12}")
    for name, (learnt, make) in judged.items():
        found: dict[str, Quality] = leave_one_out(learnt, make)
        mean = Quality.mean(list(found.values()))
        table[name] = {"mean": asdict(mean), "groups": {g: asdict(q) for g, q in found.items()}}
        print(f"{name:12} {mean.top1:7.3f} {mean.top5:7.3f} {mean.correlation:12.3f}", flush=True)
    model: CostModel = RankingModel()
    model.fit(data)
    assert isinstance(model, RankingModel)
    means = {name: found["mean"] for name, found in table.items()}
    model.about = {"trials": len(data), "workloads": groups, "left out": means}
    model.save(given.output)
    print(f"{given.output}: {given.output.stat().st_size / 1e6:.2f} MB")
    if given.json:
        given.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
