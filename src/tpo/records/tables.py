"""The statements that several kinds of writing share; each runs inside a transaction of its caller."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpo.records import process, rows
from tpo.records.process import Process

if TYPE_CHECKING:
    from tpo.measure.contract import Measurement
    from tpo.records.record import CandidateLike
    from tpo.workload import Workload

# Workload, target and TVM version: trials that agree in them can be compared.
Place = tuple[int, int, int]

# SQLite's oldest limit on the values of one statement is 999.
_CHUNK = 500


def intern(connection: sqlite3.Connection, table: str, column: str, value: str) -> int:
    """The integer that stands for a value."""
    found = connection.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,)).fetchone()
    if found is None:
        number = connection.execute(f"INSERT INTO {table} ({column}) VALUES (?)", (value,)).lastrowid
        assert number is not None
        return number
    return int(found[0])


def owner(connection: sqlite3.Connection) -> int:
    """The integer that stands for this process, which now gave a sign of life."""
    here = process.current()
    identity = (here.host, here.boot, here.namespace, here.pid, here.started)
    connection.execute(
        """INSERT INTO processes (host, boot, namespace, pid, started, seen) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (host, boot, namespace, pid, started) DO UPDATE SET seen = excluded.seen""",
        (*identity, time.time()),
    )
    found = connection.execute(
        "SELECT id FROM processes WHERE (host, boot, namespace, pid, started) = (?, ?, ?, ?, ?)", identity
    ).fetchone()
    return int(found[0])


def recorded(connection: sqlite3.Connection, place: Place, candidates: Sequence[str]) -> set[str]:
    """Those of the candidates that have a trial."""
    found: set[str] = set()
    for start in range(0, len(candidates), _CHUNK):
        chunk = candidates[start : start + _CHUNK]
        cursor = connection.execute(
            f"""SELECT candidate FROM trials WHERE workload = ? AND target = ? AND tvm = ?
                AND candidate IN ({", ".join("?" * len(chunk))})""",
            (*place, *chunk),
        )
        found.update(row[0] for row in cursor)
    return found


def claimed(connection: sqlite3.Connection, place: Place, run: int, owner: int) -> set[str]:
    """What other runs of living processes claimed; claims of dead ones are deleted on the way."""
    taken: set[str] = set()
    alive: dict[int, bool] = {}
    for candidate, claim_run, claim_owner, *who, seen in connection.execute(
        """SELECT c.candidate, c.run, c.owner, p.host, p.boot, p.namespace, p.pid, p.started, p.seen
           FROM claims c JOIN processes p ON p.id = c.owner
           WHERE c.workload = ? AND c.target = ? AND c.tvm = ?""",
        place,
    ).fetchall():
        if (claim_run, claim_owner) == (run, owner):
            continue
        if claim_owner not in alive:
            alive[claim_owner] = Process(*who).alive(seen)
        if alive[claim_owner]:
            taken.add(candidate)
    for dead in (number for number, lives in alive.items() if not lives):
        connection.execute("DELETE FROM claims WHERE owner = ?", (dead,))
    return taken


def insert_trial(
    connection: sqlite3.Connection,
    place: Place,
    run: int,
    candidate: CandidateLike,
    measurement: Measurement,
) -> int:
    """A new row of `trials` and its details; the trial's id."""
    number = connection.execute(
        """INSERT INTO trials (workload, target, tvm, candidate, run, seconds, failure, cut_short,
               confirmed, drift, error, build_seconds, run_seconds, created)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)""",
        (
            *place,
            candidate.key,
            run,
            *outcome(measurement),
            measurement.drift,
            measurement.error,
            measurement.build_seconds,
            measurement.run_seconds,
            time.time(),
        ),
    ).lastrowid
    assert number is not None
    connection.execute(
        """INSERT INTO details (trial, sketch, message, samples, trace, program, counters)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (
            number,
            candidate.sketch,
            measurement.message,
            rows.pack_samples(measurement.samples),
            rows.pack_text(candidate.trace_json),
            None if candidate.program is None else _program(connection, candidate.program),
            rows.dump(measurement.counters) if measurement.counters else None,
        ),
    )
    return number


def _program(connection: sqlite3.Connection, program: Workload) -> int:
    """The integer that stands for a program, which is stored once."""
    found = connection.execute("SELECT id FROM programs WHERE key = ?", (program.key,)).fetchone()
    if found is not None:
        return int(found[0])
    return insert_program(connection, program.key, rows.pack_text(program.to_json()))


def insert_program(connection: sqlite3.Connection, key: str, packed: bytes) -> int:
    """A new row of `programs`, unless there is one already; its id."""
    connection.execute("INSERT OR IGNORE INTO programs (key, module) VALUES (?, ?)", (key, packed))
    return int(connection.execute("SELECT id FROM programs WHERE key = ?", (key,)).fetchone()[0])


def outcome(measurement: Measurement) -> tuple[float | None, str | None, bool]:
    """The columns seconds, failure and cut_short: a failure has no time, whatever was measured before it."""
    if measurement.failure is not None:
        return None, str(measurement.failure), False
    return measurement.seconds, None, measurement.cut_short
