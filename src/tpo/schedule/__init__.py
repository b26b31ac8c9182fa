"""Default schedules: every function of a module gets the first rule of `schedule_rules/cpu` that fits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tpo.hardware import Gpu, Hardware
from tpo.lang import Applied, Declined, apply_rule
from tpo.lang.library import shipped_rules
from tpo.workload import in_place_of, schedule_of

# In this order: the first rule that accepts a function schedules it.
DEFAULT_RULES = (
    *(
        "attention",
        "int8_contraction",
        "transposed_convolution",
        "winograd",
        "clamped_contraction",
        "padded_contraction",
    ),
    *(
        "grouped_contraction",
        "contraction",
        "depthwise",
        "transpose",
        "concat",
        "elementwise",
        "row_passes",
        "pooling",
        "reduction",
    ),
)
GPU_RULES = ("tensor_core", "block_tiles", "row_threads", "point_threads")
RISCV, CUDA = "riscv", "cuda"  # folders of rules: for vectors of several registers, for GPUs
PREFIXES = {"cpu": "", RISCV: "rvv_", CUDA: ""}  # of the names of a folder's rules
UNSCHEDULED = "none"
TUNED = "tuned"

_log = logging.getLogger(__name__)


def rules_for(hw: Hardware | Gpu) -> str:
    """The folder of our rules that are made for some hardware."""
    if isinstance(hw, Gpu):
        return CUDA
    return RISCV if len(hw.lmuls) > 1 else "cpu"


def schedule_module(mod: Any, hw: Hardware | Gpu, tuned: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Schedule every PrimFunc of a module; also says which rule took which function.

    `tuned` functions, by name, already have the schedule they are to get.
    """
    taken: dict[str, str] = {}
    for var in mod.get_global_vars():
        func = mod[var]
        if var.name_hint in tuned:
            mod.update_func(var, tuned[var.name_hint])
            taken[var.name_hint] = TUNED
        elif isinstance(func, tirx.PrimFunc):
            scheduled, taken[var.name_hint] = schedule_function(func, hw)
            mod.update_func(var, scheduled)
    return mod, taken


def schedule_function(func: Any, hw: Hardware | Gpu) -> tuple[Any, str]:
    """The function with a default schedule, and the name of the rule that made it.

    A function that no rule can take (sorting, data-dependent loops) stays as it is.
    """
    found = default_schedule(tvm.IRModule({"main": func}), hw)
    if found is None:
        return func, UNSCHEDULED
    scheduled = found.sch.mod["main"]
    return (scheduled if found.program is None else in_place_of(func, scheduled)), found.rule.name


def default_schedule(module: Any, hw: Hardware | Gpu) -> Applied | None:
    """The first rule that can schedule `module["main"]`, applied to it.

    It is what the first rule that takes the function prefers, at its forks and its sites. A rule that
    cannot apply a step to this function leaves it to the next one.
    """
    sch = schedule_of(module)
    kind = rules_for(hw)
    known = {rule.name: rule for rule in shipped_rules(kind)}
    names = [PREFIXES[kind] + name for name in (GPU_RULES if kind == CUDA else DEFAULT_RULES)]
    for name in (name for name in names if name in known):
        try:
            (applied,) = apply_rule(known[name], sch, sch.get_sblock("root"), hw, first_only=True)
            return applied
        except Declined as refusal:
            _log.debug("rule %s declined: %s", name, refusal)
        except Exception as error:  # TVM's schedule primitives raise many kinds of errors
            _log.debug("rule %s failed: %s", name, error)
    return None
