"""Applying a rule to a block: every way through its forks, with the names of its sites in the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tpo.lang import analysis, sites
from tpo.lang.constraints import Constraint
from tpo.lang.distributions import Distribution
from tpo.lang.effects import Declined, Handler, Message, RuleUsageError
from tpo.lang.rules import Rule
from tpo.workload import Workload, schedule_of


@dataclass
class Applied:
    """A rule that was applied to a block: one way through its forks.

    Names of sites are whole ones, `rule/block/site`, unique in a sketch. `program` is what the schedule
    starts from where the rule has restated the function.
    """

    rule: Rule
    block: str
    sch: Any
    forks: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, Distribution] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)
    program: Workload | None = None

    @property
    def label(self) -> str:
        """The rule and its structural choices, for people."""
        chosen = ",".join(f"{name}={_short(value)}" for name, value in self.forks.items())
        return f"{self.rule.name}/{chosen}" if chosen else self.rule.name


def apply_rule(rule: Rule, sch: Any, block: Any, hw: Any, first_only: bool = False) -> list[Applied]:
    """All ways a rule can be applied to a block of a schedule, which itself stays as it is.

    A rule runs once for every combination of its forks; `first_only` takes the first option of each.
    Ways that the rule declines are left out; if it declines all, `Declined` has the first reason.

    >>> from tpo.lang import fork, rule
    >>> from tpo.testing.corpus import example
    >>> @rule()
    ... def forked(sch, block, hw):
    ...     fork("side", ["left", "right"])
    >>> [way.forks for way in apply_rule(forked, *example())]
    [{'side': 'left'}, {'side': 'right'}]
    """
    if rule.native is not None:
        return _apply_native(rule, sch, block)
    found: list[Applied] = []
    refusals: list[Declined] = []
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        application = _Application(rule, _own_copy(sch), block, path)
        try:
            with application:
                rule.apply(application.applied.sch, block, hw)
            found.append(application.applied)
        except Declined as refusal:
            refusals.append(refusal)
        if not first_only:
            paths += reversed(application.untaken)
    if not found and refusals:
        raise refusals[0]
    return found


def _apply_native(rule: Rule, sch: Any, block: Any) -> list[Applied]:
    """The ways of a rule of TVM's own; what stays as it was counts as declined."""
    name, before = str(analysis.stmt_of(sch, block).name_hint), len(sch.trace.insts)
    ways = list(rule.native.apply(_own_copy(sch), block))
    if len(ways) == 1 and len(ways[0].trace.insts) == before:
        raise Declined("TVM's rule leaves it as it is")
    return [Applied(rule, name, way, {"way": k} if len(ways) > 1 else {}) for k, way in enumerate(ways)]


def _own_copy(sch: Any) -> Any:
    """A copy that can be changed without the original changing too.

    TVM copies statements when they change, but misses those below a root block that was replaced by
    itself (annotated) while its body was shared: so the body is replaced first, and not traced.
    """
    copy = sch.copy()
    traced = len(copy.trace.insts)
    for block in copy.get_child_blocks(copy.get_sblock("root"))[:1]:
        copy.annotate(block, "tpo.own", 0)
        copy.unannotate(block, "tpo.own")
    while len(copy.trace.insts) > traced:
        copy.trace.pop()
    return copy


class _Application(Handler):
    """The outermost handler: emits what nobody has decided, and remembers everything."""

    def __init__(self, rule: Rule, sch: Any, block: Any, path: tuple[int, ...]) -> None:
        self.applied = Applied(rule, str(analysis.stmt_of(sch, block).name_hint), sch)
        self.untaken: list[tuple[int, ...]] = []  # paths that differ from this one in their last step
        self._block = block
        self._fresh = analysis.is_fresh(sch, block)
        self._path = path
        self._taken: tuple[int, ...] = ()
        self._variables: dict[Any, tuple[str, int]] = {}

    def process(self, message: Message) -> None:
        if message.kind == "constrain":
            self.applied.constraints.append(Constraint.of(message.condition, message.name, self._variables))
            message.decide(None)
        elif message.kind == "fork":
            self._fork(message)
        elif message.kind == "restate":
            self._restate(message)
        else:
            self._sample(message)

    def _fork(self, message: Message) -> None:
        self._claim(message.name, self.applied.forks)
        if not message.decided:
            step = len(self._taken)
            chosen = self._path[step] if step < len(self._path) else 0
            if step >= len(self._path):
                self.untaken += [(*self._taken, k) for k in range(1, len(message.options))]
            self._taken = (*self._taken, chosen)
            message.decide(message.options[chosen])
        self.applied.forks[message.name] = message.value

    def _sample(self, message: Message) -> None:
        name = f"{self.applied.rule.name}/{self.applied.block}/{message.name}"
        self._claim(name, self.applied.sites)
        if message.decided:
            return
        assert message.distribution is not None
        value = message.distribution.emit(self.applied.sch)
        sites.mark(self.applied.sch, self._block, name, value)
        self.applied.sites[name] = message.distribution
        for position, variable in enumerate(sites.variables(value)):
            self._variables[variable] = (name, position)
        message.decide(value)

    def _restate(self, message: Message) -> None:
        if not self._fresh or self.applied.sites:
            raise RuleUsageError("a function that has been scheduled, or sampled for, cannot be restated")
        self.applied.program = Workload.of(message.options[0])
        self.applied.sch = schedule_of(self.applied.program.module)
        self._block = self.applied.sch.get_sblock("root")
        message.decide(self.applied.sch)

    def _claim(self, name: str, taken: dict[str, Any]) -> None:
        if name in taken:
            raise RuleUsageError(
                f"all sites and forks of a rule must have different names, but {name!r} occurs twice"
            )


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
