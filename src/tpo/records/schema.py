"""The tables of a store, as an ordered list of steps: version N of the schema is the first N steps.

A step is never changed once a store may have been written with it; a change of the schema is a new
step at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

# "tpor" in ASCII; `file run.db` and `open` tell a store from other SQLite files by it.
APPLICATION_ID = 0x74706F72

Migration = Callable[[sqlite3.Connection], None]

# Usable trials only: what `best` may return, in the order it prefers them.
USABLE = "failure IS NULL AND cut_short = 0"

_TABLES = (
    """CREATE TABLE workloads (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        flops INTEGER NOT NULL,
        module BLOB NOT NULL  -- zlib of TVM's JSON
    )""",
    "CREATE TABLE targets (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE)",
    "CREATE TABLE tvm_versions (id INTEGER PRIMARY KEY, version TEXT NOT NULL UNIQUE)",
    "CREATE TABLE machines (id INTEGER PRIMARY KEY, facts TEXT NOT NULL UNIQUE)",
    """CREATE TABLE processes (
        id INTEGER PRIMARY KEY,
        host TEXT NOT NULL,
        boot TEXT NOT NULL,
        namespace TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started REAL NOT NULL,
        seen REAL NOT NULL,
        UNIQUE (host, boot, namespace, pid, started)
    )""",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        uid TEXT NOT NULL UNIQUE,
        model_sha256 TEXT NOT NULL,
        target INTEGER NOT NULL REFERENCES targets (id),
        machine INTEGER NOT NULL REFERENCES machines (id),
        info TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('running', 'done', 'interrupted')),
        owner INTEGER REFERENCES processes (id),
        state TEXT,
        created REAL NOT NULL,
        updated REAL NOT NULL
    )""",
    """CREATE TABLE trials (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES runs (id),
        workload INTEGER NOT NULL REFERENCES workloads (id),
        target INTEGER NOT NULL REFERENCES targets (id),
        tvm INTEGER NOT NULL REFERENCES tvm_versions (id),
        candidate TEXT NOT NULL,
        seconds REAL,
        failure TEXT,
        cut_short INTEGER NOT NULL,
        confirmed INTEGER NOT NULL,
        drift REAL NOT NULL,
        error REAL,
        build_seconds REAL NOT NULL,
        run_seconds REAL NOT NULL,
        created REAL NOT NULL,
        CHECK ((seconds IS NULL) = (failure IS NOT NULL))
    )""",
    # What is long lives apart, so that counting and ranking trials reads little.
    """CREATE TABLE details (
        trial INTEGER PRIMARY KEY REFERENCES trials (id) ON DELETE CASCADE,
        sketch TEXT NOT NULL,
        message TEXT NOT NULL,
        samples BLOB NOT NULL,  -- little-endian doubles
        trace BLOB NOT NULL     -- zlib of TVM's JSON
    )""",
    """CREATE TABLE claims (
        workload INTEGER NOT NULL REFERENCES workloads (id),
        target INTEGER NOT NULL REFERENCES targets (id),
        tvm INTEGER NOT NULL REFERENCES tvm_versions (id),
        candidate TEXT NOT NULL,
        run INTEGER NOT NULL REFERENCES runs (id),
        owner INTEGER NOT NULL REFERENCES processes (id),
        PRIMARY KEY (workload, target, tvm, candidate)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX trials_identity ON trials (workload, target, tvm, candidate)",
    f"""CREATE INDEX trials_best ON trials (workload, target, tvm, confirmed DESC, seconds)
        WHERE {USABLE}""",
    "CREATE INDEX trials_outcome ON trials (workload, target, tvm, failure, cut_short)",
    "CREATE INDEX trials_run ON trials (run, failure, cut_short)",
    "CREATE INDEX runs_model ON runs (model_sha256, target)",
    "CREATE INDEX claims_run ON claims (run)",
)


def _create_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


def _add_programs(connection: sqlite3.Connection) -> None:
    """Traces may start from another program that computes the same as the workload."""
    connection.execute(
        """CREATE TABLE programs (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            module BLOB NOT NULL  -- zlib of TVM's JSON
        )"""
    )
    connection.execute("ALTER TABLE details ADD COLUMN program INTEGER REFERENCES programs (id)")


def _add_counters(connection: sqlite3.Connection) -> None:
    """What an emulator has counted is kept, so that other weights can be given to it later."""
    connection.execute("ALTER TABLE details ADD COLUMN counters TEXT")


MIGRATIONS: tuple[Migration, ...] = (_create_tables, _add_programs, _add_counters)


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of an open store; 0 for an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Bring a store to the newest schema, in one transaction."""
    if version_of(connection) >= len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited for the lock.
        for step in migrations[version_of(connection) :]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
