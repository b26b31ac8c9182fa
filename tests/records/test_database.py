"""The file itself: what is refused, what is migrated, what can be read where nothing can be written."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.record_stores import TARGET, TVM, WORKLOAD, candidate, new_store, run_info, took
from tpo.errors import (
    BusyRecordsError,
    DamagedRecordsError,
    NewerRecordsError,
    NotRecordsError,
    RecordsFileError,
    RecordsWriteError,
)
from tpo.records import Records, database, schema


def fill(path: Path, trials: int = 1) -> None:
    with new_store(path) as records:
        run = records.begin_run(run_info())
        for number in range(trials):
            records.add(run, WORKLOAD, TARGET, candidate(f"c{number}"), took(1.0 + number))
        records.end_run(run, "done")


@pytest.fixture
def store(tmp_path):
    fill(tmp_path / "run.db")
    return tmp_path / "run.db"


@pytest.fixture
def shared_folder():
    """A folder that other users may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="tpo-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def ordinary_user():
    """Permissions count in here: root, whom they do not bind, is somebody else meanwhile."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_closed_store_is_one_file(store):
    assert [item.name for item in store.parent.iterdir()] == ["run.db"]
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA application_id").fetchone() == (schema.APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("readonly", [False, True])
def test_an_empty_file_is_a_new_store(tmp_path, readonly):
    (tmp_path / "run.db").touch()
    with Records.open(tmp_path / "run.db", readonly=readonly, tvm_version=TVM) as records:
        assert records.count().total == 0
        assert records.best(WORKLOAD, TARGET) is None
    assert (tmp_path / "run.db").stat().st_size == 0 or not readonly


def test_odd_file_names(tmp_path):
    path = tmp_path / "a?mode=ro&b#c %20.db"
    fill(path)
    with Records.open(path, create=False, tvm_version=TVM) as records:
        assert records.count().total == 1
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


# What is refused


def refused(path: Path, kind: type[Exception], *parts: str, **options: bool) -> None:
    before = path.read_bytes() if path.is_file() else None
    for readonly in (False, True):
        with pytest.raises(kind) as raised:
            Records.open(path, readonly=readonly, **options)
        for part in parts:
            assert part in str(raised.value)
        assert "\n" not in str(raised.value)
        assert raised.value.exit_code == 2
    if before is not None:
        assert path.read_bytes() == before


def test_paths_that_cannot_be_a_store(tmp_path):
    refused(tmp_path, RecordsFileError, "it is a folder")
    refused(tmp_path / "none" / "run.db", RecordsFileError, f"there is no folder {tmp_path}/none")
    refused(tmp_path / "run.db", RecordsFileError, "there is no such file", create=False)
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", RecordsFileError, "not a regular file")
    with pytest.raises(RecordsFileError, match="too long"):
        Records.open(tmp_path / ("x" * 300))
    assert [item.name for item in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("content", [b"hello", b"\x7fELF" * 1000, b"[[]]\n", b"\0" * 4096])
def test_a_file_that_is_no_database_is_left_alone(tmp_path, content):
    (tmp_path / "run.db").write_bytes(content)
    refused(tmp_path / "run.db", NotRecordsError, "not an SQLite file", "choose another path")


def test_a_database_of_others_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("CREATE TABLE trials (id INTEGER PRIMARY KEY)")
    connection.close()
    refused(tmp_path / "run.db", NotRecordsError, "another application", "left as it is")
    assert [item.name for item in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.parametrize("size", [1, 15, 16, 99, 100, 4096, -4096, -1])
def test_a_truncated_store_is_told(store, size):
    content = store.read_bytes()
    store.write_bytes(content[:size])
    refused(store, DamagedRecordsError, "cut off", ".recover")


def test_a_store_of_the_future_is_told(store):
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    refused(store, NewerRecordsError, "schema 99", f"up to {len(schema.MIGRATIONS)}", "upgrade tpo")


def test_damaged_pages_are_told_when_they_are_met(tmp_path):
    path = tmp_path / "run.db"
    fill(path, 400)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with (
        pytest.raises(DamagedRecordsError, match="malformed"),
        Records.open(path, tvm_version=TVM) as records,
    ):
        list(records.trials())
    with (
        pytest.raises(DamagedRecordsError, match="malformed"),
        Records.open(path, readonly=True, tvm_version=TVM) as records,
    ):
        records.best(WORKLOAD, TARGET)


def test_missing_tables_are_told(store):
    with sqlite3.connect(store) as connection:
        connection.execute("DROP TABLE claims")
    connection.close()
    with Records.open(store, tvm_version=TVM) as records, pytest.raises(DamagedRecordsError, match="claims"):
        records.known(WORKLOAD, TARGET)


def test_a_store_that_stays_locked_is_told(store, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Records.open(store, tvm_version=TVM) as records:
        with pytest.raises(BusyRecordsError, match="stayed locked"):
            records.begin_run(run_info())
        assert records.count().total == 1  # reading goes on
        other.execute("ROLLBACK")
        records.begin_run(run_info())
    other.close()


def test_a_full_disk_is_told_and_loses_nothing(store):
    with Records.open(store, tvm_version=TVM) as records:
        run = records.begin_run(run_info())
        pages = next(records.query("PRAGMA page_count"))[0]
        list(records.query(f"PRAGMA max_page_count = {pages + 2}"))
        with pytest.raises(RecordsWriteError, match="full"):
            for number in range(10_000):
                records.add(run, WORKLOAD, TARGET, candidate(f"full{number}"), took(1.0))
        assert records.count(run).total == number
        list(records.query(f"PRAGMA max_page_count = {pages * 100}"))
        records.add(run, WORKLOAD, TARGET, candidate("after"), took(1.0))
        assert records.count(run).total == number + 1


# Migration


def add_note(connection):
    connection.execute("ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")


def add_tags(connection):
    connection.execute("CREATE TABLE tags (run INTEGER, tag TEXT)")
    connection.execute("INSERT INTO tags SELECT id, note FROM runs")


NEXT = (*schema.MIGRATIONS, add_note, add_tags)


def version(path):
    with sqlite3.connect(path) as connection:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def test_an_old_store_is_brought_up_to_date(store):
    with Records.open(store, tvm_version=TVM, migrations=NEXT) as records:
        assert list(records.query("SELECT tag FROM tags")) == [("none",)]
        assert records.best(WORKLOAD, TARGET).candidate == "c0"
    assert version(store) == len(NEXT)
    with pytest.raises(NewerRecordsError):
        Records.open(store)
    with Records.open(store, migrations=NEXT, tvm_version=TVM) as records:
        assert list(records.query("SELECT tag FROM tags")) == [("none",)]


def test_each_version_is_a_start(tmp_path):
    path = tmp_path / "run.db"
    with Records.open(path, migrations=NEXT[:-1]) as records:
        records.begin_run(run_info())
    assert version(path) == len(NEXT) - 1
    with Records.open(path, migrations=NEXT) as records:
        assert list(records.query("SELECT tag FROM tags")) == [("none",)]


def test_reading_an_old_store_does_not_change_it(store):
    before = store.read_bytes()
    with Records.open(store, readonly=True, tvm_version=TVM, migrations=NEXT) as records:
        assert list(records.query("SELECT tag FROM tags")) == [("none",)]
        assert records.best(WORKLOAD, TARGET).candidate == "c0"
    assert store.read_bytes() == before


def test_a_migration_that_fails_changes_nothing(store):
    def fail(connection):
        connection.execute("CREATE TABLE half (id INTEGER)")
        raise RuntimeError("half way")

    before = store.read_bytes()
    with pytest.raises(RuntimeError, match="half way"):
        Records.open(store, migrations=(*NEXT, fail))
    assert store.read_bytes() == before


# Where nothing can be written


def test_a_file_and_folder_that_may_only_be_read(shared_folder):
    path = shared_folder / "run.db"
    fill(path)
    path.chmod(0o444)
    shared_folder.chmod(0o555)
    before = path.read_bytes()
    with ordinary_user():
        with Records.open(path, readonly=True, tvm_version=TVM) as records:
            assert records.best(WORKLOAD, TARGET).candidate == "c0"
        for name in ("run.db", "new.db"):
            with pytest.raises(RecordsFileError, match="not writable"):
                Records.open(shared_folder / name)
    assert path.read_bytes() == before
    assert [item.name for item in shared_folder.iterdir()] == ["run.db"]


def test_a_log_that_was_left_is_read_where_nothing_can_be_written(shared_folder, store):
    """A killed process's last trials are in the log beside the file."""
    path = shared_folder / "run.db"
    with Records.open(store, tvm_version=TVM) as records:
        run = records.begin_run(run_info())
        records.add(run, WORKLOAD, TARGET, candidate("late"), took(0.5))
        for suffix in ("", "-wal"):  # as a process that is killed now would leave them
            shutil.copyfile(f"{store}{suffix}", f"{path}{suffix}")
    shared_folder.chmod(0o555)
    before = path.read_bytes()
    with ordinary_user(), Records.open(path, readonly=True, tvm_version=TVM) as records:
        assert records.best(WORKLOAD, TARGET).candidate == "late"
    assert sorted(item.name for item in shared_folder.iterdir()) == ["run.db", "run.db-wal"]
    assert path.read_bytes() == before


def test_a_store_another_user_writes_can_be_read(shared_folder):
    path = shared_folder / "run.db"
    fill(path)
    with Records.open(path, tvm_version=TVM) as records:
        records.add(records.begin_run(run_info()), WORKLOAD, TARGET, candidate("new"), took(0.5))
        with ordinary_user(), Records.open(path, readonly=True, tvm_version=TVM) as reader:
            assert reader.best(WORKLOAD, TARGET).candidate == "new"


def test_a_file_that_may_not_be_read(shared_folder):
    path = shared_folder / "run.db"
    fill(path)
    path.chmod(0)
    with ordinary_user(), pytest.raises(RecordsFileError, match="may not be read"):
        Records.open(path, readonly=True)


def test_reading_leaves_no_files_and_sees_what_others_write(store):
    with Records.open(store, tvm_version=TVM) as writer:
        run = writer.begin_run(run_info())
        with Records.open(store, readonly=True, tvm_version=TVM) as reader:
            writer.add(run, WORKLOAD, TARGET, candidate("new"), took(0.1))
            assert reader.best(WORKLOAD, TARGET).candidate == "new"
    assert [item.name for item in store.parent.iterdir()] == ["run.db"]
