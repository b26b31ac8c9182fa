"""From stored trials to what a cost model learns from, and how well it then ranks what it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from tpo import targets
from tpo.cost.contract import CostModel, Dataset, Extractor, Scores
from tpo.cost.simulator import Simulator
from tpo.records import Records
from tpo.records.record import Trial
from tpo.space import Sketch, Space, build_space
from tpo.space.stored import stored_decisions

FEWEST = 8  # trials of a workload that are worth learning an order from

Report = Callable[[str], None]
Describe = Callable[[Space], Extractor]


def dataset(records: Records, report: Report = lambda _: None, describe: Describe = Simulator.of) -> Dataset:
    """Features and times of all trials of a store, described for the target they were measured on."""
    parts = list(_parts(records, report, describe))
    if not parts:
        return Dataset(np.zeros((0, 0), np.float32), np.zeros(0), ())
    return Dataset.join(parts)


def _parts(records: Records, report: Report, describe: Describe) -> Iterator[Dataset]:
    for group in records.groups():
        trials = list(records.trials(group.workload, group.target))
        if len(trials) < FEWEST:
            continue
        space = build_space(records.workload(group.workload), targets.recorded(group.target))
        found = learnable(space, trials, describe)
        report(f"{group.name or group.workload}: {len(found)} of {len(trials)} trials")
        if len(found) >= FEWEST:
            yield found


def learnable(space: Space, trials: list[Trial], describe: Describe = Simulator.of) -> Dataset:
    """Trials of one space whose sketch and decisions are still among it."""
    extractor = describe(space)
    rows: dict[str, list[Any]] = {}
    seconds: dict[str, list[float]] = {}
    for trial in trials:
        sketch = space.sketch(trial.sketch)
        row = None if sketch is None else sketch.domain.row(stored_decisions(trial.trace))
        if row is not None:
            rows.setdefault(trial.sketch, []).append(row)
            seconds.setdefault(trial.sketch, []).append(np.inf if trial.seconds is None else trial.seconds)
    parts = []
    for name, found in rows.items():
        sketch = space.sketch(name)
        assert sketch is not None
        extractor.watch(sketch, np.stack(found))
        features = extractor.features(sketch, np.stack(found))
        group = f"{space.workload.key} {space.target.hardware.cores}"
        parts.append(Dataset(features, np.array(seconds[name]), (group,) * len(found)))
    return Dataset.join(parts) if parts else Dataset(np.zeros((0, 0), np.float32), np.zeros(0), ())


@dataclass(frozen=True)
class Quality:
    """How well a model ranks one group: how fast its first choices are, and how much of the order it knows.

    `top1` and `top5` are the speed of its first choice, and of the best of its first five, beside the best.
    """

    top1: float
    top5: float
    correlation: float

    @classmethod
    def of(cls, scores: Scores, speeds: Scores) -> Quality:
        """Of some scores, beside the speeds that were measured."""
        order = np.argsort(-scores, kind="stable")
        known = (
            stats.spearmanr(scores, speeds).statistic if np.ptp(scores) > 0 and np.ptp(speeds) > 0 else 0.0
        )
        return cls(float(speeds[order[0]]), float(speeds[order[:5]].max()), float(known))

    @classmethod
    def mean(cls, several: list[Quality]) -> Quality:
        """The mean of several groups."""
        return cls(
            *(float(np.mean([getattr(q, name) for q in several])) for name in ("top1", "top5", "correlation"))
        )


def leave_one_out(data: Dataset, make: Callable[[], CostModel | None], seed: int = 0) -> dict[str, Quality]:
    """For every group, how a model ranks it that was trained on all others; None ranks at random."""
    rng = np.random.default_rng(seed)
    groups = np.asarray(data.groups)
    found = {}
    for name in dict.fromkeys(data.groups):
        held = groups == name
        model = make()
        speeds = data[held].speeds
        if model is None:
            drawn = [Quality.of(rng.random(len(speeds)), speeds) for _ in range(20)]
            found[name] = Quality.mean(drawn)
            continue
        # Groups of one workload on other numbers of threads are no stranger to it: they are left out, too.
        same = np.array([other.split()[0] == name.split()[0] for other in data.groups])
        model.fit(data[~same])
        found[name] = Quality.of(model.predict(data[held].features).score, speeds)
    return found


def influence(
    model: CostModel, space: Space, sketch: Sketch, rows: int = 2000, seed: int = 0
) -> dict[str, float]:
    """How much of the spread of a model's scores each site of a sketch explains by itself, most first."""
    drawn = sketch.domain.draw(rows, np.random.default_rng(seed))
    simulator = Simulator.of(space)
    simulator.watch(sketch, drawn)
    scores = model.predict(simulator.features(sketch, drawn)).score
    total = float(scores.var()) or 1.0
    found = {}
    for site, column in zip(sketch.sites, drawn.T, strict=True):
        _, of = np.unique(column, return_inverse=True)
        counts = np.bincount(of)
        means = np.bincount(of, scores) / counts
        found[site.name] = float((counts * (means - scores.mean()) ** 2).sum() / len(scores) / total)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
