"""`tpo db`: look into record stores, merge and prune them, exchange records with plain TVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpo.cli import db_print, options, output
from tpo.cli.units import unit_called
from tpo.errors import UsageError
from tpo.records.record import target_title, unit_of

if TYPE_CHECKING:
    from tpo.records.store import Records

Store = Annotated[Path, typer.Argument(metavar="DB", help="A record store, such as run.db.")]
TargetPiece = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", help="A target of the store: a piece of its text, or a name."),
]
TASK_HELP = "A workload: its name, a pattern such as 'conv*', or the start of its key."


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    group = typer.Typer(
        help="Look into record stores, merge and prune them, exchange records with plain TVM.",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    commands: dict[str, Callable[..., None]] = {
        "ls": ls,
        "show": show,
        "best": best,
        "merge": merge,
        "export": export,
        "import": import_,
        "prune": prune,
    }
    for name, command in commands.items():
        group.command(name)(command)
    app.add_typer(group, name="db")


def ls(store: Store, as_json: options.Json = False) -> None:
    """List runs, targets and workloads: trials, failures by kind, best times."""
    with _open(store) as records:
        runs = [(run, records.count(run.id)) for run in records.runs()]
        groups, version = records.groups(), records.tvm_version
    if as_json:
        output.print_json(
            {
                "tvm": version,
                "runs": [db_print.run_json(run, counts) for run, counts in runs],
                "workloads": [{**asdict(group), "usable": group.tvm == version} for group in groups],
            }
        )
        return
    db_print.print_runs(runs)
    if groups:
        typer.echo("")
        db_print.print_targets(groups, version)
        typer.echo("")
        db_print.print_workloads(groups)


def show(
    store: Store,
    task: Annotated[str, typer.Argument(metavar="TASK", help=TASK_HELP)],
    target: TargetPiece = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Trials of each workload to list.")] = 20,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the best trial's trace as Python instead.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List trials of a workload, the best first, failures last."""
    from tpo.records import select

    with _open(store) as records:
        key = None if target is None else select.find_target(records, target)
        found = select.find_workloads(records, task)
        if trace:
            _show_traces(records, [row.key for row in found], key, as_json)
            return
        listed = {row.key: list(records.trials(row.key, key, limit=limit, best_first=True)) for row in found}
    if as_json:
        output.print_json(
            [
                {**asdict(row), "trials": [db_print.trial_json(trial) for trial in listed[row.key]]}
                for row in found
            ]
        )
        return
    for row in found:
        db_print.print_trials(row, listed[row.key])
        if len(listed[row.key]) == limit:
            output.note(f"the first {limit} trials; --limit shows more")


def best(
    store: Store,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help=TASK_HELP)] = None,
    target: TargetPiece = None,
    as_json: options.Json = False,
) -> None:
    """Print the best trial of every workload, or of those that TASK names."""
    from tpo.records import select

    with _open(store) as records:
        found = records.workloads() if task is None else select.find_workloads(records, task)
        keys = records.targets() if target is None else [select.find_target(records, target)]
        leaders = [
            (row, trial) for row in found for key in keys if (trial := records.best(row.key, key)) is not None
        ]
        ignored = [group for group in records.groups() if group.tvm != records.tvm_version]
    if as_json:
        output.print_json([{"name": row.name, **db_print.trial_json(trial)} for row, trial in leaders])
        return
    db_print.print_best(leaders)
    if ignored:
        number, versions = sum(group.counts.total for group in ignored), {group.tvm for group in ignored}
        output.note(f"not used: {number} trials by TVM {', '.join(sorted(versions))}")


def merge(
    result: Annotated[Path, typer.Argument(metavar="OUT", help="The store to merge into; made if missing.")],
    sources: Annotated[list[Path], typer.Argument(metavar="DB...", help="Stores to copy from.")],
    as_json: options.Json = False,
) -> None:
    """Copy the runs and trials of other stores into one; a candidate is kept once."""
    from tpo.records.maintenance import merge_files

    report = merge_files(result, sources)
    if as_json:
        output.print_json(asdict(report))
        return
    rows = [
        ("runs added", report.runs),
        ("trials added", report.added),
        ("replaced by better evidence", report.replaced),
        ("already there", report.duplicates),
    ]
    output.print_table(("", ""), rows)


def export(
    store: Store,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder to write.")],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="MODEL", help="An ONNX file: also writes its functions as module.json."
        ),
    ] = None,
    shape: options.Shapes = None,
    target: TargetPiece = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Trials of each workload.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Write the best trials as a tuning database that plain TVM applies."""
    from tpo.records import select, tvm_json

    with _open(store) as records:
        key = None if target is None else select.find_target(records, target)
        module = None
        if model is not None:
            import tpo
            from tpo.frontend.shapes import parse_shapes

            module = tpo.load_onnx(model, parse_shapes(shape or [])).module
        report = tvm_json.export(records, folder, key, top, module)
    if as_json:
        output.print_json(asdict(report))
        return
    rows = [
        ("folder", report.folder),
        ("target", target_title(report.target)),
        ("workloads", report.workloads),
        ("trials", report.trials),
    ]
    if report.functions is not None:
        rows.append(("functions", f"{report.matched} of the model's {report.functions} have a record"))
    output.print_table(("", ""), rows)
    for why, number in report.left_out.items():
        output.note(f"left out: {number} ({why})")
    output.note(f"how to use it without tpo: {report.folder / 'README.md'}")


def import_(
    store: Annotated[Path, typer.Argument(metavar="DB", help="The store to add to; made if missing.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A TVM JSONDatabase folder.")],
    as_json: options.Json = False,
) -> None:
    """Add the records of a TVM tuning database; lines that cannot be used are counted and left out."""
    from tpo.records import Records, tvm_json

    tvm_json.check_folder(folder)
    with Records.open(store) as records:
        report = tvm_json.import_folder(records, folder)
    if as_json:
        output.print_json(asdict(report))
        return
    rows = [("read", report.read), *((f"skipped: {why}", number) for why, number in report.skipped.items())]
    output.print_table(("", ""), rows)
    if report.other_tvm:
        output.note(f"{report.other_tvm} of them were measured by another version of TVM: kept, but not used")


def prune(
    store: Store,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", help="Keep the N best trials of each workload and target."),
    ] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Delete failed trials only.")] = False,
    as_json: options.Json = False,
) -> None:
    """Delete trials and shrink the file; a later run may measure deleted candidates again."""
    from tpo.records import Records, maintenance

    with Records.open(store, create=False) as records:
        report = maintenance.prune(records, keep, failures)
    if as_json:
        output.print_json(asdict(report))
        return
    rows = [
        ("trials kept", report.kept),
        ("trials deleted", report.deleted),
        ("size", f"{output.size(report.bytes_before)} -> {output.size(report.bytes_after)}"),
    ]
    output.print_table(("", ""), rows)


def _open(store: Path) -> Records:
    from tpo.records import Records

    return Records.open(store, create=False, readonly=True)


def _show_traces(records: Records, workloads: list[str], target: str | None, as_json: bool) -> None:
    from tpo.records.replay import as_python

    targets = records.targets() if target is None else [target]
    found = [trial for key in workloads for item in targets if (trial := records.best(key, item)) is not None]
    if not found:
        raise UsageError(why="no usable trial has a trace to show", advice=f"see tpo db ls {records.path}")
    texts = [as_python(records.start(trial), trial.trace, trial.target) for trial in found]
    if as_json:
        output.print_json(
            [{**db_print.trial_json(trial), "python": text} for trial, text in zip(found, texts, strict=True)]
        )
        return
    for trial, text in zip(found, texts, strict=True):
        typer.echo(
            f"# {trial.workload}, {target_title(trial.target)}, "
            f"{unit_called(unit_of(trial.target)).with_label(trial.seconds)}"
        )
        typer.echo(text)
