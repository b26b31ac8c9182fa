"""TVM's own schedule rules and postprocessors for a target, without the costly start-up of its tuner.

Stock `TuneContext(...)` imports the tensor intrinsics of every device, which takes half a minute; a
context made here has only those of the target's own architecture.
"""

from __future__ import annotations

import importlib
import logging
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.tune_context import TuneContext

from tpo.lang import Rule
from tpo.schedule import dot_products, tensor_cores
from tpo.targets import CUDA, Target

PREFIX = "tvm:"
_log = logging.getLogger(__name__)
_PACKAGE = "tvm.s_tir.tensor_intrin"
_INTRINSICS = {"x86_64": "x86", "aarch64": "arm_cpu", "riscv64": "riscv_cpu"}


class LeanContext(TuneContext):  # type: ignore[misc]
    """A tuning context without the import of all intrinsics, whose messages go to Python's logging."""

    def __init__(self, module: Any, target: Any, generator: Any, threads: int) -> None:
        self.__init_handle_by_constructor__(
            _ffi_api.TuneContext, module, target, generator, None, "main", threads, 1, _debug
        )
        _ffi_api.TuneContextInitialize(self)


def context(module: Any, target: Target) -> LeanContext:
    """A context with the schedule rules and postprocessors TVM has for the target."""
    register_intrinsics(_isa(target))
    rules, postprocessors = _rule_set(module, target)
    generator = ms.space_generator.PostOrderApply(
        # It looks for hand-written schedules; for CPUs there are none, and it says so on stderr.
        sch_rules=[rule for rule in rules if not isinstance(rule, ms.schedule_rule.ApplyCustomRule)],
        postprocs=postprocessors,
        mutator_probs={},
    )
    return LeanContext(module, target.tvm, generator, target.hardware.cores)


def named_rules(module: Any, target: Target) -> dict[str, Rule]:
    """TVM's own rules for a target, to be used beside ours, by the names TVM gives them."""
    register_intrinsics(_isa(target))
    rules, _ = _rule_set(module, target)
    return {
        f"{PREFIX}{type(rule).__name__}": Rule(
            f"{PREFIX}{type(rule).__name__}", _never, "cpu", "both", always=True, native=rule
        )
        for rule in rules
        if not isinstance(rule, ms.schedule_rule.ApplyCustomRule)
    }


def _isa(target: Target) -> str:
    """Whose intrinsics a target has."""
    return target.arch if target.gpu is None else CUDA


def _never(sch: Any, block: Any, hw: Any) -> None:
    """A schedule rule of TVM's own."""
    raise AssertionError("TVM's own rules have no Python function")


def _rule_set(module: Any, target: Target) -> tuple[Any, Any]:
    """TVM's rules for this very target where it has some, else those for any CPU; for GPUs, any GPU's.

    Those for tensor cores need intrinsics that take half a minute to import, and ours are shorter.
    """
    if target.gpu is not None:
        return ms.schedule_rule.ScheduleRule.create(CUDA), ms.postproc.Postproc.create(CUDA)
    generator = ms.space_generator.PostOrderApply()
    try:
        LeanContext(module, target.tvm, generator, threads=1)
    except (tvm.error.InternalError, ValueError, RuntimeError) as error:
        _log.debug("no rules for %s, using those for any CPU: %s", target.name, error)
        return ms.schedule_rule.ScheduleRule.create("llvm"), ms.postproc.Postproc.create("llvm")
    return generator.sch_rules, generator.postprocs


@cache
def register_intrinsics(arch: str) -> None:
    """Make the tensor intrinsics of an architecture, TVM's and ours, known to TVM, and no others."""
    if arch == "x86_64":
        dot_products.register()
    if arch == CUDA:
        tensor_cores.register()
    name = _INTRINSICS.get(arch)
    if name is None or _PACKAGE in sys.modules:
        return
    # An empty package in place of the real one, whose `__init__` would import every device's intrinsics.
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[_PACKAGE] = package
    try:
        importlib.import_module(f"{_PACKAGE}.{name}")
    finally:
        for module in [module for module in sys.modules if f"{module}.".startswith(f"{_PACKAGE}.")]:
            del sys.modules[module]


def _debug(level: int, file: str, line: int, message: str) -> None:
    _log.debug("%s:%d %s", Path(file).name, line, message)
