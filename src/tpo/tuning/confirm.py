"""Before one is called best: leaders and the default schedule, measured again, side by side.

A single measurement has luck in it, and the fastest of hundreds has the most. The winners then go to
the tasks that share their anchor, and are measured there too.
"""

from __future__ import annotations

from tpo.measure import BuildInput, Measurement, Runner
from tpo.records import Trial
from tpo.space import Candidate
from tpo.tuning.events import TaskConfirmed
from tpo.tuning.groups import Member
from tpo.tuning.ledger import Entry
from tpo.tuning.session import Session

# Building a leader again and timing it against the others, on the machines this was tried on.
_SECONDS_PER_LEADER = 0.3
_MOST_OF_THE_BUDGET = 0.15


def seconds_to_confirm(session: Session) -> float:
    """About how long confirming will take, so that time is left for it; never most of a short run."""
    leaders = sum(min(entry.trials, session.config.confirm) + 1 for entry in _worth_it(session))
    share = (session.config.minutes or 0.0) * 60 * _MOST_OF_THE_BUDGET
    return min(leaders * _SECONDS_PER_LEADER, share)


def confirm(session: Session, runner: Runner) -> None:
    """Measure the leaders of every task again, the largest share first, while there is time."""
    waiting = sorted(_worth_it(session), key=lambda entry: -entry.seconds * entry.weight)
    step = runner.capabilities.parallel_builds
    for start in range(0, len(waiting), step):
        if start and session.budget.seconds_left() == 0:
            return
        _confirm_some(session, runner, waiting[start : start + step])


def _worth_it(session: Session) -> list[Entry]:
    """Tasks with a choice between candidates, or with followers that still have nothing."""
    return [
        entry
        for entry in session.ledger.entries
        if entry.best_seconds is not None and (entry.trials - entry.failed > 1 or entry.group.followers)
    ]


def _confirm_some(session: Session, runner: Runner, entries: list[Entry]) -> None:
    leaders = {entry.key: _leaders(session, entry) for entry in entries}
    groups = [
        [BuildInput(entry.group.leader.workload, candidate.module) for _, candidate in leaders[entry.key]]
        for entry in entries
    ]
    for entry, measurements in zip(entries, runner.compare(groups), strict=True):
        found = list(zip(leaders[entry.key], measurements, strict=True))
        for (trial, _), measurement in found:
            session.records.confirm(trial.id, measurement)
        _settle(session, entry, [(trial, measurement) for (trial, _), measurement in found])
        ranked = sorted(
            (measurement.seconds, position)
            for position, measurement in enumerate(measurements)
            if measurement.seconds is not None
        )
        for follower in entry.group.followers:
            winners = [leaders[entry.key][position][1] for _, position in ranked]
            _hand_over(session, runner, follower, winners)


def _leaders(session: Session, entry: Entry) -> list[tuple[Trial, Candidate]]:
    """The fastest recorded candidates of a task, confirmed before or not, and its default in any case."""
    default = session.default(entry.group.leader).key
    recorded = [
        trial
        for trial in session.records.trials(entry.key, session.target_key)
        if trial.seconds is not None and not trial.cut_short and trial.tvm == session.records.tvm_version
    ]
    fastest = sorted(recorded, key=lambda trial: trial.seconds or 0.0)
    trials = fastest[: session.config.confirm]
    trials += [trial for trial in fastest[session.config.confirm :] if trial.candidate == default]
    space = session.space(entry.group.leader)
    return [(trial, session.replay(space, trial)) for trial in trials]


def _settle(session: Session, entry: Entry, found: list[tuple[Trial, Measurement]]) -> None:
    best = session.records.best(entry.key, session.target_key)
    if best is None or best.seconds is None:
        return
    entry.best_seconds, entry.sketch = best.seconds, best.sketch
    default = session.default(entry.group.leader).key
    for trial, measurement in found:
        if trial.candidate == default and measurement.seconds is not None:
            entry.default_seconds = measurement.seconds
    session.emit(TaskConfirmed(entry.name, best.seconds, entry.default_seconds))


def _hand_over(session: Session, runner: Runner, follower: Member, winners: list[Candidate]) -> None:
    """Record the leader's winning decisions, and the default schedule, as trials of a follower."""
    space, key = session.space(follower), follower.workload.key
    given = [session.default(follower), *(space.transfer(winner) for winner in winners)]
    candidates = {candidate.key: candidate for candidate in given if candidate is not None}
    ours = session.records.claim(session.run, key, session.target_key, list(candidates))
    chosen = [candidates[name] for name in candidates if name in ours]
    inputs = [BuildInput(follower.workload, candidate.module) for candidate in chosen]
    for position, measurement in runner.measure(inputs):
        session.records.add(session.run, key, session.target_key, chosen[position], measurement)
