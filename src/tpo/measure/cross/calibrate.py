"""Weights of modelled cycles, fitted to what a board has measured of the same candidates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scipy import stats

from tpo.errors import UsageError
from tpo.measure.cross import cycles
from tpo.measure.cross.cycles import Weights
from tpo.records import Records, Trial
from tpo.records.record import CYCLES, SECONDS, UNIT, tvm_target, unit_of


@dataclass(frozen=True)
class Calibration:
    """Fitted weights, the candidates behind them, and how both weights order these beside the board.

    Orders are rank correlations within a workload, in the mean over workloads: 1 is the board's own.
    """

    weights: Weights
    candidates: int
    workloads: int
    order_before: float
    order_after: float


def calibrate(modelled: Records, measured: Records, megahertz: float, before: Weights) -> Calibration:
    """Fit weights to candidates that both stores know: counted in one, timed in the other."""
    pairs = list(both(modelled, measured))
    if len(pairs) < cycles.FEWEST:
        why = f"only {len(pairs)} candidates were both counted and timed, {cycles.FEWEST} are needed"
        raise UsageError(
            why=why, advice="tune the same model in QEMU and on the board, or replay its records there"
        )
    counters, seconds = (
        [counted.counters for counted, _ in pairs],
        [timed.seconds or 0.0 for _, timed in pairs],
    )
    fitted = cycles.fit(counters, seconds, megahertz * 1e6)
    groups: dict[str, list[tuple[Trial, Trial]]] = {}
    for pair in pairs:
        groups.setdefault(pair[0].workload, []).append(pair)
    return Calibration(fitted, len(pairs), len(groups), _order(groups, before), _order(groups, fitted))


def both(modelled: Records, measured: Records) -> Iterator[tuple[Trial, Trial]]:
    """Trials of the same candidates: counted by an emulator, and timed by a board."""
    for key in modelled.targets():
        if unit_of(key) != CYCLES:
            continue
        target = {name: value for name, value in tvm_target(key).items() if name != UNIT}
        for other in measured.targets():
            if unit_of(other) != SECONDS or tvm_target(other) != target:
                continue
            timed = {
                (t.workload, t.candidate): t
                for t in measured.trials(target=other)
                if t.ok and not t.cut_short
            }
            for trial in modelled.trials(target=key):
                found = timed.get((trial.workload, trial.candidate))
                if found is not None and trial.ok and trial.counters:
                    yield trial, found


def _order(groups: dict[str, list[tuple[Trial, Trial]]], weights: Weights) -> float:
    """How well modelled cycles order candidates, in the mean over workloads with a choice."""
    found = []
    for pairs in groups.values():
        modelled = [weights.cycles(counted.counters) for counted, _ in pairs]
        timed = [timed.seconds or 0.0 for _, timed in pairs]
        if len(set(modelled)) > 1 and len(set(timed)) > 1:
            found.append(float(stats.spearmanr(modelled, timed).statistic))
    return sum(found) / len(found) if found else 1.0
