"""Handlers adapt a rule without editing it: each takes a rule and gives a rule.

>>> from tpo.lang import Choice, apply_rule, rule, sample
>>> from tpo.testing.corpus import example
>>> @rule()
... def unrolled(sch, block, hw):
...     sch.annotate(block, "steps", sample("steps", Choice([1, 2, 4])))
>>> [list(way.sites) for way in apply_rule(unrolled, *example())]
[['unrolled/add/steps']]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpo.lang.distributions import Distribution
from tpo.lang.effects import Handler, Message, RuleUsageError
from tpo.lang.rules import Rule


class _Condition(Handler):
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def process(self, message: Message) -> None:
        if message.kind == "constrain" or message.decided or message.name not in self._values:
            return
        value = self._values[message.name]
        try:
            if message.distribution is not None:
                message.decide(message.distribution.constant(value))
            elif value in message.options:
                message.decide(value)
            else:
                raise ValueError(f"{value!r} is not among {list(message.options)}")
        except ValueError as error:
            raise RuleUsageError(f"condition on {message.name!r}: {error}") from error


def condition(rule: Rule, values: Mapping[str, Any] | None = None, /, **more: Any) -> Rule:
    """The rule with some sites and forks fixed: `condition(rule, rows=4)`.

    A fixed site is a number in the schedule, and no longer part of any search.

    >>> from tpo.lang import Choice, apply_rule, rule, sample
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def unrolled(sch, block, hw):
    ...     sch.annotate(block, "steps", sample("steps", Choice([1, 2, 4])))
    >>> [dict(way.sites) for way in apply_rule(condition(unrolled, steps=2), *example())]
    [{}]
    """
    fixed = {**(values or {}), **more}
    return rule.handled(lambda: _Condition(fixed))


class _Prior(Handler):
    def __init__(self, distributions: Mapping[str, Distribution]) -> None:
        self._distributions = distributions

    def process(self, message: Message) -> None:
        if message.kind == "sample" and message.name in self._distributions:
            message.distribution = self._distributions[message.name]


def prior(
    rule: Rule, distributions: Mapping[str, Distribution] | None = None, /, **more: Distribution
) -> Rule:
    """The rule with other distributions at some sites: `prior(rule, cols=Choice([32, 64]))`.

    >>> from tpo.lang import Choice, apply_rule, rule, sample
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def unrolled(sch, block, hw):
    ...     sch.annotate(block, "steps", sample("steps", Choice([1, 2, 4])))
    >>> (way,) = apply_rule(prior(unrolled, steps=Choice([8, 16])), *example())
    >>> way.sites["unrolled/add/steps"].options
    [8, 16]
    """
    others = {**(distributions or {}), **more}
    return rule.handled(lambda: _Prior(others))


class _Scope(Handler):
    def __init__(self, name: str) -> None:
        self._name = name

    def process(self, message: Message) -> None:
        if message.kind != "constrain":
            message.name = f"{self._name}.{message.name}"


def scope(rule: Rule, name: str) -> Rule:
    """The rule with `name.` before the names of its sites and forks.

    >>> from tpo.lang import Choice, apply_rule, rule, sample
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def unrolled(sch, block, hw):
    ...     sch.annotate(block, "steps", sample("steps", Choice([1, 2, 4])))
    >>> [list(way.sites) for way in apply_rule(scope(unrolled, "mine"), *example())]
    [['unrolled/add/mine.steps']]
    """
    return rule.handled(lambda: _Scope(name))


@dataclass(frozen=True)
class Traced:
    """What a rule did: its effects, in order, with their results."""

    effects: tuple[Message, ...]

    @property
    def sites(self) -> dict[str, Distribution]:
        """The random variables, by name."""
        return {m.name: m.distribution for m in self.effects if m.distribution is not None}


class _Trace(Handler):
    def __init__(self) -> None:
        self.effects: list[Message] = []

    def finish(self, message: Message) -> None:
        self.effects.append(message)


def trace(rule: Rule) -> Any:
    """A function of (sch, block, hw) that applies the rule there and returns its `Traced` effects.

    >>> from tpo.lang import Choice, apply_rule, rule, sample
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def unrolled(sch, block, hw):
    ...     sch.annotate(block, "steps", sample("steps", Choice([1, 2, 4])))
    >>> @rule()
    ... def curious(sch, block, hw):
    ...     print(list(trace(unrolled)(sch, block, hw).sites))
    >>> _ = apply_rule(curious, *example())
    ['steps']
    """

    def traced(sch: Any, block: Any, hw: Any) -> Traced:
        with _Trace() as recorder:
            rule.apply(sch, block, hw)
        assert isinstance(recorder, _Trace)
        return Traced(tuple(recorder.effects))

    return traced


def seed(rule: Rule, number: int) -> Rule:
    """The rule with its random decisions drawn from a seed of its own.

    >>> from tpo.lang import Choice, apply_rule, rule, sample
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def unrolled(sch, block, hw):
    ...     sch.annotate(block, "steps", sample("steps", Choice([1, 2, 4])))
    >>> ways = [apply_rule(seed(unrolled, 7), *example())[0] for _ in range(2)]
    >>> ways[0].sch.mod.script() == ways[1].sch.mod.script()
    True
    """

    def seeded(sch: Any, block: Any, hw: Any) -> None:
        sch.seed(number)
        rule.apply(sch, block, hw)

    return replace(rule, function=seeded, handlers=())
