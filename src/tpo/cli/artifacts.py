"""Commands that start from a compiled library: `tpo run`, `verify`, `bench` and `profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpo.cli import options, output
from tpo.errors import UsageError

if TYPE_CHECKING:
    from tpo.deploy.inputs import Array
    from tpo.deploy.verify import VerifyReport


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (run, verify, bench, profile):
        app.command(command.__name__)(command)


def run(
    library: options.Library,
    inputs: options.Inputs = None,
    result: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.npz", help="Where to write the outputs.")
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Run a library on arrays from .npy files; one for RISC-V in QEMU."""
    from tpo.deploy.arrays import save_npz
    from tpo.deploy.standalone.emulated import load_or_emulate

    if result is not None and result.suffix != ".npz":
        raise UsageError(why=f"{result} does not end in .npz", advice="outputs are written as one .npz file")
    with load_or_emulate(library, threads) as artifact:
        results = artifact.run(options.read_inputs(inputs))
    if result is not None:
        save_npz(result, results)
    rows = [
        (name, ",".join(map(str, array.shape)) or "scalar", array.dtype, *_summary(array))
        for name, array in results.items()
    ]
    output.print_table(("output", "shape", "dtype", "min", "mean", "max"), rows, right=("min", "mean", "max"))


def _summary(array: object) -> tuple[str, str, str]:
    import numpy as np

    values = np.asarray(array).astype(np.float64)
    if values.size == 0:
        return ("-", "-", "-")
    return (f"{values.min():.6g}", f"{values.mean():.6g}", f"{values.max():.6g}")


def verify(
    library: Annotated[
        Path,
        typer.Argument(
            metavar="LIBRARY", help="A library `tpo compile` wrote; with --emulate, the ONNX file."
        ),
    ],
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)
    ] = None,
    inputs: options.Inputs = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="0,1,2", help="One random input for each; empty for none.")
    ] = "0,1,2",
    rtol: Annotated[
        float | None, typer.Option("--rtol", min=0, help="Allowed error relative to each element.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option("--atol", min=0, help="Allowed error relative to the largest element.")
    ] = None,
    threads: options.Threads = None,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Run a model's kernels for a GPU on the CPU; nothing is written."),
    ] = False,
    target: Annotated[
        str, typer.Option("--target", metavar="GPU", help="With --emulate: `cuda`, or a GPU by TVM's name.")
    ] = "cuda",
    arch: options.Arch = None,
    shape: options.Shapes = None,
    as_json: options.Json = False,
) -> None:
    """Compare a library with ONNX Runtime on random inputs and on yours; exit code 3 if they differ."""
    from tpo.deploy.standalone.emulated import load_or_emulate
    from tpo.deploy.verify import verify as compare

    given, chosen = options.read_inputs(inputs), options.read_seeds(seeds)
    if emulate:
        if model is not None:
            raise UsageError(why="--emulate needs no library", advice="give the ONNX file alone")
        _verify_emulated(library, target, arch, shape, given, chosen, rtol, atol, as_json)
        return
    if model is None:
        raise UsageError(why="there is no model to compare with", advice="write tpo verify LIBRARY MODEL")
    with load_or_emulate(library, threads) as artifact:
        report = compare(artifact, model, [given] if given else [], chosen, rtol, atol)
    _show_report(report, model, as_json)


def _verify_emulated(
    path: Path,
    target: str,
    arch: str | None,
    shapes: list[str] | None,
    given: dict[str, Array],
    seeds: tuple[int, ...],
    rtol: float | None,
    atol: float | None,
    as_json: bool,
) -> None:
    """A model's kernels for a GPU, in both orders of threads."""
    from tpo.deploy.emulated_gpu import EmulatedGpu
    from tpo.deploy.verify import verify as compare
    from tpo.measure.cuda import ORDERS
    from tpo.targets import resolve

    resolved = resolve(target, arch=arch)
    model = options.load_model(path, shapes, None)
    with EmulatedGpu(model, resolved, progress=output.note) as gpu:
        for order in ORDERS:
            gpu.order = order
            output.note(f"running {len(seeds) + bool(given)} inputs, threads {order}")
            report = compare(gpu, model.source, [given] if given else [], seeds, rtol, atol)
            if not report.passed:
                break
    _show_report(report, path, as_json)


def _show_report(report: VerifyReport, model: Path, as_json: bool) -> None:
    if as_json:
        output.print_json(report.to_json())
    else:
        columns = ("output", "shape", "dtype", "max abs error", "of largest", "wrong elements", "result")
        rows = [
            (
                item.name,
                ",".join(map(str, item.shape)) or "scalar",
                item.dtype,
                f"{item.max_abs_error:.3g}",
                f"{item.max_rel_error:.2g}",
                f"{item.mismatches} of {item.elements}",
                "ok" if item.passed else "WRONG",
            )
            for item in report.outputs
        ]
        output.print_table(columns, rows, right=columns[3:6])
        output.note(f"compared with {report.reference}, tolerance {report.tolerance}")
        if not report.same_model:
            output.note(f"note: {model} is not the file the library was compiled from")
    report.require()


def bench(
    library: options.Library,
    vs: Annotated[
        list[str] | None,
        typer.Option("--vs", metavar="ENGINE", help="Engine, other library, or `none`; repeatable."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="MODEL", help="The ONNX file, if it is not where it was compiled from."
        ),
    ] = None,
    threads: options.Threads = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns each engine takes.")] = 7,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of a turn.")] = 0.5,
    as_json: options.Json = False,
) -> None:
    """Time a library side by side with other engines, each in its own process, on equal threads."""
    from tpo.deploy.bench import bench as measure

    engines = [name for name in vs or ["onnxruntime"] if name != "none"]
    report = measure(library, engines, model, threads, rounds, seconds)
    if as_json:
        output.print_json(report.to_json())
        return
    ratios = {ratio.engine: ratio for ratio in report.ratios}
    rows = []
    for timing in report.timings:
        ratio = ratios.get(timing.engine)
        rows.append(
            (
                f"{timing.engine} {timing.version}",
                f"{timing.median_ms:.3f}",
                f"{timing.p10_ms:.3f} - {timing.p90_ms:.3f}",
                timing.runs,
                f"{ratio.ratio:.3f} ({ratio.low:.3f} - {ratio.high:.3f})" if ratio else "",
                f"{timing.start_seconds:.2f}",
                f"{timing.memory_mb:.0f}",
            )
        )
    columns = (
        *("engine", "median ms", "p10 - p90 ms", "runs", "tpo's latency / its (95 %)"),
        *("start s", "memory MB"),
    )
    output.print_table(columns, rows, right=(*columns[1:4], *columns[5:]))
    output.note(f"{report.threads} thread(s), {report.rounds} rounds, {report.machine.cpu}")
    for ratio in report.ratios:
        output.note(f"outputs agree with {ratio.engine} within {ratio.max_rel_difference:.1g} of the largest")
    for warning in report.warnings:
        output.note(f"warning: {warning}")


def profile(
    library: options.Library,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs to average over.")] = 10,
    inputs: options.Inputs = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Show where the time goes, function by function."""
    from tpo.deploy.artifact import load
    from tpo.deploy.profile import profile as measure

    given = options.read_inputs(inputs)
    with load(library, threads) as artifact:
        report = measure(artifact, runs, given or None)
    if as_json:
        output.print_json(report.to_json())
        return
    rows = [
        (
            row.name,
            output.operators(row.operators),
            row.calls,
            f"{row.milliseconds:.3f}",
            f"{row.share:.1%}",
            "" if row.gflops is None else f"{row.gflops:.1f}",
            row.scheduled_by,
        )
        for row in report.rows
    ]
    columns = ("function", "operators", "calls", "ms", "share", "GFLOP/s", "scheduled by")
    output.print_table(columns, rows, right=columns[2:6])
    output.note(f"{report.latency_ms:.3f} ms per run, {report.threads} thread(s), without profiling")
