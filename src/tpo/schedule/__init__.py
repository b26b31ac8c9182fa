"""Default schedules: every function of a module gets the first rule of `schedule_rules/cpu` that fits."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from types import ModuleType
from typing import Any

import tvm
from tvm import s_tir, tirx

from tpo import resources
from tpo.hardware import Hardware

# In this order: the first rule that accepts a function schedules it.
DEFAULT_RULES = ("contraction", "elementwise", "reduction")
UNSCHEDULED = "none"

_log = logging.getLogger(__name__)


def schedule_module(mod: Any, hw: Hardware) -> tuple[Any, dict[str, str]]:
    """Schedule every PrimFunc of a module; also says which rule took which function."""
    taken: dict[str, str] = {}
    for var in mod.get_global_vars():
        func = mod[var]
        if isinstance(func, tirx.PrimFunc):
            scheduled, taken[var.name_hint] = schedule_function(func, hw)
            mod.update_func(var, scheduled)
    return mod, taken


def schedule_function(func: Any, hw: Hardware) -> tuple[Any, str]:
    """The function with a default schedule, and the name of the rule that made it.

    A rule that cannot apply a step to this function leaves it to the next one; a function that no
    rule can take (sorting, data-dependent loops) stays as it is.
    """
    for name in DEFAULT_RULES:
        sch = s_tir.Schedule(tvm.IRModule({"main": func}))
        try:
            if load_rule(name).schedule(sch, hw):
                return sch.mod["main"], name
        except Exception as error:  # TVM's schedule primitives raise many kinds of errors
            _log.debug("rule %s failed: %s", name, error)
    return func, UNSCHEDULED


@cache
def load_rule(name: str) -> ModuleType:
    """The module of a rule file of `schedule_rules/cpu`."""
    path = resources.folder("schedule_rules") / "cpu" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tpo_schedule_rules.cpu.{name}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
