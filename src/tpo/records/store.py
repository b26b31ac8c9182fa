"""The run store: every trial of every run, in one SQLite file that several processes may write at once.

A trial is one transaction, so a killed process loses at most the trial in flight. Candidates are
claimed before they are measured: no two living processes measure the same one.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tpo.errors import BusyRecordsError, DamagedRecordsError
from tpo.records import process, rows, tables
from tpo.records.database import Database
from tpo.records.reader import Reader
from tpo.records.record import CandidateLike, RunInfo
from tpo.records.schema import MIGRATIONS, Migration

if TYPE_CHECKING:
    from tpo.measure.contract import Measurement
    from tpo.workload import Workload


class Records(Reader):
    """A record store, a context manager. One may be shared by threads, not by a process and its fork."""

    @classmethod
    def open(
        cls,
        path: str | Path,
        create: bool = True,
        readonly: bool = False,
        tvm_version: str | None = None,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Records:
        """Open the store at `path`, or make a new one there; `readonly` works where nothing can be written.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Records.open(f"{folder}/run.db") as records:
        ...     records.count().total
        0
        """
        return cls(Database.open(Path(path), create, readonly, migrations), tvm_version)

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def using(self, tvm_version: str) -> Records:
        """The same open store, for trials measured by another TVM."""
        return Records(self._database, tvm_version)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Everything written inside is stored at once, or not at all."""
        return self._database.write()

    def shrink(self) -> None:
        """Give the space of deleted records back to the file system."""
        self._database.shrink()

    # Workloads -------------------------------------------------------------------------------------

    def add_workload(self, workload: Workload, name: str = "", flops: int = 0) -> None:
        """Store a function, once; a name and FLOPs fill in what was unknown before."""
        self.add_workload_json(workload.key, workload.to_json(), name, flops)

    def add_workload_json(self, key: str, text: str, name: str = "", flops: int = 0) -> None:
        """`add_workload` for a workload in TVM's JSON."""
        with self.transaction() as connection:
            found = connection.execute("SELECT module FROM workloads WHERE key = ?", (key,)).fetchone()
            if found is None:
                connection.execute(
                    "INSERT INTO workloads (key, name, flops, module) VALUES (?, ?, ?, ?)",
                    (key, name, flops, rows.pack_text(text)),
                )
                return
            stored = rows.unpack_text(found[0])
            if stored != text and not _same_function(stored, text):
                raise DamagedRecordsError(path=self.path, why=f"workload {key} is stored as another function")
            connection.execute("UPDATE workloads SET name = ? WHERE key = ? AND name = ''", (name, key))
            connection.execute("UPDATE workloads SET flops = ? WHERE key = ? AND flops = 0", (flops, key))

    # Runs ------------------------------------------------------------------------------------------

    def begin_run(self, info: RunInfo) -> str:
        """Store a new run of this process; its id."""
        uid = uuid.uuid4().hex[:12]
        now = time.time()
        with self.transaction() as connection:
            connection.execute(
                """INSERT INTO runs
                       (uid, model_sha256, target, machine, info, owner, created, updated, status)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running')""",
                (
                    uid,
                    info.model_sha256,
                    tables.intern(connection, "targets", "key", info.target),
                    tables.intern(connection, "machines", "facts", rows.dump(info.machine)),
                    rows.info_text(info),
                    tables.owner(connection),
                    now,
                    now,
                ),
            )
        return uid

    def save_state(self, run: str, state: Mapping[str, Any]) -> None:
        """Store what `--resume` needs; replaces the state before."""
        text = json.dumps(dict(state), separators=(",", ":"))
        with self.transaction() as connection:
            self._update_run(connection, run, "state = ?", text)
            tables.owner(connection)

    def end_run(self, run: str, status: str) -> None:
        """The run is "done" or "interrupted"; whatever it still claimed is free again."""
        if status not in ("done", "interrupted"):
            raise ValueError(f"a run ends as 'done' or 'interrupted', not {status!r}")
        with self.transaction() as connection:
            self._update_run(connection, run, "status = ?, owner = NULL", status)
            self.release(run)

    def take_over(self, run: str) -> None:
        """Continue the run in this process; claims its former process left behind are void."""
        with self.transaction() as connection:
            found = connection.execute(f"{rows.RUN} WHERE r.uid = ?", (run,)).fetchone()
            if found is None:
                raise self._unknown("run", run)
            owner = rows.owner(found)
            if rows.run(found).alive and owner != process.current():
                why = f"process {owner.pid if owner else '?'} is working on run {run}"
                raise BusyRecordsError(path=self.path, why=why)
            self.release(run)
            self._update_run(connection, run, "status = 'running', owner = ?", tables.owner(connection))

    # Trials ----------------------------------------------------------------------------------------

    def claim(self, run: str, workload: str, target: str, candidates: Sequence[str]) -> set[str]:
        """Reserve candidates for this run: those that are neither recorded nor claimed by a living other."""
        with self.transaction() as connection:
            run_id, owner = self._id(connection, "runs", "uid", run), tables.owner(connection)
            place = self._place(connection, workload, target)
            taken = tables.recorded(connection, place, candidates)
            taken |= tables.claimed(connection, place, run_id, owner)
            ours = set(candidates) - taken
            connection.executemany(
                """INSERT OR REPLACE INTO claims (workload, target, tvm, candidate, run, owner)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                [(*place, candidate, run_id, owner) for candidate in ours],
            )
            return ours

    def add(
        self, run: str, workload: str, target: str, candidate: CandidateLike, measurement: Measurement
    ) -> int:
        """Record a measured candidate; the trial's id. One that is recorded already stays as it is."""
        _require_time(measurement)
        with self.transaction() as connection:
            place = self._place(connection, workload, target)
            same = "workload = ? AND target = ? AND tvm = ? AND candidate = ?"
            connection.execute(f"DELETE FROM claims WHERE {same}", (*place, candidate.key))
            tables.owner(connection)
            found = connection.execute(f"SELECT id FROM trials WHERE {same}", (*place, candidate.key))
            if (row := found.fetchone()) is not None:
                return int(row[0])
            run_id = self._id(connection, "runs", "uid", run)
            return tables.insert_trial(connection, place, run_id, candidate, measurement)

    def confirm(self, trial: int, measurement: Measurement) -> None:
        """A second, careful measurement of a leader replaces the first; a failed one makes it a failure."""
        _require_time(measurement)
        with self.transaction() as connection:
            changed = connection.execute(
                """UPDATE trials
                   SET seconds = ?, failure = ?, cut_short = ?, confirmed = ?, drift = ?, error = ?
                   WHERE id = ?""",
                (
                    *tables.outcome(measurement),
                    measurement.ok and not measurement.cut_short,
                    measurement.drift,
                    measurement.error,
                    trial,
                ),
            ).rowcount
            if not changed:
                raise self._unknown("trial", trial)
            connection.execute(
                "UPDATE details SET message = ?, samples = ? WHERE trial = ?",
                (measurement.message, rows.pack_samples(measurement.samples), trial),
            )

    def release(self, run: str) -> None:
        """Give up what the run claimed and did not measure."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM claims WHERE run = (SELECT id FROM runs WHERE uid = ?)", (run,))

    # Inside ----------------------------------------------------------------------------------------

    def _id(self, connection: sqlite3.Connection, table: str, column: str, value: str) -> int:
        found = connection.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,)).fetchone()
        if found is None:
            raise self._unknown(table.removesuffix("s"), value)
        return int(found[0])

    def _place(self, connection: sqlite3.Connection, workload: str, target: str) -> tables.Place:
        return (
            self._id(connection, "workloads", "key", workload),
            tables.intern(connection, "targets", "key", target),
            tables.intern(connection, "tvm_versions", "version", self.tvm_version),
        )

    def _update_run(self, connection: sqlite3.Connection, run: str, change: str, value: object) -> None:
        done = connection.execute(
            f"UPDATE runs SET {change}, updated = ? WHERE uid = ?", (value, time.time(), run)
        )
        if done.rowcount == 0:
            raise self._unknown("run", run)


def _same_function(one: str, other: str) -> bool:
    from tpo.workload import Workload

    return Workload.from_json(one).same_as(Workload.from_json(other))


def _require_time(measurement: Measurement) -> None:
    if measurement.ok and (measurement.seconds is None or not math.isfinite(measurement.seconds)):
        raise ValueError(f"a measurement that did not fail has a time, not {measurement.seconds}")
