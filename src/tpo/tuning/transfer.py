"""What a store knows of other workloads on the same target: good guesses, and something to learn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tpo.cost.training import FEWEST, learnable
from tpo.records.record import Group
from tpo.search.population import Row
from tpo.space import Space, build_space
from tpo.space.stored import stored_values

if TYPE_CHECKING:
    from tpo.tuning.session import Session

RELATED = 4  # workloads, those whose amount of work is most similar
BEST = 4  # of their trials whose decisions are tried here


def guesses(session: Session, space: Space, groups: Sequence[Group]) -> list[tuple[str, Row]]:
    """What is good for related workloads, as rows of the sketches of a space, by the names of these."""
    records, target = session.records, session.target_key
    found: dict[tuple[str, bytes], tuple[str, Row]] = {}
    for group in groups:
        for trial in records.top(group.workload, target, BEST):
            sketch = space.sketch(trial.sketch)
            if sketch is None:
                continue
            rows = sketch.domain.nearest(stored_values(trial.trace), sketch.preferred_row)
            found |= {(trial.sketch, row.tobytes()): (trial.sketch, row) for row in rows}
    return list(found.values())


def teach(session: Session, groups: Sequence[Group]) -> None:
    """Tell the run's cost model of related workloads that are no tasks of the run, each once."""
    for group in groups:
        if group.workload not in session.taught:
            session.taught.add(group.workload)
            theirs = build_space(session.records.workload(group.workload), session.target)
            known = learnable(theirs, list(session.records.trials(group.workload, session.target_key)))
            session.cost.learn(group.workload, known.features, known.seconds)


def related(session: Session, space: Space) -> list[Group]:
    """Workloads with trials in sketches that a space has as well, the most similar amount of work first."""
    records, sketches = session.records, {sketch.name for sketch in space.sketches}
    flops = {row.key: math.log(max(row.flops, 1)) for row in records.workloads()}
    groups = [
        group
        for group in records.groups()
        if (group.target, group.tvm) == (session.target_key, records.tvm_version)
        and group.workload != space.key
        and group.counts.ok >= FEWEST
    ]
    groups.sort(key=lambda group: abs(flops[group.workload] - flops.get(space.key, 0.0)))
    tried = (
        (group, {trial.sketch for trial in records.top(group.workload, session.target_key, BEST)})
        for group in groups
    )
    return list(islice((group for group, names in tried if names & sketches), RELATED))
