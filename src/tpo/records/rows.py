"""From rows to records and back: the joins that make a trial or run whole, and their packed columns."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from tpo.records.process import Process
from tpo.records.record import Run, RunInfo, Trial, TrialCounts

# Everything of a trial; the tables around `trials` are found by its integer keys.
TRIAL = """
    SELECT t.id, r.uid, w.key, g.key, t.candidate, d.sketch, d.trace, t.seconds, d.samples, t.failure,
           d.message, t.cut_short, t.drift, t.error, t.build_seconds, t.run_seconds, t.confirmed, t.created,
           v.version, m.facts, p.key, d.counters
    FROM {source} t
    JOIN details d ON d.trial = t.id
    JOIN runs r ON r.id = t.run
    JOIN machines m ON m.id = r.machine
    JOIN workloads w ON w.id = t.workload
    JOIN targets g ON g.id = t.target
    JOIN tvm_versions v ON v.id = t.tvm
    LEFT JOIN programs p ON p.id = d.program
"""
RUN = """
    SELECT r.uid, r.model_sha256, g.key, m.facts, r.info, r.status, r.state, r.created, r.updated,
           p.host, p.boot, p.namespace, p.pid, p.started, p.seen
    FROM runs r
    JOIN targets g ON g.id = r.target
    JOIN machines m ON m.id = r.machine
    LEFT JOIN processes p ON p.id = r.owner
"""


def trial(row: tuple[Any, ...]) -> Trial:
    """The trial of a row of `TRIAL`."""
    (
        number, run, workload, target, candidate, sketch, trace, seconds, samples, failure,
        message, cut_short, drift, error, build_seconds, run_seconds, confirmed, created,
        tvm, facts, program, counters,
    ) = row  # fmt: skip
    return Trial(
        id=number,
        run=run,
        workload=workload,
        target=target,
        candidate=candidate,
        sketch=sketch,
        trace=unpack_text(trace),
        seconds=seconds,
        samples=unpack_samples(samples),
        failure=failure,
        message=message,
        cut_short=bool(cut_short),
        drift=drift,
        error=error,
        build_seconds=build_seconds,
        run_seconds=run_seconds,
        confirmed=bool(confirmed),
        created=moment(created),
        tvm=tvm,
        machine=json.loads(facts),
        program=program,
        counters=json.loads(counters or "{}"),
    )


def run(row: tuple[Any, ...]) -> Run:
    """The run of a row of `RUN`; looks whether its process is alive."""
    uid, sha256, target, facts, info, status, state, created, updated, *_, seen = row
    process = owner(row)
    if status == "running" and not (process is not None and process.alive(seen)):
        status = "killed"
    return Run(
        id=uid,
        info=RunInfo(model_sha256=sha256, target=target, machine=json.loads(facts), **json.loads(info)),
        status=status,
        state=None if state is None else json.loads(state),
        created=moment(created),
        updated=moment(updated),
    )


def owner(row: tuple[Any, ...]) -> Process | None:
    """The process of a row of `RUN` that works, or worked, on the run."""
    host, boot, namespace, pid, started = row[9:14]
    return None if host is None else Process(host, boot, namespace, pid, started)


def info_text(info: RunInfo) -> str:
    """What of a run's description has no column of its own."""
    names = ("model_name", "model_path", "threads", "seed", "config", "versions")
    return dump({name: getattr(info, name) for name in names})


def counts(rows: Iterable[tuple[str | None, int, int]]) -> TrialCounts:
    """Sums of rows (failure, cut short, number of trials)."""
    failures: dict[str, int] = {}
    ok = short = 0
    for failure, cut_short, number in rows:
        if failure is not None:
            failures[failure] = failures.get(failure, 0) + number
        else:
            ok += number
            short += number * bool(cut_short)
    return TrialCounts(ok + sum(failures.values()), ok, dict(sorted(failures.items())), short)


def dump(content: Mapping[str, Any]) -> str:
    """Canonical JSON; what JSON has no word for (paths) becomes text."""
    return json.dumps(dict(content), sort_keys=True, separators=(",", ":"), default=str)


def pack_text(text: str) -> bytes:
    """Text as it is stored; traces shrink to about a seventh."""
    return zlib.compress(text.encode())


def unpack_text(packed: bytes) -> str:
    """The inverse of `pack_text`."""
    return zlib.decompress(packed).decode()


def pack_samples(samples: Iterable[float]) -> bytes:
    """Times as they are stored."""
    values = tuple(samples)
    return struct.pack(f"<{len(values)}d", *values)


def unpack_samples(packed: bytes) -> tuple[float, ...]:
    """The inverse of `pack_samples`."""
    return struct.unpack(f"<{len(packed) // 8}d", packed)


def moment(seconds: float) -> datetime:
    """A stored time."""
    return datetime.fromtimestamp(seconds, timezone.utc)
