"""A tuning run on a terminal: one row for each task, redrawn in place."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tpo.cli.progress import (
    Clock,
    Display,
    Progress,
    Row,
    duration,
    failures,
    headline,
    speed_up,
)
from tpo.cli.units import Unit
from tpo.tuning import events
from tpo.tuning.events import Event

# Drawing takes a core for some milliseconds, on which a candidate may be being timed: not more often
# than this many seconds, and by no thread of its own.
PAUSE = 1.0
# Shapes are worth a column where there is room for most of them.
WIDE = 116
# Lines around the table: title, headings, and below it a space, two lines of totals and the cursor's.
AROUND = 6
GAP = 2
# Columns with the width of their numbers; those that are measured are titled with their unit.
NUMBERS = {"calls": 5, "default": 7, "best": 7, "speed-up": 8, "trials": 6, "failed": 6}
MEASURED = ("default", "best")
# What a narrow terminal does without, first to last, until a name has this much room.
DISPENSABLE = ("calls", "failed", "default", "trials")
NAME = 20


class LiveDisplay(Display):
    """Progress redrawn in place; what remains at the end is the last view, unless the run finished."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._progress = Progress(clock)
        self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self.view,
            vertical_overflow="crop",
        )
        self._drawn = -PAUSE

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take note of an event, and draw it if the last drawing is some time ago."""
        self._progress(event)
        match event:
            case events.RunStarted():
                self._live.start()
            case events.Warned():
                self._console.print(f"warning: {event.message}", markup=False, highlight=False)
            case events.RunFinished():
                # The caller prints the final table in its place.
                self._live.transient = True
                return
        if self._live.is_started and self._clock() - self._drawn >= PAUSE:
            self._drawn = self._clock()
            self._live.refresh()

    def view(self) -> Group | Text:
        """The whole view as it would be drawn now."""
        progress = self._progress
        if progress.started is None:
            return Text("")
        shown, hidden = self._fitting()
        parts: list[Text | Table] = [_line(headline(progress.started), "bold"), self._table(shown)]
        if hidden:
            parts.append(_line(f"  and {hidden} more that take less of the model's time", "dim"))
        return Group(*parts, Text(""), *self._totals())

    def _fitting(self) -> tuple[list[Row], int]:
        """As many rows as the terminal has lines for, with the one being tuned, and how many it has not."""
        rows = list(self._progress.rows.values())
        room = self._console.height - AROUND - bool(self._progress.failures)
        if len(rows) <= room:
            return rows, 0
        room = max(1, room - 1)
        shown = rows[:room]
        active = self._progress.rows.get(self._progress.active or "")
        if active is not None and active not in shown:
            shown[-1] = active
        return shown, len(rows) - room

    def _table(self, rows: list[Row]) -> Table:
        # Widths are ours to choose: rich would rather squeeze numbers than long names.
        width = self._console.width
        numbers = {heading: max(wide, len(self._titled(heading))) for heading, wide in NUMBERS.items()}
        for heading in DISPENSABLE:
            if _room(width, numbers) < NAME:
                del numbers[heading]
        room = max(1, _room(width, numbers))
        # From all rows, also those not shown now, so that columns stay where they are.
        longest = max(len(_name(row)) for row in self._progress.rows.values()) + 2
        names = min(longest, room // 2 if width >= WIDE else room)
        shapes = room - names - GAP if width >= WIDE else 0
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        table.add_column("  task", no_wrap=True, width=names)
        if shapes:
            widest = max(len(short_shape(row.info.shape)) for row in self._progress.rows.values())
            table.add_column("shape", no_wrap=True, overflow="ellipsis", width=min(widest, shapes))
        for heading, wide in numbers.items():
            table.add_column(self._titled(heading), justify="right", no_wrap=True, width=wide)
        for row in rows:
            active = row.info.name == self._progress.active
            cells = [Text(f"{'>' if active else ' '} {shorten(_name(row), names - 2)}")]
            cells += [Text(short_shape(row.info.shape), style="dim")] if shapes else []
            cells += [_number(row, heading, self._progress.unit) for heading in numbers]
            table.add_row(*cells, style="bold" if active else "")
        return table

    def _titled(self, heading: str) -> str:
        return f"{heading} {self._progress.unit.label}" if heading in MEASURED else heading

    def _totals(self) -> list[Text]:
        progress = self._progress
        model = Text("model ", no_wrap=True, overflow="ellipsis")
        if progress.model is None:
            model.append("not known yet", style="dim")
        else:
            before = f"{progress.unit(progress.default_model)} -> " if progress.default_model else ""
            model.append(f"{before}{progress.unit.with_label(progress.model)}", style="bold")
            model.append(
                f", {speed_up(progress.default_model, progress.model)} (estimated)" if before else ""
            )
        total = progress.started.trials if progress.started else None
        trials = f"{progress.done}/{total}" if total else f"{progress.done}"
        left = "" if progress.left is None else f", {duration(progress.left)} left"
        lines = [
            model,
            _line(f"trials {trials}, {duration(progress.elapsed)} elapsed{left}; {progress.activity}"),
        ]
        if progress.failures:
            lines.append(_line(f"failed {failures(progress.failures)}", "yellow"))
        return lines


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _room(width: int, numbers: dict[str, int]) -> int:
    return width - sum(numbers.values()) - GAP * (len(numbers) + 1)


def _number(row: Row, heading: str, unit: Unit) -> Text:
    match heading:
        case "calls":
            return Text(str(row.info.weight))
        case "default":
            return Text(unit(row.default))
        case "best":
            return Text(unit(row.best))
        case "speed-up":
            faster = row.default and row.best and row.best < row.default
            return Text(speed_up(row.default, row.best), style="green" if faster else "")
        case "trials":
            return Text(str(row.trials) if row.trials else "-")
        case _:
            return Text(str(row.failed) if row.failed else "-")


def _name(row: Row) -> str:
    return f"{row.info.name} +{len(row.info.also)}" if row.info.also else row.info.name


def shorten(name: str, width: int) -> str:
    """A name cut in its middle, because numbers at their ends tell names apart.

    >>> shorten("conv2d_add_sigmoid_multiply_12", 20)
    'conv2d_add_si…ply_12'
    """
    if len(name) <= width:
        return name
    tail = min(6, width // 2)
    return f"{name[: max(0, width - tail - 1)]}…{name[-tail:]}"


def short_shape(shape: str) -> str:
    """A task's shape without leading ones.

    >>> short_shape("1x55x55x16, 3x3x16x64, 1x1x1x64 -> 1x55x55x64")
    '55x55x16, 3x3x16x64, 64 -> 55x55x64'
    """
    arguments, arrow, result = shape.partition(" -> ")
    return ", ".join(map(_without_ones, arguments.split(", "))) + arrow + _without_ones(result)


def _without_ones(shape: str) -> str:
    while shape.startswith("1x"):
        shape = shape.removeprefix("1x")
    return shape
