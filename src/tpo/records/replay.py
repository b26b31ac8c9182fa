"""Making programs of stored traces again."""

from __future__ import annotations

import json
import platform
from typing import Any

import tvm
from tvm import s_tir

from tpo.hardware import target_arch
from tpo.records.record import tvm_target
from tpo.schedule import dot_products
from tpo.space.tvm_rules import register_intrinsics
from tpo.workload import Workload, schedule_of


def replay(workload: Workload, trace_json: str, target: str | None = None) -> Any:
    """The schedule a stored trace makes of its workload; raises whatever TVM raises if it cannot.

    `target` is the key of the target the trace was made for; without it, that is this machine.
    """
    if uses_intrinsics(trace_json):
        arch = platform.machine() if target is None else target_arch(tvm.target.Target(tvm_target(target)))
        register_intrinsics(arch)
    schedule = schedule_of(workload.module)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace_json), schedule)
    return schedule


def uses_intrinsics(trace_json: str) -> bool:
    """Whether a trace replaces loops by instructions that TVM must have been told about."""
    return '"Tensorize"' in trace_json


def uses_dot_products(trace_json: str) -> bool:
    """Whether some of these instructions are ours, not TVM's."""
    return f'"{dot_products.PREFIX}' in trace_json


def as_python(workload: Workload, trace_json: str, target: str) -> str:
    """A stored trace as the Python statements that would make the schedule."""
    return "\n".join(str(line) for line in replay(workload, trace_json, target).trace.as_python())
