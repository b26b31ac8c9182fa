"""The space of one workload: sketches from our rules, the user's and TVM's, and the candidates in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tvm import s_tir
from tvm.s_tir.schedule import Trace

from tpo.schedule import UNSCHEDULED, default_schedule
from tpo.schedule.rules import Rule, load_rules, shipped_rules
from tpo.space import tvm_rules
from tpo.space.candidate import Candidate, plain
from tpo.targets import Target
from tpo.workload import Workload

MAX_SEED = 2**31 - 2  # of TVM's random numbers
MAX_FORGOTTEN = 3  # sites that one mutation decides anew

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sketch:
    """A structure: instructions whose sampling sites, `sites` of them, are not decided.

    `preferred` are the same instructions with the decisions the rule itself would make.
    """

    name: str
    trace: Any
    sites: int
    preferred: Any


@dataclass(frozen=True)
class Problem:
    """A rule that failed on this workload, and what it said."""

    rule: str
    message: str


@dataclass
class Space:
    """All programs that a set of rules can make of one workload.

    Everything is a function of its arguments and of seeds: the same call gives the same candidate.
    """

    workload: Workload
    target: Target
    context: Any  # TVM's, which its postprocessors belong to
    sketches: list[Sketch] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @cached_property
    def _default(self) -> Candidate:
        made = default_candidate(self.workload, self.target)
        structure = _undecided(made.trace)
        names = (sketch.name for sketch in self.sketches if _same(sketch.trace, structure))
        return replace(made, sketch=next(names, made.sketch))

    def default(self) -> Candidate:
        """The program a function gets that was never tuned."""
        return self._default

    def preferred(self, sketch: Sketch) -> Candidate | None:
        """The candidate of a sketch that its rule would choose; None if TVM refuses it."""
        return self._apply(sketch.preferred, sketch.name, seed=1)

    def sample(self, sketch: Sketch, seed: int) -> Candidate | None:
        """A random candidate of a sketch; None if TVM refuses what was drawn."""
        return self._apply(sketch.trace, sketch.name, seed)

    def mutate(self, candidate: Candidate, rng: np.random.Generator) -> Candidate | None:
        """The candidate with one to three of its decisions drawn anew; None if TVM refuses them."""
        sites = _sites(candidate.trace)
        if not sites:
            return None
        count = int(rng.integers(1, min(MAX_FORGOTTEN, len(sites)) + 1))
        forgotten = {int(k) for k in rng.choice(len(sites), count, replace=False)}
        decisions = candidate.trace.decisions
        kept = {site: decisions[site] for k, site in enumerate(sites) if k not in forgotten}
        return self._apply(Trace(candidate.trace.insts, kept), candidate.sketch, draw_seed(rng))

    def transfer(self, candidate: Candidate) -> Candidate | None:
        """Another workload's candidate in this space: its decisions in the sketch of the same name."""
        sketch = next((sketch for sketch in self.sketches if sketch.name == candidate.sketch), None)
        if sketch is None:
            return None
        sites, theirs = _sites(sketch.trace), _sites(candidate.trace)
        if [site.kind.name for site in sites] != [site.kind.name for site in theirs]:
            return None
        decisions = {
            site: candidate.trace.decisions[other] for site, other in zip(sites, theirs, strict=True)
        }
        return self._apply(Trace(sketch.trace.insts, decisions), sketch.name, seed=1)

    def replay(self, trace_json: str, sketch: str = "") -> Candidate:
        """The candidate of a stored trace; an error of TVM's where the trace is not for this workload."""
        sch = self._schedule(seed=1)
        Trace.apply_json_to_schedule(json.loads(trace_json), sch)
        return Candidate(sketch, sch.trace, sch.mod)

    def _apply(self, trace: Any, name: str, seed: int) -> Candidate | None:
        """Replay a trace, drawing what is not decided, and let TVM's postprocessors finish TVM's sketches."""
        sch = self._schedule(seed)
        try:
            trace.apply_to_schedule(sch, remove_postproc=True)
            if _is_tvm(name):
                sch.enter_postproc()
                if not all(step.apply(sch) for step in self.context.space_generator.postprocs):
                    return None
        except Exception as error:  # TVM's schedule primitives raise many kinds of errors
            _log.debug("%s with seed %d: %s", name, seed, error)
            return None
        return Candidate(name, sch.trace, sch.mod)

    def _schedule(self, seed: int) -> Any:
        return s_tir.Schedule(self.workload.module, seed=seed, error_render_level="fast")


def default_candidate(workload: Workload, target: Target) -> Candidate:
    """What a function gets that was never tuned: itself, if no rule takes it. It needs no space."""
    found = default_schedule(workload.module, target.hardware)
    sch, rule = found or (s_tir.Schedule(workload.module), UNSCHEDULED)
    return Candidate(rule, sch.trace.simplified(remove_postproc=False), sch.mod)


def build_space(workload: Workload, target: Target, rules: Sequence[Path] = ()) -> Space:
    """The space of a workload by tpo's rules, the rule files or folders in `rules`, and TVM's own rules."""
    space = Space(workload, target, tvm_rules.context(workload.module, target))
    for rule in (*shipped_rules(), *load_rules(rules)):
        _add_rule(space, rule)
    try:
        found = space.context.generate_design_space()
    except Exception as error:  # TVM's rules meet functions they were not made for
        _report(space, "tvm", error)
        found = []
    for k, sch in enumerate(found):
        _add_sketch(space, f"tvm/{k}", sch.trace.simplified(remove_postproc=True))
    return space


def draw_seed(rng: np.random.Generator) -> int:
    """A seed for one schedule of TVM's."""
    return int(rng.integers(1, MAX_SEED + 1))


def _add_rule(space: Space, rule: Rule) -> None:
    """Add the sketches of one rule; what goes wrong in it stays its own problem."""
    hw = space.target.hardware
    choices: list[dict[str, Any]] = [{}]
    try:
        if rule.choices is not None:
            choices = rule.choices(space._schedule(seed=1), hw)
    except Exception as error:  # a rule may be anybody's code
        _report(space, rule.name, error)
        return
    for choice in choices:
        label = ",".join(f"{name}={value}" for name, value in choice.items())
        name = f"{rule.name}/{label}" if label else rule.name
        sch = space._schedule(seed=1)
        try:
            if rule.schedule(sch, hw, **choice):
                _add_sketch(space, name, sch.trace.simplified(remove_postproc=True))
        except Exception as error:
            _report(space, name, error)


def _add_sketch(space: Space, name: str, trace: Any) -> None:
    free = _undecided(trace)
    plain(free.as_json())  # a trace that cannot be stored is refused here, not after it was measured
    if not any(_same(free, sketch.trace) for sketch in space.sketches):
        space.sketches.append(Sketch(name, free, len(_sites(free)), trace))


def _report(space: Space, name: str, error: Exception) -> None:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    space.problems.append(Problem(name, lines[-1]))
    _log.debug("rule %s failed", name, exc_info=error)


def _sites(trace: Any) -> list[Any]:
    """The sampling instructions of a trace."""
    return [inst for inst in trace.insts if inst.kind.name.startswith("Sample")]


def _undecided(trace: Any) -> Any:
    return Trace(trace.insts, {})


def _same(trace: Any, other: Any) -> bool:
    """Whether two traces are the same instructions."""
    return len(trace.insts) == len(other.insts) and plain(trace.as_json()) == plain(other.as_json())


def _is_tvm(sketch: str) -> bool:
    return sketch.startswith("tvm/")
