"""Measure every candidate of some sketches of a few workloads: landscapes for `tpo simulate`.

    python scripts/record_landscapes.py [--output FOLDER] [--threads 2] [--most 300] [--only TEXT]

Small sketches are measured whole; of larger ones, candidates spread evenly share what `--most` leaves, and
are then all there is. Without --output, the landscapes tpo comes with are replaced. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tpo.cost.features import NAMES
from tpo.search.landscape import SHIPPED, Landscape, RecordedSketch

WORKLOADS = ("GMM", "GRP", "NRM")


def main() -> int:
    """Record all that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=SHIPPED)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=int, default=300, help="candidates of one workload")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    given = parser.parse_args()
    from tpo import targets
    from tpo.deploy.machine import observe
    from tpo.measure import LocalRunner, MeasureOptions

    machine = observe()
    print(f"{machine.cpu}, {machine.cores} cores; other work: {', '.join(machine.busy) or 'none'}")
    target = targets.resolve("native", given.threads)
    given.output.mkdir(parents=True, exist_ok=True)
    with LocalRunner(target.tvm, MeasureOptions(given.threads, hopeless=20.0)) as runner:
        for name in WORKLOADS:
            if given.only in name:
                record(name, target, runner, given, str(machine.cpu))
    return 0


def record(name: str, target: Any, runner: Any, given: argparse.Namespace, cpu: str) -> None:
    """Measure one workload and write its file."""
    from tpo.cost.simulator import Simulator
    from tpo.measure import BuildInput
    from tpo.space import build_space
    from tpo.testing.operators import workload

    space = build_space(workload(name), target)
    simulator = Simulator.of(space)
    sketches = []
    for sketch, rows in chosen(space, given.most):
        made = [space.at(sketch, row) for row in rows]
        kept = [k for k, candidate in enumerate(made) if candidate is not None]
        inputs = [BuildInput(space.workload, found.module) for found in made if found is not None]
        seconds = np.full(len(kept), np.inf)
        for position, found in runner.measure(inputs):
            seconds[position] = np.inf if found.seconds is None else found.seconds
        simulator.watch(sketch, rows[kept])
        features = simulator.features(sketch, rows[kept])
        preferred = sketch.preferred_row
        sketches.append(RecordedSketch(sketch.name, sketch.sites, rows[kept], seconds, features, preferred))
        print(f"{name}: {sketch.name}, {np.isfinite(seconds).sum()} of {len(kept)}", flush=True)
    about = {"name": name, "key": space.workload.key, "cpu": cpu, "threads": given.threads}
    about |= {"features": list(NAMES), "recorded": time.strftime("%Y-%m-%d")}
    landscape = Landscape(about, tuple(sketches))
    landscape.save(given.output / f"{name}.db")
    print(f"{name}: {len(landscape)} candidates, the best takes {1e3 * landscape.best:.3f} ms")


def chosen(space: Any, most: int) -> list[tuple[Any, Any]]:
    """Sketches with the rows to measure: what is preferred, and others spread over all decisions."""
    found: list[tuple[Any, Any]] = []
    smallest_first = sorted(space.sketches, key=lambda sketch: sketch.domain.support)
    for left, sketch in zip(range(len(smallest_first), 0, -1), smallest_first, strict=True):
        share, domain = (most - sum(len(rows) for _, rows in found)) // left, sketch.domain
        rows = domain.every() if domain.support <= share else domain.spread(share, np.random.default_rng(0))
        found.append((sketch, np.unique(np.concatenate([sketch.preferred_row, rows]), axis=0)))
    order = {sketch.name: k for k, sketch in enumerate(space.sketches)}
    return sorted(found, key=lambda pair: order[pair[0].name])


if __name__ == "__main__":
    sys.exit(main())
