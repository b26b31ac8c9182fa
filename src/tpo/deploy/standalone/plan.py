"""A scheduled model as a list of calls, with a place in memory for every tensor between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst, GlobalVar

from tpo.deploy.inputs import Array
from tpo.hardware import dtype_bytes

ALIGNMENT = 64
INPUT, RESULT, CONSTANT, WORKSPACE = "INPUT", "RESULT", "CONSTANT", "WORKSPACE"


class NotStandaloneError(Exception):
    """A model does something that only TVM's runtime can."""


@dataclass
class Buffer:
    """A tensor: `at` is the number of an input or result, or the offset of others in their memory."""

    shape: tuple[int, ...]
    dtype: str
    place: str
    at: int = 0
    first: int = 0  # the steps between which it holds something
    last: int = 0

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)


@dataclass
class Plan:
    """Functions by name with the buffers they are called with, and results that are copies of others."""

    steps: list[tuple[str, list[Buffer]]] = field(default_factory=list)
    copies: list[tuple[int, Buffer]] = field(default_factory=list)
    constants: bytearray = field(default_factory=bytearray)
    workspace: int = 0

    @property
    def functions(self) -> list[str]:
        """Names of all functions, each once."""
        return list(dict.fromkeys(name for name, _ in self.steps))

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers that a step is called with, each once."""
        return list({id(buffer): buffer for _, used in self.steps for buffer in used}.values())


def plan(module: Any) -> Plan:
    """The plan of `module["main"]`, whose functions have all been lowered."""
    return _Planner().planned(module["main"])


class _Planner:
    def __init__(self) -> None:
        self._plan = Plan()
        self._values: dict[Any, Buffer | list[Buffer]] = {}
        self._constants: dict[bytes, int] = {}

    def planned(self, main: Any) -> Plan:
        for number, param in enumerate(main.params):
            self._values[param] = Buffer(*_type_of(param.ty), INPUT, number)
        body = main.body
        for block in body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._value(binding.value)
        self._return(body.body)
        self._plan.workspace = place([b for b in self._plan.buffers if b.place == WORKSPACE])
        return self._plan

    def _value(self, expr: Any) -> Buffer | list[Buffer]:
        if isinstance(expr, GenericConst):
            return self._constant(expr.value.numpy())
        if isinstance(expr, relax.Tuple):
            return list(self._flat(expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            found = self._value(expr.tuple_value)
            assert isinstance(found, list)
            chosen: Buffer = found[expr.index]
            return chosen
        if expr in self._values:
            known: Buffer | list[Buffer] = self._values[expr]
            return known
        if getattr(getattr(expr, "op", None), "name", "") == "relax.call_tir":
            return self._call(expr)
        what: Any = getattr(getattr(expr, "op", None), "name", type(expr).__name__)
        raise NotStandaloneError(f"it needs TVM's runtime for {str(what).removeprefix('relax.')}")

    def _call(self, call: Any) -> Buffer | list[Buffer]:
        callee, given = call.args[0], call.args[1]
        assert isinstance(callee, GlobalVar)
        (result,) = call.ty_args
        several = isinstance(result, relax.TupleType)
        made = [Buffer(*_type_of(ty), WORKSPACE) for ty in (result.fields if several else [result])]
        used = [*self._flat(given.fields), *made]
        now = len(self._plan.steps)
        for buffer in made:
            buffer.first = now
        for buffer in used:
            buffer.last = now
        self._plan.steps.append((str(callee.name_hint), used))
        return made if several else made[0]

    def _flat(self, exprs: Any) -> Iterator[Buffer]:
        for expr in exprs:
            found = self._value(expr)
            yield from found if isinstance(found, list) else [found]

    def _constant(self, array: Array) -> Buffer:
        content = np.ascontiguousarray(array).tobytes()
        key = content + str(array.dtype).encode()
        if key not in self._constants:
            self._plan.constants += bytes(-len(self._plan.constants) % ALIGNMENT)
            self._constants[key] = len(self._plan.constants)
            self._plan.constants += content
        return Buffer(tuple(array.shape), str(array.dtype), CONSTANT, self._constants[key])

    def _return(self, expr: Any) -> None:
        """Results are computed where the caller wants them, unless they are something else as well."""
        found = self._value(expr)
        for number, buffer in enumerate(found if isinstance(found, list) else [found]):
            if buffer.place == WORKSPACE:
                buffer.place, buffer.at = RESULT, number
            else:
                self._plan.copies.append((number, buffer))


def place(buffers: list[Buffer]) -> int:
    """Give each an offset at which nothing else lives as long as it does; the bytes of all together.

    The largest first, each at the lowest offset there is.
    """
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda buffer: -buffer.bytes):
        others = sorted(
            (other for other in placed if other.first <= buffer.last and buffer.first <= other.last),
            key=lambda other: other.at,
        )
        at = 0
        for other in others:
            if at + buffer.bytes <= other.at:
                break
            at = max(at, _aligned(other.at + other.bytes))
        buffer.at = at
        placed.append(buffer)
    return max((_aligned(buffer.at + buffer.bytes) for buffer in placed), default=0)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _type_of(ty: Any) -> tuple[tuple[int, ...], str]:
    return tuple(int(dim) for dim in ty.shape.values), str(ty.dtype)
