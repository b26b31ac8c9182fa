"""Finding what people mean: a workload by a piece of its name or key, a target by a piece of its text."""

from __future__ import annotations

import fnmatch
import json

from tpo.errors import UnknownRecordError, UsageError
from tpo.records.reader import Reader
from tpo.records.record import UNIT, WorkloadRow, target_key, target_title

_SHORTEST_KEY = 4


def find_workloads(records: Reader, text: str) -> list[WorkloadRow]:
    """Workloads whose name is `text` or matches it as a pattern, or whose key begins with it."""
    rows = records.workloads()
    named = [row for row in rows if row.name == text]
    matching = [
        row
        for row in rows
        if fnmatch.fnmatchcase(row.name, text) or (len(text) >= _SHORTEST_KEY and row.key.startswith(text))
    ]
    if not (named or matching):
        raise UnknownRecordError(path=records.path, kind="workload", key=text)
    return named or matching


def find_target(records: Reader, text: str) -> str:
    """The key of the stored target called `text`: its key, a piece of its title, `native` or a preset."""
    keys = records.targets()
    found = [key for key in keys if key == text] or [key for key in keys if text in target_title(key)]
    if not found:
        wanted = _without_cores(_resolved(text))
        found = [key for key in keys if wanted is not None and _without_cores(key) == wanted]
    if not found:
        raise UnknownRecordError(path=records.path, kind="target", key=text)
    if len(found) > 1:
        raise ambiguous(records, text, found)
    return found[0]


def ambiguous(records: Reader, text: str, keys: list[str]) -> UsageError:
    """The error that lists the targets to choose from."""
    what = f"several targets like {text!r}" if text else "trials for several targets"
    titles = ", ".join(repr(target_title(key)) for key in keys)
    return UsageError(why=f"{records.path} has {what}", advice=f"choose with --target: {titles}")


def _resolved(text: str) -> str | None:
    from tpo import targets

    return target_key(targets.resolve(text).tvm) if text in targets.known_targets() else None


def _without_cores(key: str | None) -> str | None:
    try:
        config = None if key is None else json.loads(key)
    except ValueError:
        return key
    if isinstance(config, dict):
        config.pop("num-cores", None)
        config.pop(UNIT, None)
    return None if config is None else json.dumps(config, sort_keys=True)
