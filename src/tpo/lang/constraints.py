"""Symbolic limits over sampled values, evaluated for whole populations of decisions at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Mapping[tuple[str, int], NDArray[np.int64]]


@dataclass(frozen=True)
class Constraint:
    """A condition on the values of sites, and what it is for.

    `text` shows it with the names of sites; `holds` evaluates it for arrays of values, keyed by the
    name of a site and the position of the value in it.

    >>> from tvm import tirx
    >>> rows = tirx.Var("rows", "int32")
    >>> limit = Constraint.of(rows * 2 <= 8, "few rows", {rows: ("rule/block/rows", 0)})
    >>> limit.text, limit.holds({("rule/block/rows", 0): np.array([2, 4, 6])}).tolist()
    ('rows[0] * 2 <= 8', [True, True, False])
    """

    reason: str
    text: str
    sites: tuple[tuple[str, int], ...]
    holds: Callable[[Values], NDArray[np.bool_]]

    @classmethod
    def of(cls, condition: Any, reason: str, variables: Mapping[Any, tuple[str, int]]) -> Constraint:
        """The constraint of an expression over variables that a rule has sampled."""
        from tvm import tirx

        expression = condition.asobject() if hasattr(condition, "asobject") else condition
        used: dict[tuple[str, int], Any] = {}

        def compile_(node: Any) -> Callable[[Values], Any]:
            if isinstance(node, tirx.Var):
                if node not in variables:
                    raise ValueError(f"a constraint may only use sampled values, not {node}")
                site = variables[node]
                used[site] = node
                return lambda values: values[site]
            if isinstance(node, tirx.IntImm):
                number = int(node)
                return lambda _: number
            if isinstance(node, tirx.Cast):
                return compile_(node.value)
            if isinstance(node, tirx.Not):
                inner = compile_(node.a)
                return lambda values: np.logical_not(inner(values))
            operation = _OPERATIONS.get(type(node).__name__)
            if operation is None:
                raise ValueError(f"a constraint cannot use {type(node).__name__}: {node}")
            left, right = compile_(node.a), compile_(node.b)
            return lambda values: operation(left(values), right(values))

        evaluate = compile_(expression)
        text = str(expression)
        for (name, position), node in used.items():
            text = text.replace(str(node), f"{name.rsplit('/', 1)[-1]}[{position}]")
        return cls(reason, text, tuple(used), lambda values: np.asarray(evaluate(values), np.bool_))


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Div": np.floor_divide,
    "Mod": np.mod,
    "Min": np.minimum,
    "Max": np.maximum,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}
