"""`tpo riscv`: what only RISC-V needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpo.cli import options, output
from tpo.errors import UsageError

if TYPE_CHECKING:
    from tpo.measure.cross.calibrate import Calibration


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    riscv = typer.Typer(help="Fit what the emulator models to a board.", rich_markup_mode=None)
    riscv.callback()(_root)
    riscv.command("calibrate")(calibrate)
    app.add_typer(riscv, name="riscv")


def _root() -> None:
    pass


def calibrate(
    modelled: Annotated[Path, typer.Argument(metavar="QEMU.db", help="Records of a run in QEMU.")],
    measured: Annotated[Path, typer.Argument(metavar="BOARD.db", help="Records of a run on the board.")],
    megahertz: Annotated[
        float, typer.Option("--mhz", metavar="N", help="The clock of the board's cores, in MHz.")
    ],
    result: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.toml", help="Where to write the weights.")
    ],
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE.toml", help="Weights to compare with.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit the weights of modelled cycles to candidates that were both counted and timed."""
    from tpo.measure.cross import cycles
    from tpo.measure.cross.calibrate import calibrate as fitted
    from tpo.records import Records

    if not 0 < megahertz < 1e6:
        raise UsageError(why=f"a clock of {megahertz:g} MHz cannot be", advice="give --mhz 1600 or the like")
    if result.suffix != ".toml" or not result.parent.is_dir() or result.is_dir():
        raise UsageError(why=f"cannot write {result}", advice="give a .toml file in an existing folder")
    with (
        Records.open(modelled, create=False, readonly=True) as counted,
        Records.open(measured, create=False, readonly=True) as timed,
    ):
        found = fitted(counted, timed, megahertz, cycles.load(weights))
    result.write_text(_text(found, megahertz), encoding="utf-8")
    if as_json:
        output.print_json(
            {
                "weights": dict(found.weights),
                "candidates": found.candidates,
                "order_before": found.order_before,
                "order_after": found.order_after,
            }
        )
        return
    output.print_table(
        ("counter", "cycles"), [(n, f"{w:.3g}") for n, w in found.weights.items()], right=("cycles",)
    )
    output.note(
        f"{result}: fitted to {found.candidates} candidates of {found.workloads} workloads; rank correlation "
        f"with the board {found.order_before:.2f} before, {found.order_after:.2f} now (on these candidates)"
    )
    output.note(f"use it with --set measure.cycles={result}")


def _text(found: Calibration, megahertz: float) -> str:
    lines = [
        f"# Fitted by `tpo riscv calibrate` to {found.candidates} candidates of {found.workloads} workloads,",
        f"# measured on a board at {megahertz:g} MHz. See configs/riscv/cycles.toml for what is counted.",
        "",
        "[cycles]",
        *(f"{name} = {weight!r}" for name, weight in found.weights.items()),
    ]
    return "\n".join(lines) + "\n"
