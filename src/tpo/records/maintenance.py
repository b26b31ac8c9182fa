"""Merging stores into one, and pruning one to what is worth keeping."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpo.errors import BusyRecordsError, UsageError
from tpo.records import tables
from tpo.records.reader import Reader
from tpo.records.schema import USABLE
from tpo.records.store import Records

_COLUMNS = """candidate, seconds, failure, cut_short, confirmed, drift, error, build_seconds, run_seconds,
    created"""


@dataclass(frozen=True)
class MergeReport:
    """What came into the destination: `replaced` trials were there before, with weaker evidence."""

    runs: int
    added: int
    replaced: int
    duplicates: int


@dataclass(frozen=True)
class PruneReport:
    """Trials that are left and that were deleted, and the file's size in bytes before and after."""

    kept: int
    deleted: int
    bytes_before: int
    bytes_after: int


def merge_files(destination: str | Path, sources: Sequence[str | Path]) -> MergeReport:
    """`merge` for paths; a destination that is new appears only if everything could be read."""
    output = Path(destination)
    for source in map(Path, sources):
        if output.exists() and source.exists() and output.samefile(source):
            raise UsageError(why=f"{source} cannot be merged into itself", advice="name it once, as OUT")
    opened: list[Records] = []
    try:
        opened.extend(Records.open(source, create=False, readonly=True) for source in sources)
        is_new = not output.exists()
        try:
            with Records.open(output) as records:
                return merge(records, opened)
        except BaseException:
            if is_new:
                for suffix in ("", "-wal", "-shm"):
                    output.with_name(output.name + suffix).unlink(missing_ok=True)
            raise
    finally:
        for source_records in opened:
            source_records.close()


def merge(destination: Records, sources: Sequence[Reader]) -> MergeReport:
    """Copy runs, workloads and trials of other stores, in one transaction.

    A candidate that both have is kept once: the confirmed trial, or else the earlier one. (The lower
    time is not the better evidence: keeping it would favour lucky measurements.)
    """
    total = MergeReport(0, 0, 0, 0)
    with destination.transaction() as connection:
        for source in sources:
            with source.snapshot():
                for key, name, flops in source.query("SELECT key, name, flops FROM workloads ORDER BY id"):
                    destination.add_workload_json(key, source.workload_json(key), name, flops)
                part = _merge_trials(connection, source, _merge_runs(connection, source))
            total = MergeReport(
                total.runs + part.runs,
                total.added + part.added,
                total.replaced + part.replaced,
                total.duplicates + part.duplicates,
            )
    return total


def _merge_runs(connection: sqlite3.Connection, source: Reader) -> list[str]:
    """Runs by their ids; one that both have takes the newer state. The ids of new ones."""
    new = []
    for uid, sha256, target, facts, info, status, state, created, updated in source.query(
        """SELECT r.uid, r.model_sha256, g.key, m.facts, r.info, r.status, r.state, r.created, r.updated
           FROM runs r JOIN targets g ON g.id = r.target JOIN machines m ON m.id = r.machine ORDER BY r.id"""
    ):
        if connection.execute("SELECT 1 FROM runs WHERE uid = ?", (uid,)).fetchone() is None:
            new.append(uid)
            connection.execute(
                """INSERT INTO runs
                       (uid, model_sha256, target, machine, info, status, state, created, updated)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (
                    uid,
                    sha256,
                    tables.intern(connection, "targets", "key", target),
                    tables.intern(connection, "machines", "facts", facts),
                    info,
                    status,
                    state,
                    created,
                    updated,
                ),
            )
        else:
            connection.execute(
                "UPDATE runs SET status = ?, state = ?, updated = ? WHERE uid = ? AND updated < ?",
                (status, state, updated, uid, updated),
            )
    return new


def _merge_trials(connection: sqlite3.Connection, source: Reader, new_runs: list[str]) -> MergeReport:
    workloads = _numbers(connection, source, "workloads", "key")
    targets = _numbers(connection, source, "targets", "key")
    versions = _numbers(connection, source, "tvm_versions", "version")
    runs = _numbers(connection, source, "runs", "uid")
    programs = {
        number: tables.insert_program(connection, key, packed)
        for number, key, packed in source.query("SELECT id, key, module FROM programs")
    }
    added = replaced = duplicates = 0
    for row in source.query(
        f"""SELECT workload, target, tvm, run, {_COLUMNS}, sketch, message, samples, trace, counters, program
            FROM trials t JOIN details d ON d.trial = t.id ORDER BY t.id"""
    ):
        workload, target, tvm, run, *columns = row
        place = (workloads[workload], targets[target], versions[tvm])
        measured, details, program = columns[:-6], columns[-6:-1], programs.get(columns[-1])
        found = connection.execute(
            """SELECT id, confirmed, created FROM trials
               WHERE workload = ? AND target = ? AND tvm = ? AND candidate = ?""",
            (*place, measured[0]),
        ).fetchone()
        if found is not None:
            number, confirmed, created = found
            if (-confirmed, created) <= (-measured[4], measured[9]):
                duplicates += 1
                continue
            connection.execute("DELETE FROM trials WHERE id = ?", (number,))
            replaced += 1
        else:
            added += 1
        trial = connection.execute(
            f"INSERT INTO trials (workload, target, tvm, run, {_COLUMNS}) VALUES ({', '.join('?' * 14)})",
            (*place, runs[run], *measured),
        ).lastrowid
        connection.execute(
            """INSERT INTO details (trial, sketch, message, samples, trace, counters, program)
               VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (trial, *details, program),
        )
    return MergeReport(len(new_runs), added, replaced, duplicates)


def _numbers(connection: sqlite3.Connection, source: Reader, table: str, column: str) -> dict[int, int]:
    """From the source's integer for each value of a table to the destination's."""
    return {
        number: tables.intern(connection, table, column, value)
        for number, value in source.query(f"SELECT id, {column} FROM {table}")
    }


def prune(records: Records, keep: int | None = None, failures: bool = False) -> PruneReport:
    """Delete all but the `keep` best trials of each workload, target and TVM version, or all failures.

    What is deleted is forgotten: a later run may measure those candidates again.
    """
    if (keep is None) != failures or (keep is not None and keep < 1):
        raise UsageError(
            why="it is not clear what to keep", advice="give --keep N (at least 1) or --failures"
        )
    for run in records.runs():
        if run.alive:
            raise BusyRecordsError(path=records.path, why=f"run {run.id} is being recorded")
    before = _size(records)
    with records.transaction() as connection:
        if failures:
            condition = "failure IS NOT NULL"
        else:
            connection.execute("CREATE TEMP TABLE kept (id INTEGER PRIMARY KEY)")
            connection.execute(
                f"""INSERT INTO kept SELECT id FROM (
                        SELECT id, row_number() OVER (
                            PARTITION BY workload, target, tvm ORDER BY confirmed DESC, seconds, id
                        ) AS place FROM trials WHERE {USABLE}
                    ) WHERE place <= ?""",
                (keep,),
            )
            condition = "id NOT IN (SELECT id FROM kept)"
        deleted = connection.execute(f"DELETE FROM trials WHERE {condition}").rowcount
        connection.execute("DROP TABLE IF EXISTS temp.kept")
        connection.execute(
            "DELETE FROM programs WHERE id NOT IN (SELECT program FROM details WHERE program IS NOT NULL)"
        )
    records.shrink()
    return PruneReport(records.count().total, deleted, before, _size(records))


def _size(records: Reader) -> int:
    """Bytes of the database, whether they are in the file yet or still in its log."""
    ((pages,), (page_bytes,)) = (*records.query("PRAGMA page_count"), *records.query("PRAGMA page_size"))
    return int(pages * page_bytes)
