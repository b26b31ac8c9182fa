import dataclasses
import threading
from datetime import datetime, timezone

import pytest
import tvm
from tvm import te

from support.record_stores import TARGET, TVM, WORKLOAD, candidate, failed, new_store, run_info, took
from tpo.errors import BusyRecordsError, DamagedRecordsError, RecordsWriteError, UnknownRecordError
from tpo.measure.contract import Failure, Measurement
from tpo.records import Records, TrialCounts
from tpo.records import process as processes
from tpo.workload import Workload


@pytest.fixture
def records(tmp_path):
    with new_store(tmp_path / "run.db") as records:
        yield records


@pytest.fixture
def run(records):
    return records.begin_run(run_info())


def matmul(size: int) -> Workload:
    a, b = (te.placeholder((size, size), name=name) for name in "AB")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return Workload.of(te.create_prim_func([a, b, c]))


# Workloads


def test_a_stored_workload_is_the_same_function(tmp_path):
    with Records.open(tmp_path / "run.db") as records:
        records.add_workload(matmul(8), "mm", flops=1024)
        records.add_workload(matmul(16))
        assert records.workload(matmul(8).key).same_as(matmul(8))
        assert not records.workload(matmul(16).key).same_as(matmul(8))


def test_adding_a_workload_again_only_fills_in_what_was_unknown(records):
    records.add_workload(matmul(8))
    records.add_workload(matmul(8), "mm", flops=1024)
    records.add_workload(matmul(8), "another name", flops=1)
    (row,) = [row for row in records.workloads() if row.key == matmul(8).key]
    assert (row.name, row.flops, row.counts.total) == ("mm", 1024, 0)


def test_two_functions_under_one_key_are_refused(records):
    records.add_workload_json("ab" * 8, matmul(8).to_json())
    with pytest.raises(DamagedRecordsError, match="another function"):
        records.add_workload_json("ab" * 8, matmul(16).to_json())


def test_the_installed_tvm_is_the_default(tmp_path):
    with Records.open(tmp_path / "run.db") as records:
        assert records.tvm_version == tvm.__version__


# Trials


def test_a_trial_comes_back_as_it_was_added(records, run):
    before = datetime.now(timezone.utc)
    number = records.add(run, WORKLOAD, TARGET, candidate("c0"), took(2e-3))
    (trial,) = records.trials()
    assert before <= trial.created <= datetime.now(timezone.utc)
    assert dataclasses.asdict(trial) == {
        "id": number,
        "run": run,
        "workload": WORKLOAD,
        "target": TARGET,
        "candidate": "c0",
        "sketch": "tiles",
        "trace": '[[["Split",["c0"]]],[]]',
        "seconds": 2e-3,
        "samples": (2e-3 * 0.9, 2e-3, 2e-3 * 1.1),
        "failure": None,
        "message": "",
        "cut_short": False,
        "drift": 1.05,
        "error": 1e-6,
        "build_seconds": 0.25,
        "run_seconds": 0.5,
        "confirmed": False,
        "created": trial.created,
        "tvm": TVM,
        "machine": {"cpu": "Some CPU", "cores": 2},
        "counters": {},
        "program": None,
    }


def test_a_failure_is_a_trial_without_a_time(records, run):
    records.add(run, WORKLOAD, TARGET, candidate("c0"), failed(Failure.OUT_OF_MEMORY))
    (trial,) = records.trials()
    assert (trial.ok, trial.seconds, trial.failure, trial.message) == (
        False, None, "out-of-memory", "signal 11",
    )  # fmt: skip


@pytest.mark.parametrize("seconds", [None, float("nan"), float("inf")])
def test_a_success_needs_a_time(records, run, seconds):
    with pytest.raises(ValueError, match="has a time"):
        records.add(run, WORKLOAD, TARGET, candidate("c0"), Measurement(seconds))
    assert records.count().total == 0


def test_a_candidate_is_recorded_once(records, run):
    first = records.add(run, WORKLOAD, TARGET, candidate("c0"), took(2.0))
    assert records.add(run, WORKLOAD, TARGET, candidate("c0"), took(1.0)) == first
    (trial,) = records.trials()
    assert trial.seconds == 2.0


def test_best_is_the_fastest_that_is_no_failure_and_was_not_cut_short(records, run):
    assert records.best(WORKLOAD, TARGET) is None
    for key, measurement in {
        "slow": took(3.0), "fast": took(2.0), "rough": took(1.0, cut_short=True), "broken": failed(),
    }.items():  # fmt: skip
        records.add(run, WORKLOAD, TARGET, candidate(key), measurement)
    assert records.best(WORKLOAD, TARGET).candidate == "fast"
    assert [trial.candidate for trial in records.top(WORKLOAD, TARGET, 9)] == ["fast", "slow"]
    assert [trial.candidate for trial in records.top(WORKLOAD, TARGET, 1)] == ["fast"]


def test_a_leader_is_best_only_after_it_was_measured_again(records, run):
    numbers = {
        key: records.add(run, WORKLOAD, TARGET, candidate(key), took(seconds))
        for key, seconds in {"lucky": 1.0, "second": 1.1, "third": 1.2}.items()
    }
    records.confirm(numbers["third"], took(1.3))
    assert [t.candidate for t in records.top(WORKLOAD, TARGET, 3)] == ["third", "lucky", "second"]
    records.confirm(numbers["second"], took(1.05))
    best = records.best(WORKLOAD, TARGET)
    assert (best.candidate, best.seconds, best.confirmed) == ("second", 1.05, True)
    assert best.samples == took(1.05).samples
    records.confirm(numbers["second"], failed(Failure.WRONG_RESULT))
    assert records.best(WORKLOAD, TARGET).candidate == "third"
    assert records.count() == TrialCounts(3, 2, {"wrong-result": 1})


def test_trials_of_another_target_or_tvm_are_kept_and_named_but_not_used(tmp_path):
    path = tmp_path / "run.db"
    elsewhere = TARGET.replace("some-cpu", "other-cpu")
    with new_store(path, tvm_version="0.26.0") as old:
        old.add(old.begin_run(run_info()), WORKLOAD, TARGET, candidate("c0"), took(1.0))
        run = old.begin_run(run_info(elsewhere))
        for key in ("c1", "c2"):
            old.using("1.2.3").add(run, WORKLOAD, elsewhere, candidate(key), took(1.0))
        old.add(run, WORKLOAD, elsewhere, candidate("c3"), took(1.0))
        old.add(run, WORKLOAD, elsewhere, candidate("c4"), failed())
    with new_store(path) as records:
        assert records.best(WORKLOAD, TARGET) is None
        assert records.top(WORKLOAD, TARGET, 5) == []
        assert records.known(WORKLOAD, TARGET) == set()
        assert records.others(WORKLOAD, TARGET) == [
            "1 trial by TVM 0.26.0",
            "1 trial for target llvm mcpu=other-cpu num-cores=2 by TVM 0.26.0",
            "2 trials for target llvm mcpu=other-cpu num-cores=2",
        ]
        assert records.best(WORKLOAD, elsewhere).candidate == "c1"
        run = records.begin_run(run_info())
        assert records.claim(run, WORKLOAD, TARGET, ["c0"]) == {"c0"}
        records.add(run, WORKLOAD, TARGET, candidate("c0"), took(3.0))
        assert records.best(WORKLOAD, TARGET).seconds == 3.0
        assert {(g.target, g.tvm): g.counts.total for g in records.groups()} == {
            (TARGET, "0.26.0"): 1, (TARGET, "1.2.3"): 1, (elsewhere, "0.26.0"): 2, (elsewhere, "1.2.3"): 2,
        }  # fmt: skip


def test_trials_can_be_chosen_and_ordered(tmp_path):
    other = "00000000000000bb"
    with new_store(tmp_path / "run.db", WORKLOAD, other) as records:
        one, two = records.begin_run(run_info()), records.begin_run(run_info())
        records.add(one, WORKLOAD, TARGET, candidate("a"), failed())
        records.add(one, other, TARGET, candidate("b"), took(1.0))
        records.add(two, WORKLOAD, TARGET, candidate("c"), took(0.5, cut_short=True))
        records.add(two, WORKLOAD, "t2", candidate("d"), took(2.0))
        chosen = {
            "all": records.trials(),
            "workload": records.trials(workload=WORKLOAD),
            "target": records.trials(target="t2"),
            "run": records.trials(run=one),
            "limit": records.trials(limit=2),
            "best first": records.trials(workload=WORKLOAD, best_first=True),
        }
        assert {name: "".join(t.candidate for t in trials) for name, trials in chosen.items()} == {
            "all": "abcd", "workload": "acd", "target": "d", "run": "ab", "limit": "ab", "best first": "dca",
        }  # fmt: skip
        assert records.count(one) == TrialCounts(2, 1, {"crash": 1})
        assert records.count() == TrialCounts(4, 3, {"crash": 1}, cut_short=1)
        assert [row.counts for row in records.workloads()] == [
            TrialCounts(3, 2, {"crash": 1}, cut_short=1),
            TrialCounts(1, 1),
        ]
        assert records.targets() == [TARGET, "t2"]


def test_what_is_unknown_is_said(records, run):
    calls = {
        "workload 'nowhere'": lambda: records.workload("nowhere"),
        "run 'nowhen'": lambda: records.save_state("nowhen", {}),
        "trial 99": lambda: records.confirm(99, took(1.0)),
    }
    for what, call in calls.items():
        with pytest.raises(UnknownRecordError, match=f"has no {what}; list what it has: tpo db ls"):
            call()
    for call in (records.take_over, lambda run: records.claim(run, WORKLOAD, TARGET, ["c"])):
        with pytest.raises(UnknownRecordError, match="run"):
            call("nowhen")
    with pytest.raises(UnknownRecordError, match="workload"):
        records.add(run, "nowhere", TARGET, candidate("c"), took(1.0))
    with pytest.raises(UnknownRecordError, match="run"):
        records.add("nowhen", WORKLOAD, TARGET, candidate("c"), took(1.0))
    assert records.count().total == 0


def test_a_transaction_is_all_or_nothing(records, run):
    with pytest.raises(KeyboardInterrupt), records.transaction():
        records.add(run, WORKLOAD, TARGET, candidate("c0"), took(1.0))
        raise KeyboardInterrupt
    assert records.count().total == 0
    records.add(run, WORKLOAD, TARGET, candidate("c0"), took(1.0))
    assert records.count().total == 1


def test_a_snapshot_is_one_moment(records, run):
    with Records.open(records.path, readonly=True, tvm_version=TVM) as reader:
        with reader.snapshot():
            assert reader.count().total == 0
            records.add(run, WORKLOAD, TARGET, candidate("c0"), took(1.0))
            assert reader.count().total == 0
        assert reader.count().total == 1
    with records.snapshot(), pytest.raises(ValueError, match="for reading"):
        records.add(run, WORKLOAD, TARGET, candidate("c1"), took(1.0))


def test_threads_share_a_store(records, run):
    def add(thread):
        for number in range(25):
            records.add(run, WORKLOAD, TARGET, candidate(f"{thread}-{number}"), took(1.0))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert records.count().total == 100


# Runs


def test_a_run_is_stored_with_what_it_was_made_of(records, run):
    (stored,) = records.runs()
    assert (stored.id, stored.info, stored.status, stored.state) == (run, run_info(), "running", None)
    assert stored.alive


def test_the_newest_run_that_did_not_finish_is_found(records):
    def unfinished():
        found = records.unfinished("5ha", TARGET)
        return found and found.id

    assert unfinished() is None
    older, newer, done = (records.begin_run(run_info(seed=seed)) for seed in range(3))
    others = records.begin_run(run_info(sha256="else")), records.begin_run(run_info(target="else"))
    assert unfinished() is None  # they are running
    for run in (newer, older, *others):
        records.end_run(run, "interrupted")
    records.end_run(done, "done")
    assert unfinished() == newer
    records.take_over(newer)
    assert unfinished() == older
    records.end_run(newer, "done")
    records.end_run(older, "done")
    assert unfinished() is None


def test_a_run_ends_in_one_of_two_ways(records, run):
    with pytest.raises(ValueError, match="'gone'"):
        records.end_run(run, "gone")


def test_state_is_replaced_and_survives(records, run):
    state = {"rng": {"state": 2**127 + 1}, "elapsed": 1.5, "order": ["b", "a"]}
    records.save_state(run, {"rng": 1, "gone": True})
    records.save_state(run, state)
    records.end_run(run, "interrupted")
    assert records.unfinished("5ha", TARGET).state == state


def pretend_to_be(monkeypatch, **changes):
    other = dataclasses.replace(processes.current(), **changes)
    monkeypatch.setattr(processes, "current", lambda: other)


def test_a_killed_run_is_resumed_and_its_claims_are_void(records, run, monkeypatch):
    with monkeypatch.context() as patch:
        pretend_to_be(patch, started=1.0)  # our pid, as somebody had it long ago
        killed = records.begin_run(run_info(seed=1))
        records.claim(killed, WORKLOAD, TARGET, ["a", "b"])
        records.add(killed, WORKLOAD, TARGET, candidate("b"), took(1.0))
    assert records.known(WORKLOAD, TARGET) == {"b"}
    found = records.unfinished("5ha", TARGET)
    assert (found.id, found.status) == (killed, "killed")
    assert records.claim(run, WORKLOAD, TARGET, ["a", "b"]) == {"a"}
    records.take_over(killed)
    assert records.runs()[-1].status == "running"


def test_a_living_process_keeps_its_run_and_claims(records, run, monkeypatch):
    assert records.claim(run, WORKLOAD, TARGET, ["a", "b"]) == {"a", "b"}
    assert records.claim(run, WORKLOAD, TARGET, ["b", "c"]) == {"b", "c"}
    assert records.known(WORKLOAD, TARGET) == set()
    pretend_to_be(monkeypatch, pid=1)
    assert records.known(WORKLOAD, TARGET) == {"a", "b", "c"}
    with pytest.raises(BusyRecordsError, match="is working on run"):
        records.take_over(run)
    mine = records.begin_run(run_info())
    assert records.claim(mine, WORKLOAD, TARGET, ["c", "d"]) == {"d"}
    records.release(run)
    assert records.claim(mine, WORKLOAD, TARGET, ["c", "d"]) == {"c", "d"}


def test_processes_that_cannot_be_looked_at_live_while_they_write(records, run, monkeypatch):
    records.claim(run, WORKLOAD, TARGET, ["a"])
    for elsewhere in ({"host": "another"}, {"namespace": "pid:[1]"}):
        with monkeypatch.context() as patch:
            pretend_to_be(patch, **elsewhere)
            assert records.known(WORKLOAD, TARGET) == {"a"}
            patch.setattr(processes, "LEASE_SECONDS", 0.0)
            assert records.known(WORKLOAD, TARGET) == set()
    with monkeypatch.context() as patch:
        pretend_to_be(patch, boot="the one before")
        assert records.known(WORKLOAD, TARGET) == set()


def test_recording_a_candidate_fulfils_its_claim(records, run):
    records.claim(run, WORKLOAD, TARGET, ["a", "b"])
    records.add(run, WORKLOAD, TARGET, candidate("a"), took(1.0))
    assert list(records.query("SELECT candidate FROM claims")) == [("b",)]


def test_ending_a_run_frees_its_claims(records, run):
    records.claim(run, WORKLOAD, TARGET, ["a"])
    other = records.begin_run(run_info())
    assert records.claim(other, WORKLOAD, TARGET, ["a"]) == set()
    records.end_run(run, "interrupted")
    assert records.claim(other, WORKLOAD, TARGET, ["a"]) == {"a"}


def test_many_candidates_are_claimed_at_once(records, run):
    keys = [f"{number:016x}" for number in range(2500)]
    for key in keys[:3]:
        records.add(run, WORKLOAD, TARGET, candidate(key), took(1.0))
    assert records.claim(run, WORKLOAD, TARGET, keys) == set(keys[3:])


def test_a_store_opened_for_reading_refuses_to_write(records, run):
    with (
        Records.open(records.path, readonly=True) as reader,
        pytest.raises(RecordsWriteError, match="reading"),
    ):
        reader.add(run, WORKLOAD, TARGET, candidate("c"), took(1.0))


def test_a_closed_store_says_so(records):
    records.close()
    records.close()
    with pytest.raises(ValueError, match="was closed"):
        records.count()
