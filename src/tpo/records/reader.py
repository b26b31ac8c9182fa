"""Asking a store: what was tried, what is best, what may be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpo.errors import UnknownRecordError
from tpo.records import process, rows
from tpo.records.database import Database
from tpo.records.process import Process
from tpo.records.record import Group, Run, Trial, TrialCounts, WorkloadRow, target_title
from tpo.records.schema import USABLE

if TYPE_CHECKING:
    from tpo.workload import Workload

_BEST_FIRST = "confirmed DESC, seconds, id"
_PLACE = """workload = (SELECT id FROM workloads WHERE key = ?)
    AND target = (SELECT id FROM targets WHERE key = ?)
    AND tvm = (SELECT id FROM tvm_versions WHERE version = ?)"""


class Reader:
    """All questions a store answers. Only trials by `tvm_version` (default: the installed TVM) are used."""

    def __init__(self, database: Database, tvm_version: str | None = None) -> None:
        self._database = database
        self._tvm_version = tvm_version

    @property
    def path(self) -> Path:
        """The store's file."""
        return self._database.path

    @property
    def tvm_version(self) -> str:
        """The TVM whose trials are used here, and by which new ones are measured."""
        if self._tvm_version is None:
            import tvm

            self._tvm_version = str(tvm.__version__)
        return self._tvm_version

    def snapshot(self) -> AbstractContextManager[None]:
        """All questions inside are answered as of one moment, whatever others record meanwhile."""
        return self._database.snapshot()

    def query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a query in SQL, for questions that have no method; docs/records.md lists the tables."""
        return self._database.stream(sql, values)

    def close(self) -> None:
        """Close the file; calling it twice is fine."""
        self._database.close()

    def workload(self, key: str) -> Workload:
        """The stored function of that key."""
        from tpo.workload import Workload

        return Workload.from_json(self.workload_json(key))

    def workload_json(self, key: str) -> str:
        """The stored function of that key in TVM's JSON."""
        found = self._database.rows("SELECT module FROM workloads WHERE key = ?", (key,))
        if not found:
            raise self._unknown("workload", key)
        return rows.unpack_text(found[0][0])

    def start(self, trial: Trial) -> Workload:
        """The function that a trial's trace starts from: its workload, or another program for it."""
        from tpo.workload import Workload

        if trial.program is None:
            return self.workload(trial.workload)
        found = self._database.rows("SELECT module FROM programs WHERE key = ?", (trial.program,))
        return Workload.from_json(rows.unpack_text(found[0][0]))

    def workloads(self) -> list[WorkloadRow]:
        """All workloads in the order they were added, with the trials of each."""
        outcomes: dict[int, list[tuple[str | None, int, int]]] = {}
        for number, *outcome in self._database.rows(
            "SELECT workload, failure, cut_short, count(*) FROM trials GROUP BY workload, failure, cut_short"
        ):
            outcomes.setdefault(number, []).append((outcome[0], outcome[1], outcome[2]))
        return [
            WorkloadRow(key, name, flops, rows.counts(outcomes.get(number, [])))
            for number, key, name, flops in self._database.rows(
                "SELECT id, key, name, flops FROM workloads ORDER BY id"
            )
        ]

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return [rows.run(row) for row in self._database.rows(f"{rows.RUN} ORDER BY r.id")]

    def unfinished(self, model_sha256: str, target: str) -> Run | None:
        """The newest run of that model and target that ended too early."""
        found = self._database.rows(
            f"{rows.RUN} WHERE r.model_sha256 = ? AND g.key = ? AND r.status <> 'done' ORDER BY r.id DESC",
            (model_sha256, target),
        )
        return next((run for run in map(rows.run, found) if not run.alive), None)

    def has(self, workload: str, target: str, candidate: str) -> bool:
        """Whether the candidate is recorded."""
        found = self._database.rows(
            f"SELECT 1 FROM trials WHERE {_PLACE} AND candidate = ?",
            (workload, target, self.tvm_version, candidate),
        )
        return bool(found)

    def known(self, workload: str, target: str) -> set[str]:
        """Candidates not worth proposing: recorded ones, and those other living processes measure now."""
        place = (workload, target, self.tvm_version)
        recorded = {
            row[0] for row in self._database.rows(f"SELECT candidate FROM trials WHERE {_PLACE}", place)
        }
        alive = {process.current(): False}  # its own claims are no reason not to propose
        for candidate, *owner, seen in self._database.rows(
            f"""SELECT c.candidate, p.host, p.boot, p.namespace, p.pid, p.started, p.seen
                FROM claims c JOIN processes p ON p.id = c.owner WHERE {_PLACE}""",
            place,
        ):
            claimant = Process(*owner)
            if claimant not in alive:
                alive[claimant] = claimant.alive(seen)
            if alive[claimant]:
                recorded.add(candidate)
        return recorded

    def trials(
        self,
        workload: str | None = None,
        target: str | None = None,
        run: str | None = None,
        limit: int | None = None,
        best_first: bool = False,
    ) -> Iterator[Trial]:
        """Trials of all TVM versions in the order they were recorded, or the best first and failures last."""
        given = {"w.key": workload, "g.key": target, "r.uid": run}
        conditions = [f"{column} = ?" for column, value in given.items() if value is not None]
        values: list[Any] = [value for value in given.values() if value is not None]
        order = "t.failure IS NOT NULL, t.cut_short, t.confirmed DESC, t.seconds, t.id"
        sql = rows.TRIAL.format(source="trials")
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        sql += f" ORDER BY {order if best_first else 't.id'}"
        if limit is not None:
            sql, values = f"{sql} LIMIT ?", [*values, limit]
        return map(rows.trial, self._database.stream(sql, values))

    def best(self, workload: str, target: str) -> Trial | None:
        """The fastest trial: of those measured twice if there are any, never one that was cut short."""
        return next(iter(self.top(workload, target, 1)), None)

    def top(self, workload: str, target: str, count: int) -> list[Trial]:
        """The `count` best trials, best first."""
        source = f"""(
            SELECT * FROM trials INDEXED BY trials_best
            WHERE {_PLACE} AND {USABLE}
            ORDER BY {_BEST_FIRST} LIMIT ?
        )"""
        sql = f"{rows.TRIAL.format(source=source)} ORDER BY t.confirmed DESC, t.seconds, t.id"
        found = self._database.rows(sql, (workload, target, self.tvm_version, count))
        return [rows.trial(row) for row in found]

    def others(self, workload: str, target: str) -> list[str]:
        """Why records of the workload are not used: measured for another target or by another TVM."""
        reasons = []
        for number, other_target, version in self._database.rows(
            f"""SELECT count(*), g.key, v.version FROM trials t
                JOIN targets g ON g.id = t.target JOIN tvm_versions v ON v.id = t.tvm
                WHERE t.workload = (SELECT id FROM workloads WHERE key = ?) AND {USABLE}
                GROUP BY t.target, t.tvm ORDER BY t.target, t.tvm""",
            (workload,),
        ):
            reason = f"for target {target_title(other_target)}" if other_target != target else ""
            if version != self.tvm_version:
                reason = f"{reason} by TVM {version}".strip()
            if reason:
                reasons.append(f"{number} trial{'s' if number > 1 else ''} {reason}")
        return reasons

    def count(self, run: str | None = None) -> TrialCounts:
        """How many trials there are, in the store or of one run."""
        where = "" if run is None else "WHERE run = (SELECT id FROM runs WHERE uid = ?)"
        found = self._database.rows(
            f"SELECT failure, cut_short, count(*) FROM trials {where} GROUP BY failure, cut_short",
            () if run is None else (run,),
        )
        return rows.counts((failure, cut_short, number) for failure, cut_short, number in found)

    def groups(self) -> list[Group]:
        """The trials of every workload, by target and TVM version, with the best time of each."""
        outcomes: dict[tuple[int, int, int], list[tuple[str | None, int, int]]] = {}
        for workload, target, tvm, *outcome in self._database.rows(
            """SELECT workload, target, tvm, failure, cut_short, count(*) FROM trials
               GROUP BY workload, target, tvm, failure, cut_short"""
        ):
            failure, cut_short, number = outcome
            outcomes.setdefault((workload, target, tvm), []).append((failure, cut_short, number))
        names = {row[0]: row[1:] for row in self._database.rows("SELECT id, key, name FROM workloads")}
        targets = dict(self._database.rows("SELECT id, key FROM targets"))
        versions = dict(self._database.rows("SELECT id, version FROM tvm_versions"))
        best = f"""SELECT seconds FROM trials INDEXED BY trials_best
            WHERE workload = ? AND target = ? AND tvm = ? AND {USABLE} ORDER BY {_BEST_FIRST} LIMIT 1"""
        found = []
        for place, found_outcomes in outcomes.items():
            key, name = names[place[0]]
            fastest = self._database.rows(best, place)
            found.append(
                Group(
                    workload=key,
                    name=name,
                    target=targets[place[1]],
                    tvm=versions[place[2]],
                    counts=rows.counts(found_outcomes),
                    best=fastest[0][0] if fastest else None,
                )
            )
        return found

    def targets(self) -> list[str]:
        """Keys of all targets there are trials for."""
        found = self._database.rows(
            "SELECT key FROM targets WHERE id IN (SELECT DISTINCT target FROM trials) ORDER BY id"
        )
        return [row[0] for row in found]

    def _unknown(self, kind: str, key: object) -> UnknownRecordError:
        return UnknownRecordError(path=self.path, kind=kind, key=key)
