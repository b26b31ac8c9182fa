"""TVM's own tuning databases: writing one that plain TVM applies, and reading what others wrote."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import meta_schedule as ms

from tpo.errors import OutputError, TvmDatabaseError, UsageError
from tpo.measure.contract import Measurement
from tpo.records import plain_tvm
from tpo.records.reader import Reader
from tpo.records.record import RunInfo, StoredCandidate, Trial, target_key, target_title, tvm_target
from tpo.records.replay import replay, uses_dot_products, uses_intrinsics
from tpo.records.select import ambiguous
from tpo.records.store import Records
from tpo.workload import Workload, in_place_of, structural_key

WORKLOADS, TRIALS, MODULE = "database_workload.json", "database_tuning_record.json", "module.json"
IMPORTED = "imported"
# What stock tuning writes as the time of a candidate that failed.
_NO_TIME = 1e9
_BATCH = 200
_VERSION = re.compile(rb'"tvm_version":\s*"([^"]+)"')


@dataclass(frozen=True)
class ExportReport:
    """What was written. `functions` and `matched` count those of the module, if one was given."""

    folder: Path
    target: str
    workloads: int
    trials: int
    functions: int | None
    matched: int | None
    left_out: dict[str, int]


@dataclass(frozen=True)
class ImportReport:
    """What was read: records that are now in the store, and why others are not.

    `other_tvm` of them were measured by another version of TVM, so that nothing will use them here.
    """

    folder: Path
    read: int
    skipped: dict[str, int]
    other_tvm: int
    runs: tuple[str, ...]


def export(
    records: Reader, folder: str | Path, target: str | None = None, top: int = 1, module: Any | None = None
) -> ExportReport:
    """Write the best trials as a folder that TVM's `JSONDatabase` reads.

    TVM looks records up without regard to the target, so a folder is for one: `target` (a `target_key`)
    chooses if the store has several. `module` is the Relax module the records belong to.
    """
    folder = Path(folder)
    _check_output(folder)
    target = _choose_target(records) if target is None else target
    best = {row.key: _best(records, row.key, target, top) for row in records.workloads()}
    best = {key: trials for key, trials in best.items() if trials}
    if not best:
        raise _nothing_usable(records, target)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made:
        inside = Path(made) / folder.name
        inside.mkdir()
        left_out: Counter[str] = Counter()
        trials = _write_database(records, inside, target, best, left_out)
        applied = _applied(inside, target, best, records)
        if module is not None:
            module = _with_programs(module, best, records)
            (inside / MODULE).write_text(tvm.ir.save_json(module), encoding="utf-8")
        traces = [trial.trace for found in best.values() for trial in found]
        dots = any(uses_dot_products(trace) for trace in traces)
        intrinsics = any(uses_intrinsics(trace) and not uses_dot_products(trace) for trace in traces)
        if dots:
            plain_tvm.write_dot_products(inside)
        readme = plain_tvm.readme(target, module is not None, intrinsics, dots)
        (inside / "README.md").write_text(readme, encoding="utf-8")
        _put_in_place(inside, folder)
    keys = None if module is None else _function_keys(module)
    return ExportReport(
        folder=folder,
        target=target,
        workloads=len(applied),
        trials=trials,
        functions=None if keys is None else len(keys),
        matched=None if keys is None else sum(key in applied for key in keys),
        left_out=dict(left_out),
    )


def import_folder(records: Records, folder: str | Path) -> ImportReport:
    """Add the records of a TVM `JSONDatabase` folder, leaving out lines that cannot be used."""
    folder = Path(folder)
    lines = {name: _lines(folder, name) for name in (WORKLOADS, TRIALS)}
    workloads = [_read_workload(line) for line in lines[WORKLOADS]]
    skipped: Counter[str] = Counter(why for why in workloads if isinstance(why, str))
    runs: dict[tuple[str, str], str] = {}
    for start in range(0, len(lines[TRIALS]), _BATCH):
        # Replaying takes long: it happens before the store is locked for others.
        batch = [_read_record(line, workloads) for line in lines[TRIALS][start : start + _BATCH]]
        with records.transaction():
            for found in batch:
                skipped[found if isinstance(found, str) else _add(records, folder, found, runs)] += 1
    for run in runs.values():
        records.end_run(run, "done")
    read = skipped.pop("", 0)
    others = sum(
        records.count(run).total for (_, version), run in runs.items() if version != records.tvm_version
    )
    return ImportReport(folder, read, dict(skipped), others, tuple(runs.values()))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is no TVM database before anything else is done."""
    for name in (WORKLOADS, TRIALS):
        if not (folder / name).is_file():
            raise TvmDatabaseError(path=folder, why=f"there is no {name} in it")


# Writing -------------------------------------------------------------------------------------------


def _choose_target(records: Reader) -> str:
    usable = [key for key in records.targets() if any(_usable(records, key))]
    if len(usable) > 1:
        raise ambiguous(records, "", usable)
    if not usable:
        raise _nothing_usable(records, None)
    return usable[0]


def _usable(records: Reader, target: str) -> Iterator[bool]:
    return (records.best(row.key, target) is not None for row in records.workloads())


def _nothing_usable(records: Reader, target: str | None) -> UsageError:
    why = f"{records.path} has no usable trial"
    if target is not None:
        why += f" for target {target_title(target)}"
    others = sorted({group.tvm for group in records.groups()} - {records.tvm_version})
    if others:
        why += f" by TVM {records.tvm_version} (but some by {', '.join(others)})"
    return UsageError(why=why, advice=f"see tpo db ls {records.path}")


def _write_database(
    records: Reader, folder: Path, target: str, best: dict[str, list[Trial]], left_out: Counter[str]
) -> int:
    """Write the two files; the number of records. Every program that traces start from is a workload."""
    workloads: dict[str, str] = {}
    lines = []
    for trials in best.values():
        for trial in trials:
            workload = records.start(trial)
            text = _line(ms.database.Workload(workload.module).as_json())
            index = list(workloads).index(workload.key) if workload.key in workloads else len(workloads)
            workloads.setdefault(workload.key, text)
            # TVM takes whatever has the lowest time: what is not as well proven must not come first.
            if trial.seconds is None or trial.seconds < (trials[0].seconds or 0.0):
                left_out["faster than the best, but not measured again"] += 1
                continue
            try:
                replay(workload, trial.trace, target)
            except Exception:  # TVM's schedule primitives raise many kinds of errors
                left_out["its trace cannot be replayed"] += 1
                continue
            # No argument shapes: applying needs none, and TVM cannot tell those of padded weights.
            record = [json.loads(trial.trace), [trial.seconds], tvm_target(target), None]
            # Not by TVM's own writer, which makes annotations that are True to ones that are 1.
            lines.append(_line([index, record]))
    (folder / WORKLOADS).write_text("".join(workloads.values()), encoding="utf-8")
    (folder / TRIALS).write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _line(content: list[Any]) -> str:
    # TVM's reader knows no \u escapes.
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n"


def _applied(folder: Path, target: str, best: dict[str, list[Trial]], records: Reader) -> set[str]:
    """The functions for which plain TVM finds a record, reading the files as it does."""
    database = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / TRIALS), allow_missing=False)
    for_tvm = tvm.target.Target(tvm_target(target))
    starts = {start.key: start for trials in best.values() for start in map(records.start, trials)}
    return {
        key
        for key, start in starts.items()
        if database.query_tuning_record(start.module, for_tvm, "main") is not None
    }


def _best(records: Reader, key: str, target: str, count: int) -> list[Trial]:
    """The best trials of a workload, the best one of the function as it stands in any case.

    Whoever has no module of ours has only the function itself, and not another program for it.
    """
    found = records.top(key, target, count)
    if found and all(trial.program is not None for trial in found):
        usable = (t for t in records.trials(key, target, best_first=True) if t.ok and not t.cut_short)
        plain = (t for t in usable if t.program is None and t.tvm == records.tvm_version)
        found += [trial for trial in (next(plain, None),) if trial is not None]
    return found


def _with_programs(module: Any, best: dict[str, list[Trial]], records: Reader) -> Any:
    """The module with the program of its best trial for every function that has one."""
    changed = module.clone()
    for var in module.get_global_vars():
        func = module[var]
        trials = best.get(Workload.of(func).key, []) if isinstance(func, tirx.PrimFunc) else []
        if trials and trials[0].program is not None:
            changed.update_func(var, in_place_of(func, records.start(trials[0]).func))
    return changed


def _function_keys(module: Any) -> list[str]:
    functions = (module[var] for var in module.get_global_vars())
    return [Workload.of(func).key for func in functions if isinstance(func, tirx.PrimFunc)]


def _check_output(folder: Path) -> None:
    why = None
    if folder.exists() and not folder.is_dir():
        why = "it is not a folder"
    elif folder.is_dir() and any(folder.iterdir()):
        why = "the folder is not empty"
    elif not folder.parent.is_dir():
        why = f"there is no folder {folder.parent}"
    if why is not None:
        raise UsageError(why=f"cannot write {folder}: {why}", advice="give the name of a new folder")


def _put_in_place(made: Path, folder: Path) -> None:
    try:
        if folder.is_dir():
            folder.rmdir()
        shutil.move(made, folder)
    except OSError as error:
        raise OutputError(path=folder, why=error.strerror) from error


# Reading -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Record:
    workload: Workload
    target: str
    tvm: str
    candidate: StoredCandidate
    measurement: Measurement


def _add(records: Records, folder: Path, found: _Record, runs: dict[tuple[str, str], str]) -> str:
    """Store a record; why it was not, or "". Each target and version of TVM gets a run of its own."""
    store, key = records.using(found.tvm), found.workload.key
    if store.has(key, found.target, found.candidate.key):
        return "recorded already"
    place = (found.target, found.tvm)
    if place not in runs:
        runs[place] = store.begin_run(_import_run(folder, *place))
    store.add_workload(found.workload)
    store.add(runs[place], key, found.target, found.candidate, found.measurement)
    return ""


def _lines(folder: Path, name: str) -> list[str]:
    try:
        return (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise TvmDatabaseError(path=folder, why=f"{name}: {error.strerror}") from error


def _read_workload(line: str) -> tuple[Workload, str] | str:
    """The function and the version of TVM that wrote it, or why it cannot be read."""
    try:
        content = json.loads(line)
        module = ms.database.Workload.from_json(content).mod
        version = _VERSION.search(base64.b64decode(content[1]))
    except Exception:  # lines of any content; TVM raises many kinds of errors
        return "unreadable workload"
    if [str(var.name_hint) for var in module.get_global_vars()] != ["main"]:
        return "workload is not one function called main"
    return Workload(module), version.group(1).decode() if version else "unknown"


def _read_record(line: str, workloads: list[tuple[Workload, str] | str]) -> _Record | str:
    try:
        index, (trace, times, target, _) = json.loads(line)
        found = workloads[index] if isinstance(index, int) and 0 <= index < len(workloads) else "missing"
    except (ValueError, TypeError):
        return "unreadable record"
    if isinstance(found, str):
        return "its workload is missing or unreadable"
    workload, version = found
    if not isinstance(target, dict):
        return "no target"
    if not _is_times(times):
        return "no time (it failed when it was measured)"
    try:
        key = target_key(tvm.target.Target(target))
    except Exception:  # TVM raises many kinds of errors
        return "unknown target"
    text = json.dumps(trace, separators=(",", ":"))
    try:
        module = replay(workload, text, key).mod
    except Exception:  # TVM's schedule primitives raise many kinds of errors
        return "its trace cannot be replayed"
    return _Record(
        workload=workload,
        target=key,
        tvm=version,
        candidate=StoredCandidate(structural_key(module), IMPORTED, text),
        measurement=Measurement(sum(times) / len(times), samples=tuple(map(float, times))),
    )


def _is_times(times: object) -> bool:
    return (
        isinstance(times, list)
        and bool(times)
        and all(isinstance(value, (int, float)) and 0 < value < _NO_TIME for value in times)
    )


def _import_run(folder: Path, target: str, version: str) -> RunInfo:
    cores = json.loads(target).get("num-cores", 1)
    return RunInfo(
        model_name=IMPORTED,
        model_path=str(folder.resolve()),
        model_sha256="",
        target=target,
        threads=int(cores),
        seed=0,
        config={"imported_from": str(folder.resolve())},
        versions={"tvm": version},
        machine={},
    )
