"""How `tpo db` prints runs, workloads and trials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from tpo.cli import output
from tpo.cli.units import MILLISECONDS, unit_called
from tpo.records.record import SECONDS, target_title, unit_of

if TYPE_CHECKING:
    from tpo.records.record import Group, Run, Trial, TrialCounts, WorkloadRow

NO_NAME = "(no name)"


def print_runs(runs: Sequence[tuple[Run, TrialCounts]]) -> None:
    """One line for each run."""
    columns = ("run", "model", "status", "started", "threads", "seed", "trials", "ok", "failed", "machine")
    rows = [
        (
            run.id,
            run.info.model_name,
            run.status,
            f"{run.created:%Y-%m-%d %H:%M} UTC",
            run.info.threads,
            run.info.seed,
            counts.total,
            counts.ok,
            failures(counts),
            run.info.machine.get("cpu", ""),
        )
        for run, counts in runs
    ]
    output.print_table(columns, rows, right=("threads", "seed", "trials", "ok"))


def print_targets(groups: Sequence[Group], version: str) -> None:
    """What trials are for, and whether the installed TVM, `version`, may use them."""
    totals: dict[tuple[str, str], int] = {}
    for group in groups:
        place = (group.target, group.tvm)
        totals[place] = totals.get(place, 0) + group.counts.total
    rows = [
        (target_title(target), tvm, total, "yes" if tvm == version else f"no: TVM {version} is installed")
        for (target, tvm), total in totals.items()
    ]
    output.print_table(("target", "TVM", "trials", "used"), rows, right=("trials",))


def print_workloads(groups: Sequence[Group]) -> None:
    """One line for each workload, target and TVM version."""
    shown = _Shown(group.target for group in groups)
    columns = ("workload", "key", "target", "TVM", "trials", "ok", "failed", shown.title("best"))
    rows = [
        (
            group.name or NO_NAME,
            group.workload,
            target_title(group.target),
            group.tvm,
            group.counts.total,
            group.counts.ok,
            failures(group.counts),
            shown(group.best, group.target),
        )
        for group in groups
    ]
    _print_varying(columns, rows, right=("trials", "ok", columns[-1]))


def print_trials(row: WorkloadRow, trials: Sequence[Trial]) -> None:
    """The trials of one workload under its name."""
    counts = f"{row.counts.total} trials, {row.counts.ok} ok, failed: {failures(row.counts)}"
    typer.echo(f"{row.name or NO_NAME} {row.key}: {counts}")
    shown = _Shown(trial.target for trial in trials)
    columns = ("trial", shown.title(), "measured", "target", "TVM", "sketch", "candidate", "run", "message")
    rows = [
        (
            trial.id,
            shown(trial.seconds, trial.target),
            evidence(trial),
            target_title(trial.target),
            trial.tvm,
            trial.sketch,
            trial.candidate,
            trial.run,
            trial.message,
        )
        for trial in trials
    ]
    _print_varying(columns, rows, right=("trial", columns[1]))


def print_best(leaders: Sequence[tuple[WorkloadRow, Trial]]) -> None:
    """One line for each best trial."""
    shown = _Shown(trial.target for _, trial in leaders)
    columns = ("workload", "key", "target", shown.title(), "GFLOP/s", "measured", "trial", "sketch")
    rows = [
        (
            row.name or NO_NAME,
            row.key,
            target_title(trial.target),
            shown(trial.seconds, trial.target),
            _gflops(row, trial),
            evidence(trial),
            trial.id,
            trial.sketch,
        )
        for row, trial in leaders
    ]
    _print_varying(columns, rows, right=(columns[3], "GFLOP/s", "trial"))


def _print_varying(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str]) -> None:
    """A table without the columns for target and TVM where all rows agree in them."""
    shown = [
        place
        for place, column in enumerate(columns)
        if column not in ("target", "TVM") or len({row[place] for row in rows}) > 1
    ]
    output.print_table(
        [columns[place] for place in shown], [[row[place] for place in shown] for row in rows], right
    )


class _Shown:
    """How measurements of some targets are shown in one column: by one unit in its title, or each by its own.

    >>> plain, mixed = _Shown(["{}"]), _Shown(["{}", '{"measured-in": "cycles"}'])
    >>> plain.title("best"), plain(0.00123456, "{}"), plain(None, "{}")
    ('best ms', '1.235', '')
    >>> mixed.title("best"), mixed(5e6, '{"measured-in": "cycles"}'), mixed(0.001, "{}")
    ('best', '5000 kcycles', '1 ms')
    """

    def __init__(self, targets: Iterable[str]) -> None:
        units = {unit_called(unit_of(target)) for target in targets} or {MILLISECONDS}
        self._common = units.pop() if len(units) == 1 else None

    def title(self, what: str = "") -> str:
        label = self._common.label if self._common else "" if what else "measured as"
        return f"{what} {label}".strip()

    def __call__(self, value: float | None, target: str) -> str:
        if value is None:
            return ""
        unit = unit_called(unit_of(target))
        return f"{value * unit.scale:.4g}" + ("" if self._common else f" {unit.label}")


def _gflops(row: WorkloadRow, trial: Trial) -> str:
    known = row.flops and trial.seconds and unit_of(trial.target) == SECONDS
    return f"{row.flops / trial.seconds / 1e9:.1f}" if known and trial.seconds else ""


def evidence(trial: Trial) -> str:
    """What is known about a trial's time, or why there is none."""
    if trial.failure is not None:
        return trial.failure
    return "cut short" if trial.cut_short else "twice" if trial.confirmed else "once"


def failures(counts: TrialCounts) -> str:
    """Failed trials by kind."""
    return ", ".join(f"{number} {kind}" for kind, number in counts.failures.items()) or "0"


def run_json(run: Run, counts: TrialCounts) -> dict[str, Any]:
    """A run for `--json`."""
    return {**asdict(run), "counts": asdict(counts)}


def trial_json(trial: Trial) -> dict[str, Any]:
    """A trial for `--json`: all but its long trace."""
    return {name: value for name, value in asdict(trial).items() if name != "trace"}
