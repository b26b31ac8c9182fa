import pytest

from support.record_stores import TARGET, TVM, WORKLOAD, candidate, failed, new_store, run_info, took
from tpo.errors import BusyRecordsError, DamagedRecordsError, NotRecordsError, RecordsFileError, UsageError
from tpo.records import Records, TrialCounts
from tpo.records.maintenance import merge, merge_files, prune
from tpo.records.rows import pack_text

OTHER = "00000000000000bb"


def store(path, trials, workload=WORKLOAD, target=TARGET, end="done"):
    """A store with one run; `trials` is {candidate: measurement}."""
    with new_store(path, workload) as records:
        run = records.begin_run(run_info(target))
        for key, measurement in trials.items():
            records.add(run, workload, target, candidate(key), measurement)
        records.save_state(run, {"rng": 5})
        records.end_run(run, end)
    return run


def reopened(path):
    return Records.open(path, create=False, tvm_version=TVM)


def times(records):
    return {trial.candidate: trial.seconds for trial in records.trials()}


def test_runs_workloads_and_trials_come_together(tmp_path):
    one = store(tmp_path / "a.db", {"a": took(1.0), "x": failed()}, end="interrupted")
    two = store(tmp_path / "b.db", {"b": took(2.0)}, OTHER, "elsewhere")
    report = merge_files(tmp_path / "out.db", [tmp_path / "a.db", tmp_path / "b.db"])
    assert (report.runs, report.added, report.replaced, report.duplicates) == (2, 3, 0, 0)
    with reopened(tmp_path / "out.db") as merged, reopened(tmp_path / "a.db") as first:
        assert [run.id for run in merged.runs()] == [one, two]
        assert merged.runs()[0] == first.runs()[0]
        assert merged.unfinished("5ha", TARGET).state == {"rng": 5}
        assert [(row.key, row.name, row.counts.total) for row in merged.workloads()] == [
            (WORKLOAD, "task_aa", 2),
            (OTHER, "task_bb", 1),
        ]
        assert merged.workload_json(OTHER) == f"function {OTHER}"
        assert merged.best(WORKLOAD, TARGET) == first.best(WORKLOAD, TARGET)
        assert merged.best(OTHER, "elsewhere").run == two
        assert merged.count(one) == TrialCounts(2, 1, {"crash": 1})


def test_the_confirmed_trial_is_kept_and_else_the_earlier_one(tmp_path):
    store(tmp_path / "a.db", {"same": took(2.0), "sure": took(2.0), "both": took(2.0)})
    store(tmp_path / "b.db", {"same": took(1.0), "sure": took(1.0), "both": took(1.0)})
    for name, confirmed in {"a.db": ["both"], "b.db": ["sure", "both"]}.items():
        with reopened(tmp_path / name) as records:
            for trial in list(records.trials()):
                if trial.candidate in confirmed:
                    records.confirm(trial.id, took(trial.seconds))
    report = merge_files(tmp_path / "out.db", [tmp_path / "b.db", tmp_path / "a.db"])
    assert (report.added, report.replaced, report.duplicates) == (3, 2, 1)
    with reopened(tmp_path / "out.db") as merged:
        assert times(merged) == {"same": 2.0, "sure": 1.0, "both": 2.0}
        assert merged.best(WORKLOAD, TARGET).candidate == "sure"


def test_trials_by_another_tvm_are_no_duplicates(tmp_path):
    store(tmp_path / "a.db", {"c": took(2.0)})
    with new_store(tmp_path / "b.db", tvm_version="0.26.0") as old:
        old.add(old.begin_run(run_info()), WORKLOAD, TARGET, candidate("c"), took(1.0))
    merge_files(tmp_path / "out.db", [tmp_path / "a.db", tmp_path / "b.db"])
    with reopened(tmp_path / "out.db") as merged:
        assert merged.count().total == 2
        assert merged.best(WORKLOAD, TARGET).seconds == 2.0


def test_merging_again_brings_what_is_new(tmp_path):
    run = store(tmp_path / "a.db", {"a": took(1.0)}, end="interrupted")
    merge_files(tmp_path / "out.db", [tmp_path / "a.db"])
    with reopened(tmp_path / "a.db") as records:
        records.take_over(run)
        records.add(run, WORKLOAD, TARGET, candidate("b"), took(0.5))
        records.save_state(run, {"rng": 6})
        records.end_run(run, "done")
    report = merge_files(tmp_path / "out.db", [tmp_path / "a.db"])
    assert (report.runs, report.added, report.duplicates) == (0, 1, 1)
    with reopened(tmp_path / "out.db") as merged:
        (stored,) = merged.runs()
        assert (stored.status, stored.state) == ("done", {"rng": 6})


def test_a_source_that_cannot_be_read_leaves_no_destination(tmp_path):
    store(tmp_path / "a.db", {"a": took(1.0)})
    (tmp_path / "foreign").write_text("hello")
    for source, error in {"foreign": NotRecordsError, "missing": RecordsFileError}.items():
        with pytest.raises(error):
            merge_files(tmp_path / "out.db", [tmp_path / "a.db", tmp_path / source])
    # Equal keys, other functions: noticed in the middle.
    store(tmp_path / "b.db", {"b": took(1.0)})
    with reopened(tmp_path / "b.db") as records, records.transaction() as connection:
        connection.execute("UPDATE workloads SET module = ?", (pack_text('{"broken": 1}'),))
    with pytest.raises((DamagedRecordsError, ValueError, RuntimeError)):
        merge_files(tmp_path / "out.db", [tmp_path / "a.db", tmp_path / "b.db"])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.db", "b.db", "foreign"]


def test_a_failed_merge_leaves_the_destination_as_it_was(tmp_path):
    store(tmp_path / "out.db", {"a": took(1.0)})
    store(tmp_path / "b.db", {"b": took(1.0)})
    with reopened(tmp_path / "out.db") as records, reopened(tmp_path / "b.db") as source:

        class Broken:
            query, snapshot = source.query, source.snapshot

            def workload_json(self, key):
                raise DamagedRecordsError(path="b.db", why="malformed")

        with pytest.raises(DamagedRecordsError):
            merge(records, [source, Broken()])
        assert times(records) == {"a": 1.0}


def test_a_store_is_not_merged_into_itself(tmp_path):
    store(tmp_path / "a.db", {"a": took(1.0)})
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(UsageError, match="into itself"):
        merge_files(tmp_path / "a.db", [tmp_path / "link.db"])


# Pruning


@pytest.fixture
def full(tmp_path):
    """Two workloads with 40 trials each, every fourth failed, and one cut short."""
    with new_store(tmp_path / "run.db", WORKLOAD, OTHER) as records:
        run = records.begin_run(run_info())
        for workload in (WORKLOAD, OTHER):
            for number in range(40):
                measurement = failed() if number % 4 == 3 else took(100.0 - number)
                records.add(run, workload, TARGET, candidate(f"c{number}" + "x" * 2000), measurement)
            records.add(run, workload, TARGET, candidate("short"), took(1e-3, cut_short=True))
        slowest = records.top(WORKLOAD, TARGET, 99)[-1]
        records.confirm(slowest.id, took(99.0))
        records.end_run(run, "done")
        yield records


def test_the_best_are_kept_and_the_file_shrinks(full):
    leaders = {key: [t.id for t in full.top(key, TARGET, 3)] for key in (WORKLOAD, OTHER)}
    report = prune(full, keep=3)
    assert (report.kept, report.deleted) == (6, 76)
    assert report.bytes_after == full.path.stat().st_size < report.bytes_before
    for key, expected in leaders.items():
        assert [t.id for t in full.top(key, TARGET, 99)] == expected
    assert full.best(WORKLOAD, TARGET).confirmed
    assert len(full.runs()) == 1
    assert next(full.query("SELECT count(*) FROM details")) == (6,)
    assert next(full.query("PRAGMA integrity_check")) == ("ok",)


def test_only_failures_go_if_asked(full):
    report = prune(full, failures=True)
    assert (report.kept, report.deleted) == (62, 20)
    assert full.count() == TrialCounts(62, 62, {}, cut_short=2)


@pytest.mark.parametrize("options", [{}, {"keep": 0}, {"keep": 3, "failures": True}])
def test_what_to_prune_must_be_clear(full, options):
    with pytest.raises(UsageError, match="--keep N"):
        prune(full, **options)
    assert full.count().total == 82


def test_a_store_in_use_is_not_pruned(full):
    full.begin_run(run_info())
    with pytest.raises(BusyRecordsError, match="is being recorded"):
        prune(full, keep=1)
    assert full.count().total == 82
