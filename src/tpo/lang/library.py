"""Where rules come from: our folders, the user's files, registered objects and installed packages.

A rule file is a Python file that defines rules at its top level; ours are loaded as the user's are.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from tpo import resources
from tpo.errors import RuleFileError
from tpo.lang.rules import Rule

ENTRY_POINTS = "tpo.rules"
# MetaSchedule's own space: rules of `schedule_rules/common`, in the order in which TVM applies them.
METASCHEDULE = {
    "cpu": (
        *("inline_constant_scalars", "auto_inline_cpu", "add_rfactor", "tiling_cpu", "marks_cpu"),
        "random_compute_location",
    ),
    "vnni": (
        *("inline_constant_scalars", "auto_inline_cpu", "add_rfactor", "tensorize_vnni", "tiling_cpu"),
        *("marks_cpu", "random_compute_location"),
    ),
    "cuda": (
        *("tiling_cuda", "inline_constant_scalars", "auto_inline_cuda", "cross_thread_reduction"),
        *("marks_cuda", "auto_bind"),
    ),
}

_registered: dict[str, Rule] = {}


def register(rule: Rule) -> Rule:
    """Make a rule part of every space from now on; one of the same name is replaced.

    >>> from tpo.lang import rule
    >>> @register
    ... @rule()
    ... def nothing(sch, block, hw):
    ...     "Do nothing."
    >>> unregister("nothing")
    """
    _registered[rule.name] = rule
    return rule


def unregister(name: str) -> None:
    """Forget a registered rule."""
    _registered.pop(name, None)


def added_rules() -> list[Rule]:
    """Rules beside ours: those of installed packages (entry points), then those registered here."""
    return [*_installed(), *_registered.values()]


@cache
def shipped_rules(folder: str = "cpu") -> tuple[Rule, ...]:
    """The rules of one of our folders, in the order of their files."""
    return tuple(load_rules([Path(resources.folder("schedule_rules")) / folder]))


def shipped_rule(name: str, folder: str = "cpu") -> Rule:
    """One of our rules."""
    return next(rule for rule in shipped_rules(folder) if rule.name == name)


def metaschedule_rules(kind: str) -> list[Rule]:
    """The rules that make MetaSchedule's space for "cpu", "vnni" or "cuda", in their order."""
    return [shipped_rule(name, "common") for name in METASCHEDULE[kind]]


def load_rules(paths: Iterable[Path]) -> list[Rule]:
    """The rules of some files, or of all Python files in some folders."""
    return [rule for path in paths for file in _files(path) for rule in _load(file)]


@cache
def _installed() -> tuple[Rule, ...]:
    """Rules that installed packages offer; one that cannot be loaded is their problem, said once."""
    found: list[Rule] = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            offered = entry.load()
        except Exception as error:  # whatever a foreign package does when it is imported
            raise RuleFileError(path=entry.value, why=f"{type(error).__name__}: {error}") from error
        found += [offered] if isinstance(offered, Rule) else rules_of(offered)
    return tuple(found)


def rules_of(module: ModuleType) -> list[Rule]:
    """The rules a module defines, in their order, by the names it gives them; `_names` are its own affair."""
    return [
        replace(value, name=name)
        for name, value in vars(module).items()
        if isinstance(value, Rule) and not name.startswith("_")
    ]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RuleFileError(path=path, why="there is no such file or folder")
    found = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
    if not found:
        raise RuleFileError(path=path, why="the folder has no .py file")
    return found


def _load(path: Path) -> list[Rule]:
    try:
        module = import_file(path)
    except Exception as error:  # whatever a user's file does when it is imported
        raise RuleFileError(path=path, why=f"{type(error).__name__}: {error}") from error
    found = rules_of(module)
    if not found:
        raise RuleFileError(path=path, why="it defines no rule: decorate a function with @tpo.rule()")
    return found


def import_file(path: Path) -> ModuleType:
    """The module of a rule file."""
    spec = importlib.util.spec_from_file_location(f"tpo_schedule_rules.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look themselves up there
    # A rule file may import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
