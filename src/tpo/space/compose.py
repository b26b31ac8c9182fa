"""Rules x blocks: every sketch that a list of rules makes of one function.

Rule after rule, block after block, the function's own block first and then from its last block to its
first, as TVM's PostOrderApply does it. A rule that raises is reported, and the run goes on without it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from tpo.hardware import Gpu, Hardware
from tpo.lang import Applied, Declined, Rule, analysis, apply_rule
from tpo.workload import Workload, schedule_of

MAX_DRAFTS = 64  # sketches of one function, beyond which rules are no longer left out


@dataclass(frozen=True)
class Problem:
    """A rule that failed on a block, and what it said; `where` is the line of its file that raised."""

    rule: str
    message: str
    block: str = ""
    where: str = ""

    @property
    def place(self) -> str:
        """Block and line, as a part of a sentence."""
        return f", block {self.block} ({self.where})" if self.block else ""


@dataclass(frozen=True)
class Draft:
    """A schedule that rules have been applied to, and which did what."""

    sch: Any
    applied: tuple[Applied, ...] = ()
    authors: tuple[tuple[Any, str, str], ...] = ()  # (instruction, rule, block)

    @property
    def program(self) -> Workload | None:
        """What the schedule starts from, if a rule has restated the function."""
        return next((applied.program for applied in self.applied if applied.program is not None), None)

    @property
    def name(self) -> str:
        """The rules that made it and their structural choices."""
        return "+".join(applied.label for applied in self.applied)

    def extended(self, applied: Applied) -> Draft:
        """With one more rule applied."""
        known = 0 if applied.program is not None else len(self.sch.trace.insts)
        made = [(inst, applied.rule.name, applied.block) for inst in list(applied.sch.trace.insts)[known:]]
        return Draft(applied.sch, (*self.applied, applied), (*self.authors, *made))


Report = Callable[[Problem], None]


def compose(module: Any, rules: Sequence[Rule], hw: Hardware | Gpu, report: Report) -> list[Draft]:
    """All schedules the rules make of `module["main"]`; those that no rule had a part in are left out."""
    start = Draft(schedule_of(module))
    try:
        order = [start.sch.get_sblock("root"), *reversed(analysis.blocks(start.sch))]
    except s_tir.ScheduleError:  # a function without blocks, such as a sort
        return []
    drafts = [start]
    for rule in rules:
        for block in order:
            drafts = [made for draft in drafts for made in _step(draft, rule, block, hw, report, len(drafts))]
    return [draft for draft in drafts if draft.applied]


def _step(
    draft: Draft, rule: Rule, block: Any, hw: Hardware | Gpu, report: Report, drafts: int
) -> list[Draft]:
    """A draft with a rule applied to a block in every way, and without it where it is not a must."""
    if not has_block(draft.sch, block):
        return [draft]
    name = str(analysis.stmt_of(draft.sch, block).name_hint)
    try:
        if not rule.applies(draft.sch, block):
            return [draft]
        ways = apply_rule(rule, draft.sch, block, hw)
    except Declined:
        return [draft]
    except Exception as error:  # a rule may be anybody's code
        report(Problem(rule.name, message_of(error), name, _where(error, rule)))
        return [draft]
    made = [draft.extended(way) for way in ways]
    return made if rule.always or drafts >= MAX_DRAFTS else [*made, draft]


def has_block(sch: Any, block: Any) -> bool:
    """Whether a block is still there: it may have been inlined."""
    try:
        analysis.stmt_of(sch, block)
    except (IndexError, ValueError, RuntimeError):
        return False
    return True


def message_of(error: Exception) -> str:
    """What an error says: TVM puts the message of a failed check last, after the stack."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[-1] if len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _where(error: Exception, rule: Rule) -> str:
    """The innermost line of the rule's own file that raised."""
    own = rule.source.rsplit(":", 1)[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(own)]
    return f"{own}:{frames[-1].lineno}" if own and frames else rule.source
