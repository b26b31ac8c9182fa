"""The typer application, put together from the modules of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from tpo import __version__
from tpo.cli import artifacts, cost, db, diagnosis, models, riscv, rules, tune

app = typer.Typer(
    name="tpo",
    help="Tensor program optimizer: ONNX models to fast, verified libraries.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 3 wrong numbers, 130 interrupted. "
    "--debug, before or after a command, shows Python tracebacks.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tpo {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the Python traceback of an error (with any command).")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _module in (diagnosis, models, rules, tune, db, cost, artifacts, riscv):
    _module.register(app)
