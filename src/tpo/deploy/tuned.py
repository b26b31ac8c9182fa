"""Tuned schedules out of a store: the best of each function, replayed and checked before it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from tpo.measure import BuildInput, LocalRunner, MeasureOptions
from tpo.records import Records, Trial, target_key
from tpo.records.record import CYCLES
from tpo.records.replay import replay
from tpo.targets import Target
from tpo.workload import Workload, in_place_of

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """Scheduled functions by name, the sketch each comes from, and what was not used and why."""

    functions: dict[str, Any] = field(default_factory=dict)
    sketches: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def tuned_functions(module: Any, records: Records, target: Target, threads: int, progress: Progress) -> Tuned:
    """The best recorded schedule of every function of a module that has one.

    A schedule is used only if its record was made for this target by this version of TVM, for exactly
    this function, and if it computes what the unscheduled function does.
    """
    # What a board has measured is worth more than what was modelled.
    keys = [target_key(target.tvm), *([target_key(target.tvm, CYCLES)] if target.standalone else [])]
    candidates: dict[str, tuple[Trial, BuildInput]] = {}
    notes: list[str] = []
    elsewhere: Counter[str] = Counter()
    for var in module.get_global_vars():
        func = module[var]
        if not isinstance(func, tirx.PrimFunc):
            continue
        workload = Workload.of(func)
        best = next((found for key in keys if (found := records.best(workload.key, key)) is not None), None)
        if best is None:
            elsewhere.update(records.others(workload.key, keys[-1]))
        elif not records.workload(workload.key).same_as(workload):
            notes.append(f"{var.name_hint}: the stored function of that name is another one; not applied")
        else:
            start = func if best.program is None else in_place_of(func, records.start(best).func)
            scheduled = _replay(start, best, notes, var.name_hint)
            if scheduled is not None:
                candidates[var.name_hint] = (best, BuildInput(workload, scheduled))
    notes += [f"not applied: {reason}" for reason in elsewhere]
    refused = _check(candidates, target, threads, progress) if target.native else {}
    if candidates and not target.native:
        notes.append("tuned schedules for another machine were not checked here")
    notes += [f"{name}: record {candidates[name][0].id} refused: {why}" for name, why in refused.items()]
    used = {name: found for name, found in candidates.items() if name not in refused}
    return Tuned(
        functions={name: found.module["main"] for name, (_, found) in used.items()},
        sketches={name: trial.sketch for name, (trial, _) in used.items()},
        notes=tuple(notes),
    )


def _replay(func: Any, trial: Trial, notes: list[str], name: str) -> Any | None:
    try:
        # The function itself, and not the workload it is equal to: its attributes are kept.
        return replay(Workload(tvm.IRModule({"main": func})), trial.trace).mod
    except Exception as error:  # TVM's schedule primitives raise many kinds of errors
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        notes.append(f"{name}: record {trial.id} cannot be replayed: {why}")
        return None


def _check(
    candidates: dict[str, tuple[Trial, BuildInput]], target: Target, threads: int, progress: Progress
) -> dict[str, str]:
    """Run every tuned function beside the unscheduled one, in a process that may die of it."""
    if not candidates:
        return {}
    progress(f"checking {len(candidates)} tuned functions")
    names = list(candidates)
    with LocalRunner(target.tvm, MeasureOptions(threads)) as runner:
        # Each counts as hopeless from the start: the numbers matter here, and not the time.
        hurry = {found.workload.key: 0.0 for _, found in candidates.values()}
        found = runner.measure([candidates[name][1] for name in names], hurry)
        return {names[k]: f"{m.failure}: {m.message}" for k, m in found if not m.ok}
