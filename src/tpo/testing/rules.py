"""Does a rule keep its promises? It is applied to a corpus, and what it makes is run, stored and mutated.

`check_rule` is what `tpo rules check` prints. As a pytest suite:

    class TestMyRule(tpo.testing.rules.RuleContract):
        rule = my_rule
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tvm
import tvm_ffi

from tpo import vector_math
from tpo.lang import Declined, Rule, analysis, apply_rule
from tpo.measure import data
from tpo.measure.cuda import program_of
from tpo.measure.kernels import Kernel
from tpo.measure.packing import SplitKernel, split_kernel, written_parameters
from tpo.space import tvm_rules
from tpo.space.candidate import Candidate
from tpo.space.compose import Problem, compose
from tpo.space.decisions import sites_of
from tpo.space.space import Sketch, Space, sketch_of
from tpo.targets import CUDA, Target, resolve
from tpo.testing import corpus, emulation
from tpo.workload import Workload, schedule_of

SAMPLES, EMULATED_SAMPLES = 3, 1  # candidates of every sketch that are built and run; on a GPU's emulator


@dataclass(frozen=True)
class Outcome:
    """What a rule did to one workload: how many sketches and sites, why it declined, what went wrong."""

    workload: str
    sketches: int = 0
    sites: int = 0
    candidates: int = 0
    declined: str = ""
    problems: tuple[str, ...] = ()


def check_rule(
    rule: Rule, target: Target | None = None, names: Sequence[str] | None = None
) -> Iterator[Outcome]:
    """Apply a rule to every workload of the corpus, and try what it makes; a GPU's is emulated."""
    vector_math.register()
    target = target or resolve(CUDA if rule.target == CUDA else "native")
    for name in names if names is not None else corpus.names_for(target):
        yield _check(rule, target, name, corpus.workload(name))


def _check(rule: Rule, target: Target, name: str, workload: Workload) -> Outcome:
    found: list[Problem] = []
    drafts = compose(workload.module, [rule], target.device, found.append)
    problems = [f"{p.message} (block {p.block}, {p.where})" for p in found]
    if not drafts:
        return Outcome(name, declined=_reason(rule, target, workload), problems=tuple(problems))
    space = Space(workload, target, tvm_rules.context(workload.module, target))
    sketches = [sketch_of(draft) for draft in drafts]
    space.sketches.extend(sketches)
    candidates = 0
    for sketch in sketches:
        for seed in range(1, (SAMPLES if target.gpu is None else EMULATED_SAMPLES) + 1):
            candidate = space.sample(sketch, seed)
            if candidate is None:
                problems.append(f"{sketch.name}: TVM refuses the candidate of seed {seed}")
                continue
            candidates += 1
            problems += [f"{sketch.name}: {text}" for text in _faults(space, sketch, candidate, seed)]
    sites = sum(len(sketch.sites) for sketch in sketches)
    return Outcome(name, len(sketches), sites, candidates, problems=tuple(dict.fromkeys(problems)))


def _faults(space: Space, sketch: Sketch, candidate: Candidate, seed: int) -> Iterator[str]:
    """Everything wrong with one candidate."""
    again = space.replay(candidate.trace_json, candidate.sketch, candidate.program)
    if not tvm_ffi.structural_equal(again.module, candidate.module):
        yield "its stored trace gives another program"
    if [site.name for site in sketch.sites] != [site.name for site in sites_of(again.trace)]:
        yield "the names of its sites are lost in its stored trace"
    rng = np.random.default_rng(seed)
    for site in sketch.sites:
        distribution = site.distribution
        if distribution is not None and distribution.support() > 1:
            decision = distribution.draw(rng)
            if distribution.mutate(decision, rng) == decision:
                yield f"site {site.name} does not mutate"
    found = space.row(candidate)
    if found is None or not sketch.domain.allowed(found[1][None])[0]:
        yield "it breaks a constraint"
    try:
        error = _difference(space, candidate)
    except Exception as raised:  # a candidate may make TVM raise anything
        error = (str(raised).strip().splitlines() or [type(raised).__name__])[-1]
    if error:
        yield error


def _difference(space: Space, candidate: Candidate) -> str:
    """What is wrong with a candidate's numbers ("" if nothing)."""
    if space.target.gpu is not None:
        return emulation.difference(space.workload, program_of(candidate.module, space.target.tvm))
    func = space.workload.module["main"]
    known = data.signature(func, written_parameters(func))
    rng = np.random.default_rng(0)
    arrays = [data.random_array(s, d, rng) for s, d in zip(known.shapes, known.dtypes, strict=True)]
    want = _run(SplitKernel(func), arrays, space.target)
    split = split_kernel(candidate.module["main"], written_parameters(candidate.module["main"]))
    got = _run(split, arrays, space.target)
    wrong = [data.difference(got[k], want[k])[1] for k in known.outputs]
    return next((text for text in wrong if text), "")


def _run(split: SplitKernel, arrays: list[Any], target: Target) -> list[Any]:
    kernel = Kernel(split, "", target.tvm)
    values = [array.copy() for array in arrays]
    if split.packed:
        for k, packed in zip(split.packed, kernel.pack([arrays[k] for k in split.packed]), strict=True):
            values[k] = packed
    tensors = [tvm.runtime.tensor(value) for value in values]
    kernel.function(*tensors)
    return [tensor.numpy() for tensor in tensors]


def _reason(rule: Rule, target: Target, workload: Workload) -> str:
    """Why a rule did nothing to a workload."""
    sch = schedule_of(workload.module)
    reasons: list[str] = []
    for block in [sch.get_sblock("root"), *analysis.blocks(sch)]:
        try:
            if rule.applies(sch, block):
                apply_rule(rule, sch, block, target.device)
        except Declined as refusal:
            reasons.append(str(refusal))
        except Exception as error:  # said as a problem already
            reasons.append(f"it failed: {type(error).__name__}")
    return reasons[0] if reasons else "its `when` takes no block of it"


class RuleContract:
    """A pytest suite: subclass it with `rule`, and with the workloads it must apply to in `applies_to`."""

    rule: ClassVar[Rule]
    applies_to: ClassVar[Sequence[str]] = ()

    def test_what_the_rule_makes_is_right(self) -> None:
        """Every sketch on every workload computes the same numbers, can be stored, and mutates."""
        problems = {o.workload: o.problems for o in check_rule(self.rule) if o.problems}
        assert not problems

    def test_the_rule_applies_where_it_should(self) -> None:
        """It makes a sketch of every workload it is meant for."""
        applied = {o.workload for o in check_rule(self.rule, names=self.applies_to) if o.sketches}
        assert applied == set(self.applies_to)
