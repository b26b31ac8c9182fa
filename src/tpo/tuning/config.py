"""Every setting of a tuning run, and where its value comes from.

Layers, each overriding the one before: defaults, the preset of the effort, a TOML file, environment
variables (`TPO_TUNE_TRIALS`, `TPO_TUNE_MEASURE__HOPELESS`), options. Whichever layer names the effort,
its preset stays the lowest. A layer is a flat mapping of dotted keys to settings that remember where
they were written, so that a message about a wrong one can say so.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tpo.errors import ConfigError, NoTaskError
from tpo.resources import folder
from tpo.targets import MAX_THREADS

# The standard library has it since 3.11; tomli is the same module for 3.10.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

Effort: TypeAlias = Literal["quick", "normal", "full"]
StrategyName: TypeAlias = Literal["evolutionary", "random", "replay", "tvm"]
CostName: TypeAlias = Literal["pretrained", "ranking", "regression"]
PREFIX = "TPO_TUNE_"
NESTED = "__"
_FILE = "give a file like those in configs/effort/"
# Settings that end a run: a preset's hold only where nobody names any of them.
BUDGET = ("trials", "trials_per_task", "minutes")


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any) -> Any:
        """Pydantic would take `true` for 1, and no setting is a yes or no."""
        if isinstance(value, bool):
            raise ValueError("should not be true or false")
        return value


class MeasureConfig(_Settings):
    """How a candidate is built and timed."""

    build_timeout: float = Field(
        default=5.0, gt=0, description="the time a candidate may take to build, in seconds"
    )
    run_timeout: float = Field(
        default=20.0, gt=0, description="the time all runs of a candidate may take together, in seconds"
    )
    memory_gb: float = Field(default=4.0, gt=0, description="the memory a candidate may allocate, in GB")
    confidence: float = Field(
        default=0.02, gt=0, lt=1, description="how exactly a time must be known, relative to itself"
    )
    hopeless: float = Field(
        default=3.0,
        gt=1,
        description="how many times slower than the best a candidate is when it is cut short",
    )
    recycle: int = Field(
        default=300, ge=1, description="the number of builds after which a worker process is replaced"
    )
    board: str | None = Field(
        default=None,
        min_length=1,
        description="the host to measure on by ssh (unset: here, or in an emulator)",
    )
    rpc: str | None = Field(
        default=None, min_length=1, description="the HOST:PORT of TVM's RPC server to measure on"
    )
    wrapper: str = Field(default="", description="the command that runs kernels on the board")
    cycles: str | None = Field(
        default=None, min_length=1, description="the file of weights of what the emulator counts"
    )


class TuneConfig(_Settings):
    """What a tuning run is told: made by `load_config`, stored with the run."""

    effort: Effort = Field(default="normal", description="the preset, in configs/effort/, of budget and care")
    trials: int | None = Field(default=None, ge=1, description="the most candidates to measure")
    trials_per_task: int | None = Field(
        default=None, ge=1, description="the most candidates to measure, times the number of tasks"
    )
    minutes: float | None = Field(default=None, gt=0, description="the longest the run may take, in minutes")
    batch: int = Field(default=16, ge=1, description="the number of candidates proposed and measured at once")
    confirm: int = Field(
        default=4,
        ge=1,
        description="the number of leaders of each task measured again before one is called best",
    )
    strategy: StrategyName = Field(
        default="evolutionary", description="what decides which candidates are tried"
    )
    cost: CostName = Field(default="pretrained", description="what ranks candidates before they are measured")
    seed: int = Field(default=0, ge=0, description="the start of all random numbers")
    threads: int | None = Field(
        default=None,
        ge=1,
        le=MAX_THREADS,
        description="the number of threads to run on (unset: one for each core)",
    )
    rules: tuple[str, ...] = Field(default=(), description="the files of schedule rules")
    tasks: str | None = Field(
        default=None,
        min_length=1,
        description="the tasks to tune: shell patterns of names, separated by commas",
    )
    measure: MeasureConfig = Field(default=MeasureConfig(), description="how candidates are measured")

    def trial_limit(self, tasks: int) -> int | None:
        """The number of trials a run of this many tasks ends after, if any.

        >>> TuneConfig(trials_per_task=32).trial_limit(10)
        320
        """
        limits = [self.trials, self.trials_per_task and self.trials_per_task * tasks]
        return min((limit for limit in limits if limit is not None), default=None)

    def select(self, names: Sequence[str]) -> list[str]:
        """Those of the tasks' names that are to be tuned, in their order.

        >>> TuneConfig(tasks="conv*,softmax").select(["conv2d_add", "mean", "softmax"])
        ['conv2d_add', 'softmax']
        """
        if self.tasks is None:
            return list(names)
        patterns = [part.strip() for part in self.tasks.split(",")]
        chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if not chosen:
            raise NoTaskError(pattern=self.tasks, names=_summary(names))
        return chosen


def load_config(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] = os.environ,
    assignments: Sequence[str] = (),
) -> TuneConfig:
    """The effective configuration of a run.

    `overrides` are options by dotted key, of which those that are None were not given; `assignments`
    are texts `key=value`, as `--set` takes them.
    """
    given = _file_layer(file) if file is not None else {}
    given |= _environment_layer(env)
    given |= _option_layer(overrides or {}, assignments)
    effort = _validate({key: given[key] for key in ("effort",) if key in given}).effort
    preset = _preset_layer(effort)
    if any(given[key].value is not None for key in BUDGET if key in given):
        preset = {key: setting for key, setting in preset.items() if key not in BUDGET}
    # "none" takes a value of a lower layer back; where nothing is left of a budget, the preset's stands.
    given = {key: setting for key, setting in given.items() if setting.value is not None}
    return _validate(preset | given)


def effective(config: TuneConfig) -> dict[str, Any]:
    """Every setting, as JSON holds it; `TuneConfig.model_validate` reads it back."""
    return config.model_dump(mode="json")


# Layers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """A value and where it was written, as a message would begin."""

    value: Any
    where: str


_Layer: TypeAlias = dict[str, _Setting]


def _leaves(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """The fields of a model and of its sections, by dotted key."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= _leaves(inner, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = field
    return found


_FIELDS = _leaves(TuneConfig)
_SECTIONS = {key.rpartition(".")[0] for key in _FIELDS if "." in key}


def _preset_layer(effort: str) -> _Layer:
    return _file_layer(folder("configs") / "effort" / f"{effort}.toml")


def _file_layer(path: Path) -> _Layer:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            where=path, why=f"the file cannot be read ({error.strerror})", advice=_FILE
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where=path, why=f"it is not valid TOML ({error})", advice=_FILE) from error
    layer = {}
    for key, value in _flatten(content):
        _require_known(key, str(path))
        # A path in a file is meant from there; what is no file there may still be a rule's name.
        if key == "rules" and isinstance(value, list):
            value = [_beside(path, rule) for rule in value]
        layer[key] = _Setting(value, f"{path}: {key}")
    return layer


def _beside(file: Path, rule: Any) -> Any:
    return str(file.parent / rule) if isinstance(rule, str) and (file.parent / rule).exists() else rule


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and (value or key in _SECTIONS):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _environment_layer(env: Mapping[str, str]) -> _Layer:
    layer = {}
    for variable, text in env.items():
        # An empty variable is how scripts unset one.
        if variable.startswith(PREFIX) and text:
            key = variable.removeprefix(PREFIX).lower().replace(NESTED, ".")
            _require_known(key, "environment", _variable)
            layer[key] = _Setting(_from_text(key, text), f"environment variable {variable}")
    return layer


def _option_layer(overrides: Mapping[str, Any], assignments: Sequence[str]) -> _Layer:
    layer = {}
    for key, value in overrides.items():
        if value is not None:
            _require_known(key, "options")
            layer[key] = _Setting(value, f"option {key}")
    for text in assignments:
        key, divider, value = (part.strip() for part in text.partition("="))
        if not (key and divider and value):
            raise ConfigError(
                where=f"--set {text}", why="cannot be understood", advice="write --set key=value"
            )
        _require_known(key, "--set")
        if overrides.get(key) is not None:
            raise ConfigError(where=f"--set {key}", why="it is given as an option too", advice="give it once")
        layer[key] = _Setting(_from_text(key, value), f"--set {key}")
    return layer


def _from_text(key: str, text: str) -> Any:
    """A setting written as text: numbers are left to validation, which knows the type."""
    kinds = get_args(_FIELDS[key].annotation)
    if text.strip().lower() == "none" and type(None) in kinds:
        return None
    return [part.strip() for part in text.split(",")] if Ellipsis in kinds else text.strip()


# Checks ----------------------------------------------------------------------------------------


def _validate(layer: _Layer) -> TuneConfig:
    nested: dict[str, Any] = {}
    for key, setting in layer.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = setting.value
    try:
        return TuneConfig.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        steps = [str(step) for step in first["loc"]]
        key = next(key for key in (".".join(steps[:2]), steps[0]) if key in layer)
        problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
        raise ConfigError(
            where=layer[key].where,
            why=f"{layer[key].value!r} {problem}",
            advice=f"{key} is {_FIELDS[key].description}",
        ) from error


def _variable(key: str) -> str:
    return PREFIX + key.replace(".", NESTED).upper()


def _require_known(key: str, where: str, spell: Callable[[str], str] = str) -> None:
    if key in _FIELDS:
        return
    if key in _SECTIONS:
        inside = ", ".join(spell(known) for known in _FIELDS if known.startswith(f"{key}."))
        raise ConfigError(where=where, why=f"{spell(key)} is a section", advice=f"set one of {inside}")
    near = _nearest(key)
    advice = f"there are {', '.join(map(spell, _FIELDS))}" if near is None else f"did you mean {spell(near)}?"
    raise ConfigError(where=where, why=f"there is no setting {spell(key)}", advice=advice)


def _nearest(key: str, enough: float = 0.6) -> str | None:
    """The setting that was probably meant, if any; who mistakes only the section still finds the name."""
    likeness = {
        known: max(
            difflib.SequenceMatcher(None, *pair).ratio()
            for pair in ((key, known), (key.rpartition(".")[2], known.rpartition(".")[2]))
        )
        for known in _FIELDS
    }
    best = max(likeness, key=likeness.__getitem__)
    return best if likeness[best] >= enough else None


def _summary(names: Sequence[str], most: int = 8) -> str:
    """Names without their numbers, counted: what a pattern could be written for."""
    kinds = Counter(name.rstrip("0123456789").rstrip("_") for name in names)
    shown = [kind if count == 1 else f"{kind} ({count})" for kind, count in kinds.most_common(most)]
    return ", ".join(shown) + (f" and {len(kinds) - most} more" if len(kinds) > most else "")
