"""Printing: tables for people, plain text when it goes into a file or pipe, JSON for programs."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer


def print_json(content: Any) -> None:
    """One JSON document on stdout; what JSON has no word for (infinity, NaN) becomes text."""
    typer.echo(json.dumps(_plain(content), indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Rows under headings (none if all are empty); `right` names the columns to align right.

    A terminal that is too narrow wraps cells, and never cuts them; anything but a terminal gets
    lines as long as they need to be, without colour.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns)
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if terminal else 10_000,
        no_color=not terminal,
        highlight=False,
        markup=False,
    )
    if terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def note(text: str) -> None:
    """A line for people, on stderr, where it cannot mix with results."""
    typer.echo(text, err=True)


def count(number: float) -> str:
    """A large number as people write it.

    >>> count(1234567), count(999), count(0)
    ('1.23 M', '999', '-')
    """
    if number <= 0:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:g}"


def size(count: int) -> str:
    """Bytes as people write them.

    >>> size(53464), size(102_300_000)
    ('53.5 kB', '102 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return content


def operators(names: Sequence[str], most: int = 6) -> str:
    """Operators of a function in a table cell: repeated ones counted, a long chain cut.

    >>> operators(["reshape", "reshape", "conv2d", "add"])
    '2*reshape conv2d add'
    """
    runs = [(name, len(list(group))) for name, group in itertools.groupby(names)]
    shown = [name if count == 1 else f"{count}*{name}" for name, count in runs[:most]]
    return " ".join([*shown, *([f"+{len(runs) - most}"] if len(runs) > most else [])])
