"""Random use of a store, compared with a model of it in plain Python."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from support.record_stores import TARGET, candidate, failed, new_store, run_info, took
from tpo.measure.contract import Failure
from tpo.records import maintenance
from tpo.records.record import target_title

WORKLOADS = ("00000000000000aa", "00000000000000bb")
KEYS = tuple("abcdefgh")
TIMES = (1.0, 1.5, 2.0, 2.5)

measurements = st.one_of(
    st.builds(took, st.sampled_from(TIMES), cut_short=st.booleans()),
    st.builds(failed, st.sampled_from(list(Failure))),
)
who, workloads, keys = st.integers(0, 1), st.sampled_from(WORKLOADS), st.sampled_from(KEYS)
operations = st.one_of(
    st.tuples(st.just("claim"), who, workloads, st.lists(keys, max_size=5)),
    st.tuples(st.just("add"), who, workloads, keys, measurements),
    st.tuples(st.just("confirm"), who, workloads, keys, measurements),
    st.tuples(st.just("release"), who),
)


@dataclass(frozen=True)
class Known:
    """What the model knows of a trial."""

    order: int
    measurement: object
    confirmed: bool = False

    @property
    def rank(self):
        return (not self.confirmed, self.measurement.seconds, self.order)

    @property
    def usable(self):
        return self.measurement.ok and not self.measurement.cut_short


def best_of(trials, workload, count):
    usable = [
        (known.rank, key) for (place, key), known in trials.items() if place == workload and known.usable
    ]
    return [key for _, key in sorted(usable)[:count]]


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=40))
def test_two_connections_agree_with_a_model(sequence):
    trials, claims = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        with new_store(path, *WORKLOADS) as one, new_store(path, *WORKLOADS) as two:
            stores = (one, two)
            runs = [records.begin_run(run_info()) for records in stores]
            for name, user, *arguments in sequence:
                records, run = stores[user], runs[user]
                if name == "claim":
                    workload, wanted = arguments
                    free = {
                        key
                        for key in wanted
                        if (workload, key) not in trials and claims.get((workload, key), user) == user
                    }
                    assert records.claim(run, workload, TARGET, wanted) == free
                    claims.update({(workload, key): user for key in free})
                elif name == "add":
                    workload, key, measurement = arguments
                    records.add(run, workload, TARGET, candidate(key), measurement)
                    trials.setdefault((workload, key), Known(len(trials), measurement))
                    claims.pop((workload, key), None)
                elif name == "confirm":
                    workload, key, measurement = arguments
                    found = [t for t in records.trials(workload) if t.candidate == key]
                    assert len(found) == ((workload, key) in trials)
                    if found:
                        records.confirm(found[0].id, measurement)
                        old = trials[workload, key]
                        sure = measurement.ok and not measurement.cut_short
                        trials[workload, key] = replace(old, measurement=measurement, confirmed=sure)
                else:
                    records.release(run)
                    claims = {place: owner for place, owner in claims.items() if owner != user}
                other = stores[1 - user]
                assert other.count().total == len(trials)
                assert other.count().ok == sum(known.measurement.ok for known in trials.values())
                for workload in WORKLOADS:
                    found = [trial.candidate for trial in other.top(workload, TARGET, 3)]
                    assert found == best_of(trials, workload, 3)
                    assert other.known(workload, TARGET) == {
                        key for place, key in trials if place == workload
                    }


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), workloads, keys, measurements, st.booleans()),
        max_size=25,
    )
)
def test_merging_keeps_each_candidate_once_in_any_order(additions):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.db" for number in range(3)]
        stores = [new_store(path, *WORKLOADS) for path in paths]
        runs = [records.begin_run(run_info()) for records in stores]
        for place, workload, key, measurement, confirmed in additions:
            if not any(t.candidate == key for t in stores[place].trials(workload)):
                number = stores[place].add(runs[place], workload, TARGET, candidate(key), measurement)
                if confirmed:
                    stores[place].confirm(number, measurement)
        evidence = {}
        for records in stores:
            for trial in records.trials():
                here = (not trial.confirmed, trial.created)
                known = evidence.get((trial.workload, trial.candidate))
                if known is None or here < known[0]:
                    evidence[trial.workload, trial.candidate] = (here, trial.seconds, trial.run)
            records.close()
        for name, order in {"there": paths, "back": paths[::-1]}.items():
            output = Path(folder) / f"{name}.db"
            first = maintenance.merge_files(output, order)
            assert first.added == len(evidence)
            again = maintenance.merge_files(output, order)
            assert (again.runs, again.added, again.replaced) == (0, 0, 0)
            with new_store(output, *WORKLOADS) as merged:
                found = {(t.workload, t.candidate): (t.seconds, t.run) for t in merged.trials()}
                assert found == {place: what[1:] for place, what in evidence.items()}


@given(st.dictionaries(st.text("abc-", min_size=1, max_size=4), st.integers(0, 9), max_size=3))
def test_titles_of_targets_name_everything(options):
    import json

    title = target_title(json.dumps({"kind": "llvm", **options}))
    assert title.split() == ["llvm", *(f"{name}={value}" for name, value in sorted(options.items()))]
