"""The effects of a rule: `sample`, `fork`, `constrain`, `restate` and `decline`, and who hears of them.

An effect is a message. It goes to the handlers that are active, the innermost first; each may change it
or give it a value. What nobody has decided happens by default: the outermost handler, the `Application`
of a rule to a schedule, emits the sampling instruction. That is all there is: `condition`, `prior`,
`scope` and `trace` (see `tpo.lang.handlers`) are handlers of a few lines each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

from tpo.lang.distributions import Distribution

T = TypeVar("T")


class Declined(Exception):  # noqa: N818 (it is no error)
    """A rule says that it is not for this block, and why."""


class RuleUsageError(Exception):
    """A rule uses the language wrongly: an effect outside a rule, or two sites of one name."""


@dataclass
class Message:
    """One effect. `value` is its result as soon as somebody has decided it."""

    kind: Literal["sample", "fork", "constrain", "restate"]
    name: str
    distribution: Distribution | None = None
    options: Sequence[Any] = ()
    condition: Any = None
    value: Any = None
    decided: bool = False

    def decide(self, value: Any) -> None:
        """Give the effect its result; outer handlers see it, but the default does not happen."""
        self.value, self.decided = value, True


class Handler:
    """Sees the messages of everything that runs inside its `with` block."""

    def process(self, message: Message) -> None:
        """Look at a message, or change it, before it is carried out."""

    def finish(self, message: Message) -> None:
        """Look at a message that has its result."""

    def __enter__(self) -> Handler:
        _handlers().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        removed = _handlers().pop()
        assert removed is self, "handlers are left in the order they were entered"


class _Stack(threading.local):
    def __init__(self) -> None:
        self.handlers: list[Handler] = []


_stack = _Stack()


def _handlers() -> list[Handler]:
    return _stack.handlers


def _send(message: Message) -> Any:
    handlers = list(_handlers())
    if not handlers:
        raise RuleUsageError(
            f"{message.kind}({message.name!r}) only works inside a rule that is being applied"
        )
    for handler in reversed(handlers):
        handler.process(message)
    for handler in handlers:
        handler.finish(message)
    return message.value


def sample(name: str, distribution: Distribution) -> Any:
    """A random variable: a name that is unique in the rule, and what it may be.

    Returns what TVM's instruction samples, to be handed to the schedule's primitives: a list of factors
    for a tile, one number for a choice, a loop for a compute location.

    >>> from tpo.lang import PerfectTile, apply_rule, rule
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def tiled(sch, block, hw):
    ...     loop = sch.get_loops(block)[0]
    ...     sch.split(loop, sample("rows", PerfectTile.of(sch, loop, parts=2)))
    >>> [list(way.sites) for way in apply_rule(tiled, *example())]
    [['tiled/add/rows']]
    """
    return _send(Message("sample", name, distribution=distribution))


def fork(name: str, options: Sequence[T]) -> T:
    """A choice of structure: every option becomes a sketch of its own.

    >>> from tpo.lang import apply_rule, rule
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def ordered(sch, block, hw):
    ...     i, j = sch.get_loops(block)
    ...     if fork("columns_first", [False, True]):
    ...         sch.reorder(j, i)
    >>> [way.label for way in apply_rule(ordered, *example())]
    ['ordered/columns_first=False', 'ordered/columns_first=True']
    """
    if not options:
        raise RuleUsageError(f"fork({name!r}) has no options")
    chosen: T = _send(Message("fork", name, options=tuple(options)))
    return chosen


def constrain(condition: Any, reason: str = "") -> None:
    """A limit that sampled values must keep, such as `rows * vectors + 1 <= hw.vector_registers`.

    Decisions that break it are never built. A plain False declines the rule: no decision could help.

    >>> from tpo.lang import Choice, apply_rule, rule
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def limited(sch, block, hw):
    ...     rows, columns = sample("rows", Choice([2, 4])), sample("columns", Choice([8, 16]))
    ...     constrain(rows * columns <= 32, "a tile fits the registers")
    >>> (way,) = apply_rule(limited, *example())
    >>> way.constraints[0].text
    'rows[0] * columns[0] <= 32'
    """
    if condition is False:
        raise Declined(reason or "a constraint can never hold")
    if condition is not True:
        _send(Message("constrain", reason, condition=condition))


def restate(func: Any) -> Any:
    """Go on with another program that computes the same: returns a fresh schedule of it.

    For ideas that are no schedule, such as another algorithm. The program has the parameters of the
    function it replaces, and is compared with it wherever a candidate of it is measured or deployed.

    >>> from tpo.lang import apply_rule, rule
    >>> from tpo.lang.programs import ProgramWriter
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def swapped(sch, block, hw):
    ...     writer = ProgramWriter(sch.mod["main"])
    ...     left, right, total = writer.params
    ...     writer.write("swapped", left.shape, lambda i, j: (total, [i, j], right[i, j] + left[i, j]))
    ...     sch = restate(writer.finish())
    ...     sch.parallel(sch.get_loops(sch.get_sblock("swapped"))[0])
    >>> (way,) = apply_rule(swapped, *example())
    >>> way.program is None
    False
    """
    return _send(Message("restate", "", options=(func,)))


def decline(reason: str) -> NoReturn:
    """Say that the rule is not for this block after all; what it did to the schedule is forgotten.

    >>> from tpo.lang import apply_rule, rule
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def choosy(sch, block, hw):
    ...     decline("it is too small")
    >>> apply_rule(choosy, *example())
    Traceback (most recent call last):
    tpo.lang.effects.Declined: it is too small
    """
    raise Declined(reason)
