"""A rule: a name, a function of (sch, block, hw), when it applies, and where it was written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpo.lang.effects import Handler

Body = Callable[[Any, Any, Any], None]
When = Callable[[Any, Any], bool]

TARGETS = ("any", "cpu", "cuda", "riscv")
PLACES = ("block", "function", "both")


@dataclass(frozen=True)
class Rule:
    """A stochastic schedule rule; `tpo.lang.rule` makes one of a function.

    A rule `on` "block" sees all blocks of a function one by one, one on "function" the block around them
    all, one on "both" all of these. `always` rules are part of every sketch wherever they apply, such as
    inlining; of others there are sketches with and without.

    >>> Rule("idle", lambda sch, block, hw: None, target="cpu").about
    ''
    """

    name: str
    function: Body
    target: str = "any"
    on: str = "block"
    when: When | None = None
    always: bool = False
    handlers: tuple[Callable[[], Handler], ...] = ()
    native: Any = None  # a schedule rule of TVM's own, instead of the function
    source: str = field(default="", compare=False)

    def applies(self, sch: Any, block: Any) -> bool:
        """Whether the rule is meant for a block."""
        place = "function" if sch.get_sref(block).parent is None else "block"
        if self.on not in (place, "both"):
            return False
        return self.when is None or bool(self.when(sch, block))

    def apply(self, sch: Any, block: Any, hw: Any) -> None:
        """Run the rule's function, with the handlers it was adapted by around it."""
        self._inside(len(self.handlers), sch, block, hw)

    def handled(self, handler: Callable[[], Handler]) -> Rule:
        """The rule with one more handler around it."""
        return replace(self, handlers=(*self.handlers, handler))

    @property
    def about(self) -> str:
        """The first line of the rule's docstring."""
        lines = (inspect.getdoc(self.function) or "").splitlines()
        return lines[0] if lines else ""

    def _inside(self, remaining: int, sch: Any, block: Any, hw: Any) -> None:
        if remaining == 0:
            self.function(sch, block, hw)
            return
        with self.handlers[remaining - 1]():
            self._inside(remaining - 1, sch, block, hw)


def rule(
    target: str = "any",
    on: str = "block",
    when: When | None = None,
    always: bool = False,
) -> Callable[[Body], Rule]:
    """Make a schedule rule of a function of (sch, block, hw).

    It changes `sch`, TVM's own schedule, around one block, and returns nothing. `when(sch, block)` says
    for which blocks it is; a rule may still `decline`. See `Rule` for the other arguments.

    >>> from tpo.lang import PerfectTile, sample
    >>> @rule(target="cpu")
    ... def split_outer(sch, block, hw):
    ...     loop = sch.get_loops(block)[0]
    ...     sch.split(loop, sample("rows", PerfectTile.of(sch, loop, parts=2)))
    >>> split_outer.name, split_outer.target
    ('split_outer', 'cpu')
    """
    for given, known in ((target, TARGETS), (on, PLACES)):
        if given not in known:
            raise ValueError(f"a rule is for one of {', '.join(known)}, not for {given!r}")

    def made(function: Body) -> Rule:
        return Rule(function.__name__, function, target, on, when, always, source=_source(function))

    return made


def _source(function: Any) -> str:
    """File and line of a function, as people read it."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"
