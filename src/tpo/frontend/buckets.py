"""One model for several sizes of a dimension: an entry for each size, functions that are equal only once.

A transformer's sequences have many lengths, and a schedule is for one. What comes after the frontend sees
one module with several entries: tasks, tuning and compilation need not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from tpo.errors import BucketError
from tpo.frontend.lower import OPERATORS
from tpo.frontend.model import Entry, Model

MAX_SIZE = 2**31 - 1


def parse_buckets(text: str) -> tuple[str, tuple[int, ...]]:
    """A dimension and its sizes, the smallest first.

    >>> parse_buckets("sequence=128,32,64")
    ('sequence', (32, 64, 128))
    """
    name, divider, sizes = text.partition("=")
    if not divider or not name.strip():
        raise BucketError(text=text, why="there is no NAME= in front")
    parts = [part.strip() for part in sizes.split(",")]
    wrong = [part for part in parts if not re.fullmatch(r"[0-9]{1,10}", part)]
    if wrong:
        raise BucketError(text=text, why=f"{wrong[0]!r} is not a size")
    return name.strip(), checked_sizes(text, [int(part) for part in parts])


def checked_sizes(text: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes in their order; `text` is how they were given."""
    if len(set(sizes)) < 2 or len(set(sizes)) < len(sizes):
        raise BucketError(text=text, why="it takes two or more different sizes")
    if not all(0 < size <= MAX_SIZE for size in sizes):
        raise BucketError(text=text, why="a size is a positive number")
    return tuple(sorted(sizes))


def join(models: Sequence[Model], dimension: str, sizes: Sequence[int]) -> Model:
    """Models of one file, each for a size of a dimension, as one; the largest stands for all."""
    module, operators, entries = tvm.IRModule(), dict[str, list[str]](), []
    for model, size in zip(models, sizes, strict=True):
        entry = f"main_{size}"
        joiner = _Joiner(module, model.module)
        main = joiner.visit_expr(model.module["main"]).with_attr("global_symbol", entry)
        module = joiner.builder_.get()
        module[entry] = main
        operators |= joiner.operators
        entries.append(Entry(entry, size, model.inputs, model.outputs))
    return replace(
        models[-1],
        module=module.with_attr(OPERATORS, operators),
        entries=tuple(entries),
        dimension=dimension,
    )


@relax.expr_functor.mutator
class _Joiner(relax.PyExprMutator):  # type: ignore[misc]
    """Moves the functions that an entry calls into another module, which may have them already."""

    def __init__(self, into: Any, source: Any) -> None:
        super().__init__(into)
        self.source = source
        self.operators: dict[str, list[str]] = {}
        self._moved: dict[str, Any] = {}

    def visit_global_var_(self, var: Any) -> Any:
        name = var.name_hint
        if name not in self._moved:
            self._moved[name] = self.builder_.add_func(self.source[name].without_attr("global_symbol"), name)
            known = self.source.get_attr(OPERATORS)[name]
            self.operators[self._moved[name].name_hint] = [str(operator) for operator in known]
        return self._moved[name]
