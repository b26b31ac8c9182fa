"""`tpo tune`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpo.cli import options, output
from tpo.errors import TuningInterruptedError, UsageError

if TYPE_CHECKING:
    from tpo.cli.progress import Display
    from tpo.frontend.model import Model
    from tpo.tuning.config import TuneConfig
    from tpo.tuning.events import Event, RunFinished


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("tune")(tune)


def tune(
    model: options.ModelFile,
    target: Annotated[
        str, typer.Option("--target", help="`native`, a preset such as riscv, or a .toml file.")
    ] = "native",
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", help="Measure at most this many candidates.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="N", help="Take at most this long.")
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            "--effort", metavar="quick|normal|full", help="Preset of budget and care (default: normal)."
        ),
    ] = None,
    db: Annotated[
        Path | None,
        typer.Option("--db", metavar="FILE", help="Where records go (default: MODEL's name, .db)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run of this model in the records.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="PATTERN", help="Tune only tasks so named, such as 'conv2d*'."),
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="PATH", help="A file of schedule rules; repeatable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="A file of settings.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as measure.hopeless=4; repeatable."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--json", metavar="LOG.jsonl", help="Write every event as a line of JSON."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Start of all random numbers (default: 0).")
    ] = None,
    threads: options.Threads = None,
    vlen: options.Vlen = None,
    board: Annotated[
        str | None,
        typer.Option("--board", metavar="HOST", help="Measure on this RISC-V machine, by ssh; else in QEMU."),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option("--rpc", metavar="HOST:PORT", help="Measure there, by TVM's RPC."),
    ] = None,
    shape: options.Shapes = None,
    bucket: options.Bucket = None,
) -> None:
    """Search for faster schedules of a model's functions, and record what was measured."""
    from tpo.tuning.config import load_config

    overrides = {
        "trials": trials,
        "minutes": minutes,
        "effort": effort,
        "tasks": task,
        "rules": rules or None,
        "seed": seed,
        "threads": threads,
        "measure.board": board,
        "measure.rpc": rpc,
    }
    settings = load_config(config, overrides, assignments=assignments or ())
    name = model.stem or "model"
    store = db or Path(f"{name}.db")
    from tpo.records.database import check
    from tpo.targets import require_runnable, resolve

    check(store, create=True, writable=True)
    if log is not None:
        _check_log(log, model, store, config)
    resolved = resolve(target, settings.threads, vlen)
    require_runnable(resolved)
    where = [
        *_words("--target", None if target == "native" else target),
        *_words("--vlen", vlen),
        *_words("--shape", *(shape or ())),
        *_words("--bucket", bucket),
    ]
    again = [
        *("tpo", "tune", str(model), "--db", str(store), *where),
        *_words("--trials", trials),
        *_words("--minutes", minutes),
        *_words("--effort", effort),
        *_words("--task", task),
        *_words("--rules", *(rules or ())),
        *_words("--config", config),
        *_words("--set", *(assignments or ())),
        *_words("--json", log),
        *_words("--seed", seed),
        *_words("--threads", threads),
        *_words("--board", board),
        *_words("--rpc", rpc),
        "--resume",
    ]
    loaded = _load(model, shape, bucket, settings)
    if resume and not store.exists():
        output.note(f"warning: there is no {store} to resume from: a new run begins")
    elif db is None:
        output.note(f"records go to {store}")
    with ExitStack() as held:
        from tpo.records import Records
        from tpo.tuning.run import tune_model

        records = held.enter_context(Records.open(store))
        callbacks: list[Callable[[Event], None]] = [held.enter_context(_display())]
        if log is not None:
            callbacks.append(held.enter_context(EventLog(log, append=resume)))
        try:
            result = tune_model(loaded, resolved, settings, records, callbacks, resume)
        except KeyboardInterrupt:
            raise TuningInterruptedError(db=store, command=shlex.join(again)) from None
    _print_result(result)
    following = [
        *("tpo", "compile", str(model), "--db", str(store), "-o", f"{name}.so", *where),
        *_words("--threads", settings.threads),
    ]
    output.note(f"next: {shlex.join(following)}")


def _load(path: Path, shapes: list[str] | None, bucket: str | None, settings: TuneConfig) -> Model:
    model = options.load_model(path, shapes, bucket)
    from tpo.tuning.session import check

    # Before records are opened, so that a mistake leaves no empty file behind.
    check(model, settings)
    return model


def _display() -> Display:
    """A view redrawn in place where stderr is a terminal that can, else lines."""
    if sys.stderr.isatty():
        from rich.console import Console

        from tpo.cli.live import LiveDisplay

        console = Console(stderr=True, highlight=False)
        if not console.is_dumb_terminal:
            return LiveDisplay(console)
    from tpo.cli.progress import PlainDisplay

    return PlainDisplay(output.note)


def _print_result(result: RunFinished) -> None:
    from tpo.cli.progress import counted, duration, failures, speed_up
    from tpo.cli.units import unit_called

    unit = unit_called(result.unit)

    rows = [
        (
            task.name,
            task.weight,
            unit(task.default_seconds),
            unit(task.best_seconds),
            speed_up(task.default_seconds, task.best_seconds),
            f"{task.share:.1%}",
            task.trials,
            task.failures,
        )
        for task in result.tasks
    ]
    columns = (
        "task",
        "calls",
        f"default {unit.label}",
        f"best {unit.label}",
        "speed-up",
        "share",
        "trials",
        "failed",
    )
    output.print_table(columns, rows, right=columns[1:])
    total = sum(result.failures.values())
    failed = f", {total} failed ({failures(result.failures)})" if total else ""
    output.note(
        f"{result.status}: {counted(result.trials, 'trial')}{failed} in {duration(result.elapsed)}; "
        f"model {unit(result.default_model_seconds)} -> {unit.with_label(result.model_seconds)}, "
        f"{speed_up(result.default_model_seconds, result.model_seconds)} (estimated)"
    )


def _words(flag: str, *values: object) -> list[str]:
    """An option as it was given, for a command to paste; none for one that was not."""
    texts = [
        f"{value:g}" if isinstance(value, float) else str(value) for value in values if value is not None
    ]
    return [word for text in texts for word in (flag, text)]


# The log ---------------------------------------------------------------------------------------


class EventLog:
    """Events as lines of JSON, each in the file as soon as it happens."""

    def __init__(self, path: Path, append: bool) -> None:
        self._path = path
        try:
            # Unbuffered: a line is in the file whole, or not at all.
            self._file = path.open("ab" if append else "wb", buffering=0)
        except OSError as error:
            raise _refused_log(path, error.strerror) from error
        self._failed = False

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __call__(self, event: Event) -> None:
        """Write one event; a disk that is full ends the log, and not the run."""
        if self._failed:
            return
        try:
            self._file.write(json.dumps(event.to_json()).encode() + b"\n")
        except OSError as error:
            self._failed = True
            output.note(f"warning: cannot write {self._path}: {error.strerror}; tuning goes on without it")


def _check_log(path: Path, *others: Path | None) -> None:
    """Refuse a log that cannot be written before any work is done, and never write over an input."""
    why = None
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    elif any(other is not None and path.resolve() == other.resolve() for other in others):
        why = "it is given as something else too"
    if why is not None:
        raise _refused_log(path, why)


def _refused_log(path: Path, why: str | None) -> UsageError:
    return UsageError(why=f"cannot write {path}: {why}", advice="choose another path with --json")
