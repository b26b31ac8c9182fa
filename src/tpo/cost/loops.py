"""Loops of all candidates at once: what splitting and fusing makes of them, and how far indices reach.

A loop is a number in a mixed radix: each of its *digits* counts steps of one *root*, a loop as it was when a
block was first seen inside it. So it is known how much of every axis the loops inside some depth cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from tvm import tirx

from tpo.cost.columns import Column, Number, ceil_div, example, maximum, minimum, product


@dataclass(frozen=True)
class Digit:
    """A part of a loop: how many steps of which size it makes along a root."""

    root: int
    extent: Number
    stride: Number


View = tuple[Digit, ...]


@dataclass(frozen=True)
class Loop:
    """A loop of any kind. Each of its views is all of it, in other roots; the last digit changes fastest."""

    extent: Number
    views: tuple[View, ...]

    @classmethod
    def of(cls, root: int, extent: Number) -> Loop:
        """A loop that is a root."""
        return cls(extent, ((Digit(root, extent, 1.0),),))

    def also(self, root: int) -> Loop:
        """The same loop, as a root of its own besides."""
        return Loop(self.extent, (*self.views, (Digit(root, self.extent, 1.0),)))

    def strides(self) -> list[Number]:
        """How large its steps are, seen from the roots, where that depends on the candidate."""
        return [digit.stride for view in self.views for digit in view if isinstance(digit.stride, Column)]

    @cached_property
    def along(self) -> dict[int, list[Digit]]:
        """Its steps along every root that it moves along for some candidate."""
        found: dict[int, list[Digit]] = {}
        for view in self.views:
            known = set(found)
            for digit in view:
                if digit.root not in known and digit.extent != 1.0:
                    found.setdefault(digit.root, []).append(digit)
        return found


def fuse(loops: Sequence[Loop]) -> Loop:
    """One loop instead of nested ones, the outermost of them first."""
    views = zip_longest(*(loop.views for loop in loops))
    joined = [
        tuple(digit for view, loop in zip(several, loops, strict=True) for digit in view or loop.views[0])
        for several in views
    ]
    return Loop(product([loop.extent for loop in loops]), tuple(joined))


def split(loop: Loop, factors: Sequence[Number | None]) -> list[Loop]:
    """The parts of a loop; the factor that is None is as many as are needed.

    >>> [part.extent for part in split(Loop.of(0, 56.0), [None, 4.0, 8.0])]
    [2.0, 4.0, 8.0]
    """
    known = product([factor for factor in factors if factor is not None])
    extents = [ceil_div(loop.extent, known) if factor is None else factor for factor in factors]
    views = [_split_view(view, extents) for view in loop.views]
    return [Loop(extent, parts) for extent, parts in zip(extents, zip(*views, strict=True), strict=True)]


def _split_view(view: View, extents: Sequence[Number]) -> list[View]:
    parts: list[View] = []
    for extent in reversed(extents[1:]):
        taken, view = _take(view, extent)
        parts.append(taken)
    if len(view) == 1:
        view = (Digit(view[0].root, extents[0], view[0].stride),)
    return [view, *reversed(parts)]


def _take(digits: View, extent: Number) -> tuple[View, View]:
    """The innermost `extent` steps of some digits, and what is left of them."""
    if len(digits) == 1:
        (only,) = digits
        rest = Digit(only.root, ceil_div(only.extent, extent), only.stride * extent)
        return (Digit(only.root, extent, only.stride),), (rest,)
    taken, left = [], []
    for digit in reversed(digits):
        part = 1.0 if digit.extent == 1.0 else minimum(digit.extent, extent)
        taken.append(Digit(digit.root, part, digit.stride))
        left.append(Digit(digit.root, ceil_div(digit.extent, part), digit.stride * part))
        extent = ceil_div(extent, part)
    return tuple(taken[::-1]), tuple(left[::-1])


def covered(loops: Sequence[Loop], root: int) -> Number:
    """How many values of a root some loops go through, from the least to the most."""
    total: Number = 1.0
    for loop in reversed(loops):  # from the inside: what is covered from each depth on then shares its steps
        for digit in loop.along.get(root, ()):
            total = total + (digit.extent - 1.0) * digit.stride
    return total


OfVariable = Callable[[Any], "Number | None"]
Steps = Mapping[Any, Sequence[Number]]


@dataclass(frozen=True)
class Index:
    """An index of a buffer, or an axis of a block, in variables: TVM's expression, read once.

    >>> i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    >>> Index.of(i * 2 + j // 4, {i: 0, j: 1}).width([3.0, 16.0].__getitem__)
    8.0
    """

    kind: str
    parts: tuple[Index, ...] = ()
    value: Any = None  # the variable's key, or the constant

    @classmethod
    def of(cls, expr: Any, keys: Mapping[Any, Any], steps: Steps | None = None) -> Index:
        """Read an expression over variables that have keys; all others count as constant.

        `steps` are numbers, by key, that may have been multiplied with a variable: TVM only shows what they
        are for one candidate.
        """
        if isinstance(expr, tirx.Var):
            return cls("Var", value=keys[expr]) if expr in keys else cls("IntImm")
        if isinstance(expr, tirx.IntImm):
            return cls("IntImm", value=float(int(expr)))
        if isinstance(expr, tirx.Cast):
            return cls.of(expr.value, keys, steps)
        if not hasattr(expr, "a") or not hasattr(expr, "b"):
            return cls("unknown")
        made = cls(type(expr).__name__, (cls.of(expr.a, keys, steps), cls.of(expr.b, keys, steps)))
        return made if steps is None else made._stepped(steps)

    def _stepped(self, steps: Steps) -> Index:
        left, right = self.parts
        if self.kind == "Mul" and left.kind == "Var" and right.kind == "IntImm":
            return left._times(steps, right.value) or self
        if self.kind == "Add":
            return Index("Add", tuple(part._times(steps, 1.0) or part for part in self.parts))
        return self

    def _times(self, steps: Steps, factor: float) -> Index | None:
        """The variable with the one of its steps that is a factor here; None if it has none."""
        known = steps.get(self.value, ()) if self.kind == "Var" else ()
        step = next((step for step in known if example(step) == factor), None)
        return None if step is None else Index("Mul", (self, Index("IntImm", value=step)))

    @property
    def is_constant(self) -> bool:
        """Whether it has no variables."""
        return self.kind == "IntImm" or (bool(self.parts) and all(part.is_constant for part in self.parts))

    def steps_over(self, keys: Set[Any]) -> bool:
        """Whether neighbouring values of one of some variables are further apart here."""
        if self.kind == "Mul" and self.parts[1].value != 1.0 and self.keys() & keys:
            return True
        return any(part.steps_over(keys) for part in self.parts)

    def keys(self) -> set[Any]:
        """Of all its variables."""
        if self.kind == "Var":
            return {self.value}
        return set().union(*(part.keys() for part in self.parts))

    def width(self, of_variable: OfVariable) -> Number | None:
        """How many values it goes through from least to most, if that is known of its variables."""
        if self.kind == "Var":
            return of_variable(self.value)
        if self.kind == "IntImm":
            return 1.0
        if not self.parts:
            return None
        left, right = (part.width(of_variable) for part in self.parts)
        if left is None or right is None:
            return None
        constant = self.parts[1].value if self.parts[1].kind == "IntImm" else None
        match self.kind:
            case "Add" | "Sub":
                return left + right - 1.0
            case "Mul" if constant is not None:
                step = abs(constant) if isinstance(constant, float) else constant
                return (left - 1.0) * step + 1.0
            case "FloorDiv" if constant:
                return ceil_div(left, constant)
            case "FloorMod" if constant:
                return minimum(left, constant)
            case "Min" | "Max":
                return maximum(left, right)
        return None
