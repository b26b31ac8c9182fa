"""The tuning loop: which tasks next, which candidates, measure, record, learn; then confirm the leaders.

Everything that matters is in the store the moment it is known, so the loop may be killed at any time:
a later run with `resume` takes up its budget, its random numbers and what it had learnt.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpo.errors import NothingToResumeError
from tpo.frontend.model import Model
from tpo.measure import BuildInput, LocalRunner, Measurement, MeasureOptions, Runner
from tpo.records import Records, RunInfo
from tpo.space import Candidate
from tpo.targets import Target
from tpo.tuning import places
from tpo.tuning.config import TuneConfig, effective
from tpo.tuning.confirm import confirm, seconds_to_confirm
from tpo.tuning.events import BatchDone, BatchStarted, RunFinished, RunStarted, TrialDone
from tpo.tuning.ledger import Entry
from tpo.tuning.session import Callback, Session


def tune_model(
    model: Model,
    target: Target,
    config: TuneConfig,
    records: Records,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> RunFinished:
    """Tune a model's functions into a store; an interruption leaves a run that can be resumed."""
    session = Session(model, target, config, records, callbacks)
    gc.freeze()  # what was imported is no garbage; each look at all of it would take a tenth of a second
    with _recorded(session, resume), _runner(session) as runner:
        exhausted = search(session, runner)
        confirm(session, runner)
    finished = RunFinished(
        run=session.run,
        status="nothing left to improve" if exhausted else "finished",
        trials=session.ledger.trials,
        failures=dict(session.ledger.failures),
        elapsed=session.budget.elapsed,
        tasks=session.ledger.results(),
        model_seconds=session.ledger.model_seconds,
        default_model_seconds=session.ledger.default_model_seconds,
        unit=session.unit,
    )
    session.emit(finished)
    return finished


def search(session: Session, runner: Runner) -> bool:
    """Measure batch after batch until the budget is used up; True if all tasks were before that."""
    while session.budget.allows(1, seconds_to_confirm(session)):
        turns = session.scheduler.turns()
        if not turns:
            return session.budget.allows(1) > 0
        proposals: list[tuple[Entry, Candidate]] = []
        for key, count in turns:
            entry = session.entry(key)
            session.emit(BatchStarted(entry.name, count))
            proposals += [(entry, candidate) for candidate in _propose(session, entry, count)]
        _measure(session, runner, proposals)
        for entry in (session.entry(key) for key, _ in turns):
            ledger = session.ledger
            session.emit(
                BatchDone(
                    task=entry.name,
                    trials=entry.trials,
                    best_seconds=entry.best_seconds,
                    default_seconds=entry.default_seconds,
                    model_seconds=ledger.model_seconds,
                    default_model_seconds=ledger.default_model_seconds,
                    elapsed=session.budget.elapsed,
                    trials_done=ledger.trials,
                )
            )
    return False


def _propose(session: Session, entry: Entry, count: int) -> list[Candidate]:
    """New candidates that no other process is measuring; the task is finished when there are none."""
    known = session.records.known(entry.key, session.target_key)
    default = session.default(entry.group.leader)
    if default.key not in known:
        proposed = [default]
    else:
        proposed = session.strategy(entry).propose(session.budget.allows(count), known)
    if not proposed:
        session.scheduler.exhaust(entry.key)
    ours = session.records.claim(
        session.run, entry.key, session.target_key, [candidate.key for candidate in proposed]
    )
    return [candidate for candidate in proposed if candidate.key in ours]


def _measure(session: Session, runner: Runner, proposals: Sequence[tuple[Entry, Candidate]]) -> None:
    """Measure, record each result at once, and learn from all of them."""
    inputs = [BuildInput(entry.group.leader.workload, found.module) for entry, found in proposals]
    best = {entry.key: entry.best_seconds for entry, _ in proposals if entry.best_seconds is not None}
    results: dict[str, list[tuple[Candidate, Measurement]]] = {entry.key: [] for entry, _ in proposals}
    for position, measurement in runner.measure(inputs, best):
        entry, candidate = proposals[position]
        session.records.add(session.run, entry.key, session.target_key, candidate, measurement)
        is_default = candidate.key == session.default(entry.group.leader).key
        improved = session.ledger.count(entry, measurement, candidate.sketch, is_default)
        session.budget.trials += 1
        results[entry.key].append((candidate, measurement))
        session.emit(
            TrialDone(
                task=entry.name,
                sketch=candidate.sketch,
                seconds=measurement.seconds,
                failure=None if measurement.failure is None else str(measurement.failure),
                message=measurement.message,
                best_seconds=entry.best_seconds,
                trial=session.ledger.trials,
                improved=improved,
                candidate=candidate.key,
            )
        )
        if session.budget.seconds_left() == 0:
            break
    session.records.release(session.run)
    for key, measured in results.items():
        entry = session.entry(key)
        session.learn(entry, measured)
        session.scheduler.report(key, len(measured), entry.best_seconds)
    session.save_state()


@contextmanager
def _recorded(session: Session, resume: bool) -> Iterator[None]:
    """The run in the store, from its begin to its end, however it ends."""
    _begin(session, resume)
    status = "interrupted"
    try:
        yield
        status = "done"
    finally:
        session.records.release(session.run)
        session.save_state()
        session.records.end_run(session.run, status)


def _begin(session: Session, resume: bool) -> None:
    records, model, config = session.records, session.model, session.config
    if resume:
        found = records.unfinished(model.sha256, session.target_key)
        if found is None:
            raise NothingToResumeError(path=records.path, model=model.name)
        records.take_over(found.id)
        session.restore(found)
    else:
        session.run = records.begin_run(
            RunInfo(
                model_name=model.name,
                model_path=str(model.path.resolve()),
                model_sha256=model.sha256,
                target=session.target_key,
                threads=session.threads,
                seed=config.seed,
                config=effective(config),
                machine=places.facts(session.place),
            )
        )
        session.save_state()
    for entry in session.ledger.entries:
        for member in entry.group.members:
            records.add_workload(member.workload, member.task.name, member.task.flops)
    session.recall()
    session.emit(
        RunStarted(
            run=session.run,
            model=model.name,
            target=session.target.name,
            threads=session.threads,
            tasks=tuple(entry.info() for entry in session.ledger.entries),
            unit=session.unit,
            trials=config.trial_limit(len(session.ledger.entries)),
            minutes=config.minutes,
            resumed_trials=session.ledger.trials,
            elapsed=session.budget.elapsed,
            failures=dict(session.ledger.failures),
        )
    )


def _runner(session: Session) -> Runner:
    measure = session.config.measure
    if session.place is not None:
        return places.runner(session.target, session.place, measure)
    options = MeasureOptions(
        threads=session.threads,
        between_mb=session.touched_bytes / 2**20,
        build_timeout=measure.build_timeout,
        run_timeout=measure.run_timeout,
        memory_gb=measure.memory_gb,
        confidence=measure.confidence,
        hopeless=measure.hopeless,
        recycle=measure.recycle,
    )
    return LocalRunner(session.target.tvm, options)
