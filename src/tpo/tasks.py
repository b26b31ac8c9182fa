"""Tuning tasks: the distinct functions of a model, and how much each of them matters."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tpo.frontend.lower import OPERATORS, find_calls
from tpo.frontend.model import Model
from tpo.hardware import dtype_bytes


@dataclass(frozen=True)
class Task:
    """One function to schedule: `weight` calls of it in a run, FLOPs and bytes of one call."""

    name: str
    operators: tuple[str, ...]
    shape: str
    weight: int
    flops: int
    bytes: int
    func: Any


def extract_tasks(model: Model) -> list[Task]:
    """The model's functions, the one with the most arithmetic in a run first."""
    tasks = [
        describe(name, model.module[name], calls, operators_of(model.module, name))
        for name, calls in count_calls(model.module).items()
    ]
    return sorted(tasks, key=lambda task: (-task.flops * task.weight, -task.bytes * task.weight, task.name))


def count_calls(module: Any) -> dict[str, int]:
    """How often a model's entries call each TensorIR function, in order of the first call."""
    return dict(Counter(call.args[0].name_hint for call in find_calls(module)))


def operators_of(module: Any, name: str) -> tuple[str, ...]:
    """The operators a function of the module computes."""
    return tuple(str(operator) for operator in module.get_attr(OPERATORS)[name])


def describe(name: str, func: Any, calls: int, operators: tuple[str, ...]) -> Task:
    """A task with its sizes worked out."""
    buffers = [param for param in func.params if isinstance(param, tirx.Buffer)]
    shapes = ["x".join(str(int(dim)) for dim in buffer.shape) or "scalar" for buffer in buffers]
    return Task(
        name=name,
        operators=operators,
        shape=f"{', '.join(shapes[:-1])} -> {shapes[-1]}",
        weight=calls,
        flops=int(s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": func}))),
        bytes=sum(_bytes(buffer) for buffer in buffers),
        func=func,
    )


def _bytes(buffer: Any) -> int:
    return math.prod(int(dim) for dim in buffer.shape) * dtype_bytes(str(buffer.dtype))
