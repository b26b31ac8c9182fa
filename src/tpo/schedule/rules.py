"""Rule files: Python files with `schedule(sch, hw) -> bool`, ours and the user's loaded alike.

`schedule` changes `sch`, a TVM schedule, and returns True, or False where the rule does not apply.
Every sampling instruction it emits is a free site for the search. A file may also define
`choices(sch, hw) -> list[dict]`: keyword arguments for `schedule(sch, hw, **choice)`, each a structure
of its own, because a trace cannot branch. `choices` may do with its `sch` what it likes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tpo import resources
from tpo.errors import RuleFileError


@dataclass(frozen=True)
class Rule:
    """A rule file by its name."""

    name: str
    schedule: Callable[..., bool]
    choices: Callable[..., list[dict[str, Any]]] | None = None


@cache
def load_rule(name: str) -> ModuleType:
    """The module of a rule file of `schedule_rules/cpu`."""
    return _import(_shipped_folder() / f"{name}.py")


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """All rules of `schedule_rules/cpu`."""
    return tuple(_rule(path, load_rule(path.stem)) for path in _files(_shipped_folder()))


def load_rules(paths: Iterable[Path]) -> list[Rule]:
    """The rules of some files, or of all Python files in some folders."""
    return [_load(file) for path in paths for file in _files(path)]


def _shipped_folder() -> Path:
    return Path(resources.folder("schedule_rules")) / "cpu"


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RuleFileError(path=path, why="there is no such file or folder")
    found = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
    if not found:
        raise RuleFileError(path=path, why="the folder has no .py file")
    return found


def _load(path: Path) -> Rule:
    try:
        module = _import(path)
    except Exception as error:  # whatever a user's file does when it is imported
        raise RuleFileError(path=path, why=f"{type(error).__name__}: {error}") from error
    return _rule(path, module)


def _rule(path: Path, module: ModuleType) -> Rule:
    schedule, choices = getattr(module, "schedule", None), getattr(module, "choices", None)
    if not callable(schedule):
        raise RuleFileError(path=path, why="it has no function schedule(sch, hw)")
    if choices is not None and not callable(choices):
        raise RuleFileError(path=path, why="its `choices` is not a function")
    return Rule(path.stem, schedule, choices)


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tpo_schedule_rules.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
