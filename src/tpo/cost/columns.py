"""Arithmetic over whole populations: written once, as a straight list of numpy operations, run many times.

A `Column` is one number of every candidate. Arithmetic with columns computes nothing yet: it adds a step to
their tape, unless the same step is there already. What is the same for all candidates is a plain float. Each
column knows what it is for one of the candidates, its `example`.

>>> tape = Tape()
>>> rows = tape.input("rows", 4)
>>> tiles = ceil_div(56.0, rows)
>>> tiles.example
14.0
>>> tape.program([tiles * rows, maximum(tiles, 6.0), 3.0]).run({"rows": np.array([4, 8, 10])}, 3)
array([[56., 14.,  3.],
       [56.,  7.,  3.],
       [60.,  6.,  3.]], dtype=float32)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

CHUNK = 2048  # rows that are computed at a time: what a step reads is still in cache from the one before

# What numpy's functions are for single numbers, where Python has the same and is several times faster.
_PLAIN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.minimum: min,
    np.maximum: max,
    np.divide: lambda left, right: left / right if right else math.nan,
    np.less_equal: operator.le,
    np.equal: operator.eq,
    np.logical_and: lambda left, right: bool(left and right),
    np.where: lambda condition, yes, no: yes if condition else no,
}

Array = NDArray[Any]
Key: TypeAlias = Hashable


class Tape:
    """The steps, in order."""

    def __init__(self) -> None:
        self._inputs: dict[Key, Column] = {}
        self._steps: list[tuple[Callable[..., Array] | None, tuple[Number, ...]]] = []
        self._known: dict[Hashable, Column] = {}

    def input(self, key: Key, example: float) -> Column:
        """A column that is given when the tape runs."""
        if key not in self._inputs:
            self._inputs[key] = self._append(None, (), float(example))
        return self._inputs[key]

    def step(self, function: Callable[..., Array], *operands: Number) -> Column:
        """The result of a numpy function."""
        key = (function, *[o.position if isinstance(o, Column) else (o,) for o in operands])
        found = self._known.get(key)
        if found is None:
            plain: Callable[..., Any] = _PLAIN.get(function, function)
            example = plain(*[o.example if isinstance(o, Column) else o for o in operands])
            found = self._known[key] = self._append(function, operands, float(example))
        return found

    def _append(
        self, function: Callable[..., Array] | None, operands: tuple[Number, ...], e: float
    ) -> Column:
        self._steps.append((function, operands))
        return Column(self, len(self._steps) - 1, e)

    def program(self, wanted: Sequence[Number]) -> Program:
        """What computes some columns, and nothing else."""
        needed = {column.position for column in wanted if isinstance(column, Column)}
        last = dict.fromkeys(needed, len(self._steps))  # the step that uses a result for the last time
        for position in range(len(self._steps) - 1, -1, -1):
            if position in needed:
                for operand in self._steps[position][1]:
                    if isinstance(operand, Column):
                        needed.add(operand.position)
                        last.setdefault(operand.position, position)
        writer = _Writer(last)
        inputs = {key: writer.place(c.position) for key, c in self._inputs.items() if c.position in needed}
        for position in sorted(needed):
            function, operands = self._steps[position]
            if function is not None:
                writer.write(function, operands, position)
        columns = [(k, writer.place(c.position)) for k, c in enumerate(wanted) if isinstance(c, Column)]
        fixed = np.array([0.0 if isinstance(c, Column) else c for c in wanted], np.float32)
        return Program(inputs, writer.steps, columns, fixed, writer.constants, writer.size)


class _Writer:
    """Puts results into slots, which are used again for others as soon as nobody needs them."""

    def __init__(self, last: Mapping[int, int]) -> None:
        self.steps: list[tuple[Callable[..., Array], int, int, int, int]] = []
        self.constants: dict[float, int] = {}
        self.size = 0
        self._last = last
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def place(self, position: int) -> int:
        """The slot of a result."""
        if position not in self._places:
            self._places[position] = self._free.pop() if self._free else self._slot()
        return self._places[position]

    def write(self, function: Callable[..., Array], operands: tuple[Number, ...], position: int) -> None:
        """One step; slots of missing operands are -1."""
        slots = [self._operand(operand) for operand in operands] + [-1, -1]
        for used in {operand.position for operand in operands if isinstance(operand, Column)}:
            if self._last[used] == position:
                self._free.append(self._places.pop(used))
        self.steps.append((function, slots[0], slots[1], slots[2], self.place(position)))

    def _operand(self, operand: Number) -> int:
        if isinstance(operand, Column):
            return self._places[operand.position]
        if operand not in self.constants:
            self.constants[operand] = self._slot()
        return self.constants[operand]

    def _slot(self) -> int:
        self.size += 1
        return self.size - 1


@dataclass(frozen=True)
class Program:
    """Steps that make a line of numbers for every candidate, in single precision."""

    inputs: Mapping[Key, int]
    steps: Sequence[tuple[Callable[..., Array], int, int, int, int]]
    columns: Sequence[tuple[int, int]]
    fixed: NDArray[np.float32]
    constants: Mapping[float, int]
    size: int

    def run(self, inputs: Mapping[Any, Array], count: int) -> NDArray[np.float32]:
        """A line for each of so many candidates."""
        result = np.empty((len(self.fixed), count), np.float32)
        result[:] = self.fixed[:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for start in range(0, count, CHUNK):
                part = slice(start, start + CHUNK)
                self._run({at: inputs[key][part] for key, at in self.inputs.items()}, result[:, part])
        return np.ascontiguousarray(result.T)

    def _run(self, inputs: Mapping[int, Array], result: Array) -> None:
        slots: list[Any] = [None] * self.size
        for constant, at in self.constants.items():
            slots[at] = np.float32(constant)
        for at, column in inputs.items():
            slots[at] = column.astype(np.float32)
        for function, first, second, third, at in self.steps:
            if second < 0:
                slots[at] = function(slots[first])
            elif third < 0:
                slots[at] = function(slots[first], slots[second])
            else:
                slots[at] = function(slots[first], slots[second], slots[third])
        for k, at in self.columns:
            result[k] = slots[at]


class Column:
    """One number of every candidate, computed by a step of a tape."""

    __slots__ = ("example", "position", "tape")

    def __init__(self, tape: Tape, position: int, example: float) -> None:
        self.tape, self.position, self.example = tape, position, example

    def __add__(self, other: Number) -> Number:
        return self if other == 0.0 else self.tape.step(np.add, self, other)

    def __radd__(self, other: float) -> Number:
        return self + other

    def __sub__(self, other: Number) -> Number:
        return self if other == 0.0 else self.tape.step(np.subtract, self, other)

    def __rsub__(self, other: float) -> Number:
        return self.tape.step(np.subtract, other, self)

    def __mul__(self, other: Number) -> Number:
        if other == 0.0:
            return 0.0
        return self if other == 1.0 else self.tape.step(np.multiply, self, other)

    def __rmul__(self, other: float) -> Number:
        return self * other

    def __truediv__(self, other: Number) -> Number:
        return self if other == 1.0 else self.tape.step(np.divide, self, other)

    def __rtruediv__(self, other: float) -> Number:
        return self.tape.step(np.divide, other, self)


Number: TypeAlias = "Column | float"


def example(number: Number) -> float:
    """What a number is for one of the candidates."""
    return number.example if isinstance(number, Column) else number


def _apply(function: Callable[..., Any], *operands: Number) -> Number:
    for operand in operands:
        if isinstance(operand, Column):
            return operand.tape.step(function, *operands)
    return float(_PLAIN.get(function, function)(*operands))


def ceil_div(number: Number, divisor: Number) -> Number:
    """How many pieces of a size a number has, the last one perhaps smaller."""
    if number is divisor:
        return 1.0
    return number if divisor == 1.0 else _apply(np.ceil, number / divisor)


def minimum(left: Number, right: Number) -> Number:
    """The smaller one."""
    return left if left is right else _apply(np.minimum, left, right)


def maximum(left: Number, right: Number) -> Number:
    """The larger one."""
    return left if left is right else _apply(np.maximum, left, right)


def log2(number: Number) -> Number:
    """The logarithm, of numbers above zero."""
    return _apply(np.log2, number)


def where(condition: Number, yes: Number, no: Number) -> Number:
    """One of two, by a condition that is not zero where it holds."""
    if isinstance(condition, float):
        return yes if condition else no
    return yes if yes is no else _apply(np.where, condition, yes, no)


def at_most(left: Number, right: Number) -> Number:
    """Whether a number is not larger than another: one or zero."""
    return 1.0 if left is right else _apply(np.less_equal, left, right)


def equal(left: Number, right: Number) -> Number:
    """Whether two numbers are the same: one or zero."""
    return 1.0 if left is right else _apply(np.equal, left, right)


def both(left: Number, right: Number) -> Number:
    """Whether two conditions hold."""
    if isinstance(left, float):
        return right if left else 0.0
    if isinstance(right, float):
        return left if right else 0.0
    return _apply(np.logical_and, left, right)


def product(numbers: Sequence[Number]) -> Number:
    """All of them multiplied."""
    return math.prod(numbers, start=1.0)
