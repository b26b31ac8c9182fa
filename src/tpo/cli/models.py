"""Commands that start from an ONNX file: `tpo tasks` and `tpo compile`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpo.cli import options, output

if TYPE_CHECKING:
    from tpo.deploy.manifest import Manifest


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("tasks")(tasks)
    app.command("compile")(compile_)


def tasks(
    model: options.ModelFile,
    shape: options.Shapes = None,
    bucket: options.Bucket = None,
    as_json: options.Json = False,
) -> None:
    """List the functions a model consists of: what a tuner would tune."""
    loaded = options.load_model(model, shape, bucket)
    from tpo.tasks import extract_tasks

    found = extract_tasks(loaded)
    if as_json:
        fields = ("name", "operators", "shape", "weight", "flops", "bytes")
        output.print_json([{field: getattr(task, field) for field in fields} for task in found])
        return
    rows = [
        (
            task.name,
            output.operators(task.operators),
            task.shape,
            task.weight,
            output.count(task.flops),
            output.count(task.bytes),
        )
        for task in found
    ]
    columns = ("name", "operators", "shape", "weight", "FLOPs", "bytes")
    output.print_table(columns, rows, right=("weight", "FLOPs", "bytes"))


def compile_(
    model: options.ModelFile,
    result: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="LIBRARY", help="The library to write (default: MODEL's name, .so)."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", help="`native`, a preset such as riscv, or a .toml file.")
    ] = "native",
    threads: options.Threads = None,
    vlen: options.Vlen = None,
    shape: options.Shapes = None,
    bucket: options.Bucket = None,
    db: Annotated[
        Path | None,
        typer.Option("--db", metavar="RUN.db", help="Use what `tpo tune` found."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with ONNX Runtime before writing.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Compile a model into one shared library with a manifest beside it."""
    from tpo.deploy.compile import check_output, compile_model
    from tpo.deploy.manifest import manifest_path
    from tpo.records import Records
    from tpo.targets import resolve

    library = result or Path(f"{model.stem or 'model'}.so")
    check_output(library)
    resolved = resolve(target, threads, vlen)
    loaded = options.load_model(model, shape, bucket)
    with nullcontext() if db is None else Records.open(db, create=False) as records:
        manifest = compile_model(loaded, library, resolved, threads, verify, records, output.note)
    if as_json:
        output.print_json(manifest.model_dump(mode="json"))
        return
    check = manifest.numeric_check
    error = (
        "not checked" if check is None else f"{check.max_rel_error:.2g} of the largest ({check.reference})"
    )
    rows = [
        ("library", f"{library} ({output.size(manifest.library.bytes)})"),
        ("manifest", manifest_path(library)),
        ("target", f"{manifest.target.name}, {manifest.threads} threads"),
        ("functions", f"{sum(f.tuned for f in manifest.functions)} of {len(manifest.functions)} tuned"),
        *_sizes(manifest),
        *_memory(manifest, library),
        ("inputs", " ".join(map(str, manifest.inputs))),
        ("outputs", " ".join(map(str, manifest.outputs))),
        ("numeric error", error),
    ]
    output.print_table(("", ""), rows)


def _memory(manifest: Manifest, library: Path) -> list[tuple[str, str]]:
    """What a standalone library takes, and what runs it; nothing for any other."""
    if manifest.memory is None:
        return []
    from tpo.deploy.standalone.build import RUNNER

    memory = manifest.memory
    return [
        ("code", output.size(memory.code)),
        ("weights", output.size(memory.constants)),
        ("workspace", output.size(memory.workspace)),
        ("runner", f"{library.with_name(RUNNER)}, to be copied to the board with the library"),
    ]


def _sizes(manifest: Manifest) -> list[tuple[str, str]]:
    """What a library for several sizes takes; nothing for any other."""
    if not manifest.buckets:
        return []
    sizes = ", ".join(str(bucket.size) for bucket in manifest.buckets)
    what = f"{sizes}, and anything below the largest" if manifest.padded else sizes
    return [(manifest.dimension, what)]
