"""The state of one tuning run: its tasks, their spaces and strategies, its budget, its random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tpo.frontend.model import Model
from tpo.lang.library import load_rules
from tpo.measure import Failure, Measurement
from tpo.records import Records, Run, Trial, target_key
from tpo.records.record import SECONDS
from tpo.search import Strategy, TaskScheduler, estimate_seconds
from tpo.space import Candidate, Space, build_space, default_candidate
from tpo.space.tvm_rules import PREFIX
from tpo.targets import Target
from tpo.tasks import extract_tasks
from tpo.tuning import places, strategies
from tpo.tuning.budget import Budget
from tpo.tuning.config import TuneConfig
from tpo.tuning.events import Event, Warned
from tpo.tuning.groups import Member, group_tasks
from tpo.tuning.ledger import Entry, Ledger

Callback = Callable[[Event], None]
# Recorded trials a strategy is reminded of when it starts: replaying one takes about 10 ms.
_REMEMBERED = 64


def check(model: Model, config: TuneConfig) -> None:
    """Refuse what cannot work before anything is written: patterns without a task, rules that do not load."""
    config.select([task.name for task in extract_tasks(model)])
    load_rules(_files(config))


def _files(config: TuneConfig) -> list[Path]:
    """The rule files of a configuration, without what it calls TVM's own rules by."""
    return [Path(rule) for rule in config.rules if not rule.startswith(PREFIX)]


class Session:
    """Everything a run works with. All randomness is `rng`, whose state is stored after every batch."""

    def __init__(
        self,
        model: Model,
        target: Target,
        config: TuneConfig,
        records: Records,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model, self.target, self.config, self.records = model, target, config, records
        self.threads = config.threads or target.hardware.cores
        self.place = places.place(target, config.measure)  # None: this machine
        self.unit = SECONDS if self.place is None else self.place.unit
        self.target_key = target_key(target.tvm, self.unit)
        self.run = ""
        self._callbacks = callbacks
        tasks = extract_tasks(model)
        chosen = set(config.select([task.name for task in tasks]))
        groups = group_tasks([task for task in tasks if task.name in chosen])
        entries = [Entry(group, estimate_seconds(group.leader.task, target.hardware)) for group in groups]
        entries.sort(key=lambda entry: -entry.estimated_seconds * entry.weight)
        self.ledger = Ledger(entries)
        self.touched_bytes = sum(task.bytes * task.weight for task in tasks)  # by one run of the model
        limit = config.trial_limit(len(entries))
        self.budget = Budget(limit, config.minutes)
        self.scheduler = TaskScheduler(
            [(entry.key, entry.weight, entry.estimated_seconds) for entry in entries], limit, config.batch
        )
        self.rng = np.random.default_rng(config.seed)
        self.cost = strategies.cost_model(config, self.threads)
        self.taught = {entry.key for entry in entries}  # workloads the cost model hears, or has heard, of
        self._spaces: dict[str, Space] = {}
        self._defaults: dict[str, Candidate] = {}
        self._strategies: dict[str, Strategy] = {}
        self._entries = {entry.key: entry for entry in entries}

    def emit(self, event: Event) -> None:
        """Tell everybody who listens."""
        for callback in self._callbacks:
            callback(event)

    def entry(self, key: str) -> Entry:
        """The task whose leader has this workload."""
        return self._entries[key]

    def space(self, member: Member) -> Space:
        """The space of a task's workload, made when it is first needed."""
        key = member.workload.key
        if key not in self._spaces:
            rules = [Path(rule) for rule in self.config.rules]
            space = self._spaces[key] = build_space(member.workload, self.target, rules)
            self._report_problems(member, space)
        return self._spaces[key]

    def _report_problems(self, member: Member, space: Space) -> None:
        """Say what the user's own rules could not do; ours and TVM's decline as they like."""
        own = {rule.name for rule in load_rules(_files(self.config))}
        for problem in space.problems:
            if problem.rule.split("/")[0] in own:
                self.emit(
                    Warned(
                        f"rule {problem.rule} failed on {member.task.name}{problem.place}: {problem.message}"
                    )
                )

    def default(self, member: Member) -> Candidate:
        """The program a task has without tuning; it needs no space, and most tasks get no further."""
        key = member.workload.key
        if key not in self._defaults:
            self._defaults[key] = default_candidate(member.workload, self.target)
        return self._defaults[key]

    def strategy(self, entry: Entry) -> Strategy:
        """The search of a task, reminded of what the store has about it."""
        if entry.key not in self._strategies:
            space = self.space(entry.group.leader)
            made = self._strategies[entry.key] = strategies.strategy(self, space)
            made.observe(self._remembered(space))
        return self._strategies[entry.key]

    def learn(self, entry: Entry, measured: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Tell a task's search what was measured; one that has not begun yet will read it in the store."""
        if entry.key in self._strategies:
            self._strategies[entry.key].observe(measured)

    def save_state(self) -> None:
        """Store what a later process needs to go on here."""
        state = {
            "rng": self.rng.bit_generator.state,
            "scheduler": self.scheduler.state(),
            "elapsed": self.budget.elapsed,
        }
        self.records.save_state(self.run, state)

    def restore(self, run: Run) -> None:
        """Go on where an interrupted run was."""
        self.run = run.id
        if run.state is not None:
            self.rng.bit_generator.state = dict(run.state["rng"])
            self.scheduler.restore(dict(run.state["scheduler"]))
            self.budget.resume(0, float(run.state["elapsed"]))

    def recall(self) -> None:
        """Enter what the store already knows: times of every task, and the trials of a resumed run."""
        for entry in self.ledger.entries:
            for trial in self.records.trials(entry.key, self.target_key):
                if trial.tvm != self.records.tvm_version:
                    continue
                if trial.run == self.run:
                    self._recall_own(entry, trial)
                if trial.ok and trial.candidate == self.default(entry.group.leader).key:
                    entry.default_seconds = trial.seconds
            best = self.records.best(entry.key, self.target_key)
            if best is not None:
                entry.best_seconds, entry.sketch = best.seconds, best.sketch
            progress = self.scheduler.tasks[entry.key]
            progress.trials, progress.best = entry.trials, entry.best_seconds
        self.budget.resume(self.ledger.trials, 0.0)

    def _recall_own(self, entry: Entry, trial: Trial) -> None:
        entry.trials += 1
        self.ledger.trials += 1
        if trial.failure is not None:
            entry.failed += 1
            self.ledger.failures[trial.failure] += 1

    def replay(self, space: Space, trial: Trial) -> Candidate:
        """The candidate of a recorded trial."""
        program = None if trial.program is None else self.records.start(trial)
        return space.replay(trial.trace, trial.sketch, program)

    def _remembered(self, space: Space) -> list[tuple[Candidate, Measurement]]:
        """Recorded trials of a space: the best ones, and from the rest what the newest have to say."""
        key = space.workload.key
        best = self.records.top(key, self.target_key, _REMEMBERED // 2)
        taken = {trial.id for trial in best}
        newest = [
            trial
            for trial in self.records.trials(key, self.target_key)
            if trial.id not in taken and trial.tvm == self.records.tvm_version
        ][-_REMEMBERED // 2 :]
        found = []
        for trial in (*best, *newest):
            try:
                candidate = self.replay(space, trial)
            except Exception as error:  # a damaged record, or one that needs what is not installed any more
                self.emit(Warned(f"record {trial.id} of {key} cannot be replayed: {_last_line(error)}"))
                continue
            failure = None if trial.failure is None else Failure(trial.failure)
            found.append((candidate, Measurement(trial.seconds, failure=failure, cut_short=trial.cut_short)))
        return found


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
