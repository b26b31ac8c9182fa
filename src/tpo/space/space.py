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
from numpy.typing import NDArray
from tvm import s_tir
from tvm.s_tir.schedule import Trace

from tpo.errors import RuleFileError
from tpo.lang import Constraint, Rule
from tpo.lang.distributions import Decision
from tpo.lang.library import added_rules, load_rules, shipped_rules
from tpo.lang.sites import sampling
from tpo.schedule import UNSCHEDULED, default_schedule, rules_for
from tpo.space import tvm_rules
from tpo.space.candidate import Candidate, plain
from tpo.space.compose import Draft, Problem, compose, message_of
from tpo.space.decisions import Domain, Rows, Site, Size, as_decision, decisions_of, sites_of
from tpo.targets import Target
from tpo.workload import Workload, schedule_of

MAX_SEED = 2**31 - 2  # of TVM's random numbers

_MARKS = {
    f"meta_schedule.{mark}"
    for mark in ("parallel", "vectorize", "unroll_explicit", "unroll_implicit", "auto_tensorize")
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sketch:
    """A structure: instructions whose sampling sites are not decided.

    `preferred` are the same instructions with the decisions the rules themselves would make. `authors`
    says of every instruction which rule made it at which block; TVM's own rules do not tell. `program` is
    what the instructions start from, if that is not the workload itself.
    """

    name: str
    trace: Any
    preferred: Any
    sites: tuple[Site, ...]
    constraints: tuple[Constraint, ...] = ()
    authors: tuple[str, ...] = ()
    program: Workload | None = None

    @classmethod
    def of(cls, name: str, trace: Any) -> Sketch:
        """The structure of a trace of which nothing else is known."""
        return cls(name, Trace(trace.insts, {}), trace, sites_of(trace))

    @cached_property
    def domain(self) -> Domain:
        """All its decisions, as rows of numbers."""
        return Domain(self.sites, self.constraints)

    @property
    def size(self) -> Size:
        """How many candidates there are, before and after constraints."""
        return self.domain.size

    @cached_property
    def preferred_row(self) -> Rows:
        """The decisions its rules would make, as the only row; none where that is not known."""
        row = self.domain.row(decisions_of(self.preferred))
        return np.zeros((0, len(self.sites)), np.int64) if row is None else row[None]


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

    @property
    def key(self) -> str:
        """The workload's."""
        return self.workload.key

    @cached_property
    def _default(self) -> Candidate:
        made = default_candidate(self.workload, self.target)
        structure = Trace(made.trace.insts, {})
        names = (sketch.name for sketch in self.sketches if _same(sketch, structure, made.program))
        return replace(made, sketch=next(names, made.sketch))

    def default(self) -> Candidate:
        """The program a function gets that was never tuned."""
        return self._default

    def preferred(self, sketch: Sketch) -> Candidate | None:
        """The candidate of a sketch that its rule would choose; None if TVM refuses it."""
        return self._apply(sketch.preferred, sketch.name, sketch.program, seed=1)

    def sample(self, sketch: Sketch, seed: int) -> Candidate | None:
        """A random candidate of a sketch; None if TVM refuses what was drawn."""
        drawn = sketch.domain.draw(1, np.random.default_rng(seed))
        return self.at(sketch, drawn[0], seed) if len(drawn) else None

    def at(self, sketch: Sketch, row: NDArray[np.int64], seed: int = 1) -> Candidate | None:
        """The candidate of a sketch that decides as the row says; None if TVM refuses it."""
        trace = decided(sketch.trace, sketch.domain.decisions(row))
        return self._apply(trace, sketch.name, sketch.program, seed)

    def row(self, candidate: Candidate) -> tuple[Sketch, NDArray[np.int64]] | None:
        """The sketch of a candidate and its row there; None if it is none of this space's."""
        sketch = self.sketch(candidate.sketch)
        row = None if sketch is None else sketch.domain.row(decisions_of(candidate.trace))
        return None if sketch is None or row is None else (sketch, row)

    def mutate(self, candidate: Candidate, rng: np.random.Generator) -> Candidate | None:
        """The candidate with one to three of its decisions changed; None if TVM refuses them."""
        found = self.row(candidate)
        if found is None:
            return None
        sketch, row = found
        (changed,) = sketch.domain.mutate(row[None], rng)
        return self.at(sketch, changed, draw_seed(rng))

    def decision(self, candidate: Candidate, site: int) -> Decision:
        """What a candidate has decided at a site."""
        return as_decision(candidate.trace.decisions[sampling(candidate.trace)[site]])

    def sketch(self, name: str) -> Sketch | None:
        """The sketch of a name."""
        return next((sketch for sketch in self.sketches if sketch.name == name), None)

    def transfer(self, candidate: Candidate) -> Candidate | None:
        """Another workload's candidate in this space: its decisions in the sketch of the same name."""
        sketch = self.sketch(candidate.sketch)
        if sketch is None:
            return None
        sites, theirs = sampling(sketch.trace), sampling(candidate.trace)
        if [site.kind.name for site in sites] != [site.kind.name for site in theirs]:
            return None
        decisions = {
            site: candidate.trace.decisions[other] for site, other in zip(sites, theirs, strict=True)
        }
        return self._apply(Trace(sketch.trace.insts, decisions), sketch.name, sketch.program, seed=1)

    def replay(self, trace_json: str, sketch: str = "", program: Workload | None = None) -> Candidate:
        """The candidate of a stored trace; an error of TVM's where the trace is not for this workload."""
        sch = schedule_of((program or self.workload).module)
        Trace.apply_json_to_schedule(json.loads(trace_json), sch)
        return Candidate(sketch, sch.trace, sch.mod, program)

    def _apply(self, trace: Any, name: str, program: Workload | None, seed: int) -> Candidate | None:
        """Replay a trace, drawing what is not decided, and let TVM's postprocessors finish TVM's sketches."""
        sch = schedule_of((program or self.workload).module, seed)
        try:
            trace.apply_to_schedule(sch, remove_postproc=True)
            if _is_marked(trace):
                sch.enter_postproc()
                if not all(step.apply(sch) for step in self.context.space_generator.postprocs):
                    return None
        except Exception as error:  # TVM's schedule primitives raise many kinds of errors
            _log.debug("%s with seed %d: %s", name, seed, error)
            return None
        return Candidate(name, sch.trace, sch.mod, program)


def default_candidate(workload: Workload, target: Target) -> Candidate:
    """What a function gets that was never tuned: itself, if no rule takes it. It needs no space."""
    found = default_schedule(workload.module, target.device)
    if found is None:
        sch = s_tir.Schedule(workload.module)
        return Candidate(UNSCHEDULED, sch.trace, sch.mod)
    trace = found.sch.trace.simplified(remove_postproc=False)
    return Candidate(found.rule.name, trace, found.sch.mod, found.program)


def build_space(workload: Workload, target: Target, rules: Sequence[Path] = ()) -> Space:
    """The space of a workload by the user's rules, tpo's, and TVM's own."""
    space = Space(workload, target, tvm_rules.context(workload.module, target))
    kind = rules_for(target.device)
    kinds = ("any", kind) if target.gpu is not None else ("any", "cpu", kind)
    used = [*_wanted(rules, workload, target), *added_rules(), *shipped_rules(kind)]
    suited = [rule for rule in used if rule.target in kinds]
    for draft in compose(workload.module, suited, target.device, space.problems.append):
        try:
            _add_sketch(space, sketch_of(draft))
        except Exception as error:  # a trace that cannot be stored is refused here, not after it was measured
            space.problems.append(Problem(draft.name, message_of(error)))
    try:
        found = space.context.generate_design_space()
    except Exception as error:  # TVM's rules meet functions they were not made for
        space.problems.append(Problem("tvm", message_of(error)))
        found = []
    for k, sch in enumerate(found):
        _add_sketch(space, Sketch.of(f"tvm/{k}", sch.trace.simplified(remove_postproc=True)))
    return space


def _wanted(names: Sequence[Path], workload: Workload, target: Target) -> list[Rule]:
    """The user's rules: those of files and folders, and TVM's own by name."""
    found: list[Rule] = []
    for name in names:
        if str(name).startswith(tvm_rules.PREFIX):
            known = tvm_rules.named_rules(workload.module, target)
            if str(name) not in known:
                raise RuleFileError(path=name, why=f"TVM has {', '.join(known)}")
            found.append(known[str(name)])
        else:
            found += load_rules([name])
    return found


def draw_seed(rng: np.random.Generator) -> int:
    """A seed for one schedule of TVM's."""
    return int(rng.integers(1, MAX_SEED + 1))


def sketch_of(draft: Draft) -> Sketch:
    """The structure of what rules have made, with the names, constraints and authors they gave."""
    trace = draft.sch.trace.simplified(remove_postproc=True)
    known = {name: site for applied in draft.applied for name, site in applied.sites.items()}
    sites = tuple(Site(site.name, known.get(site.name, site.distribution)) for site in sites_of(trace))
    names = {site.name for site in sites}
    constraints = [c for applied in draft.applied for c in applied.constraints]
    authors = [
        next((f"{r} @ {b}" for i, r, b in draft.authors if i.same_as(inst)), "") for inst in trace.insts
    ]
    return Sketch(
        draft.name,
        Trace(trace.insts, {}),
        trace,
        sites,
        tuple(c for c in constraints if all(name in names for name, _ in c.sites)),
        tuple(authors),
        draft.program,
    )


def _add_sketch(space: Space, sketch: Sketch) -> None:
    plain(sketch.trace.as_json())
    if not any(_same(other, sketch.trace, sketch.program) for other in space.sketches):
        space.sketches.append(sketch)


def decided(trace: Any, decisions: Sequence[Decision | None]) -> Any:
    """The instructions of a trace with these decisions; TVM draws where there is None."""
    pairs = zip(sampling(trace), decisions, strict=True)
    return Trace(trace.insts, {inst: _plain_decision(value) for inst, value in pairs if value is not None})


def _plain_decision(decision: Decision) -> Any:
    return decision if isinstance(decision, int) else list(decision)


def _same(sketch: Sketch, trace: Any, program: Workload | None) -> bool:
    """Whether a sketch is these instructions, starting from the same program."""
    programs = {None if start is None else start.key for start in (sketch.program, program)}
    return (
        len(programs) == 1
        and len(sketch.trace.insts) == len(trace.insts)
        and plain(sketch.trace.as_json()) == plain(trace.as_json())
    )


def _is_marked(trace: Any) -> bool:
    """Whether a rule has left marks for TVM's postprocessors to carry out."""
    marks = (str(inst.attrs[0]) for inst in trace.insts if inst.kind.name == "Annotate")
    return any(mark in _MARKS for mark in marks)
