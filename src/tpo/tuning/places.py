"""Where a run measures: on this machine, or at a place where kernels of another one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpo.errors import NotCountableError, NotRunnableError, UsageError
from tpo.measure import Runner
from tpo.measure.cross.places import Board, Place, Qemu
from tpo.measure.cross.rpc import Rpc
from tpo.measure.cross.runner import CrossOptions, CrossRunner
from tpo.records.record import machine_facts
from tpo.targets import EMULATED, Target
from tpo.tuning.config import MeasureConfig


def place(target: Target, config: MeasureConfig) -> Place | None:
    """Where candidates for a target run; None for this machine. Refuses what cannot be measured."""
    if target.native:
        return None
    if target.gpu is not None or target.arch != EMULATED:
        raise NotRunnableError(target=target.name)
    if config.board is not None and config.rpc is not None:
        raise UsageError(why="a run measures in one place", advice="give a board or an RPC server, not both")
    if config.rpc is not None:
        return Rpc(config.rpc)
    if config.board is not None:
        return Board(config.board, wrapper=config.wrapper)
    emulator = Qemu(target.hardware.vlen)
    if not emulator.counts:
        raise NotCountableError(why=emulator.note)
    return emulator


def runner(target: Target, place: Place, config: MeasureConfig) -> Runner:
    """What builds here and measures there."""
    options = CrossOptions(
        build_timeout=config.build_timeout,
        run_timeout=config.run_timeout,
        memory_gb=config.memory_gb,
        recycle=config.recycle,
        cycles=None if config.cycles is None else Path(config.cycles),
    )
    return CrossRunner(target.tvm, place, options)


def facts(place: Place | None) -> Mapping[str, Any]:
    """What measured, as a run remembers it."""
    here = machine_facts()
    return here if place is None else {**here, "cpu": place.name, "arch": EMULATED, "cores": 1}
