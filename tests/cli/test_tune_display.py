"""What a tuning run looks like: lines for a log, a table on a terminal; both from scripted events."""

import dataclasses
import io

import pytest
from rich.console import Console

from support.tuning_events import Clock, scripted_run, task_info
from tpo.cli.live import PAUSE, LiveDisplay
from tpo.cli.progress import PlainDisplay, Progress
from tpo.tuning.events import BatchDone, BatchStarted, RunFinished, RunStarted, TrialDone, Warned


def lines_of(script) -> list[str]:
    written = []
    clock = Clock()
    with PlainDisplay(written.append, clock) as display:
        for event in script(clock):
            display(event)
    return written


def test_plain_lines():
    assert lines_of(lambda clock: scripted_run(clock=clock)) == [
        "tuning squeezenet for native, 2 threads, 3 tasks: 20 trials or 30 min",
        "warning: the machine is busy",
        "[ 5/20   0:10] conv2d_add_relu_0: 0.200 ms (default 1.000 ms, 5.00x), 5 trials, 1 failed; "
        "model 4.400 ms (1.36x)",
        "[10/20   0:20] conv2d_add_relu_1: 0.200 ms (default 1.000 ms, 5.00x), 5 trials, 1 failed; "
        "model 2.800 ms (2.14x)",
        "[15/20   0:30] conv2d_add_relu_2: 0.200 ms (default 1.000 ms, 5.00x), 5 trials, 1 failed; "
        "model 1.200 ms (5.00x)",
        "[20/20   0:40] conv2d_add_relu_0: 0.100 ms (default 1.000 ms, 10.00x), 10 trials, 2 failed; "
        "model 1.000 ms (6.00x)",
    ]


def test_a_long_run_is_told_in_few_lines():
    """Twelve hours of batches of three seconds."""
    lines = lines_of(lambda clock: scripted_run(batches=14_400, seconds=3.0, clock=clock))
    assert 100 < len(lines) < 500


def test_a_continued_run_speaks_from_its_start():
    clock = Clock()
    written = []
    display = PlainDisplay(written.append, clock)
    info = task_info(0)
    display(RunStarted("r", "m", "native", 1, (info,), None, 600.0, resumed_trials=4000, elapsed=7200.0))
    clock.now += 5
    display(BatchDone(info.name, 16, 5e-4, 1e-3, 1e-3, 2e-3, 7205.0, 4016))
    assert written == [
        "tuning m for native, 1 thread, 1 task: 600 min, of which 4000 in 2:00:00 are done",
        "[4016 2:00:05] conv2d_add_relu_0: 0.500 ms (default 1.000 ms, 2.00x), 16 trials, 0 failed; "
        "model 1.000 ms (2.00x)",
    ]


def test_a_task_where_nothing_works():
    clock = Clock()
    written = []
    display = PlainDisplay(written.append, clock)
    info = task_info(0)
    display(RunStarted("r", "m", "native", 1, (info,), 1, None))
    display(TrialDone(info.name, "s", None, "build-error", "boom", None, 1, False))
    display(BatchDone(info.name, 1, None, None, None, None, 1.0, 1))
    assert written[-1] == "[1/1   0:01] conv2d_add_relu_0: nothing that works yet, 1 trials, 1 failed"
    display(BatchDone(info.name, 1, None, 1e-3, 2e-3, None, 2.0, 1))
    assert written[-1].endswith(
        "nothing that works yet (default 1.000 ms), 1 trials, 1 failed; model 2.000 ms"
    )


# Progress --------------------------------------------------------------------------------------


def started(clock: Clock, **more) -> Progress:
    progress = Progress(clock)
    progress(RunStarted("r", "m", "native", 2, (task_info(0), task_info(1)), **more))
    return progress


def batch_done(elapsed: float, done: int) -> BatchDone:
    return BatchDone(task_info(0).name, done, 1e-4, 1e-3, 1e-3, 2e-3, elapsed, done)


@pytest.mark.parametrize(
    ("trials", "minutes", "left"),
    [
        (100, None, 180.0),  # 90 trials at 2 s
        (100, 1.0, 40.0),  # the minute ends first
        (20, 10.0, 20.0),  # the trials end first
        (None, 1.0, 40.0),
        (None, None, None),
        (10, 1.0, 0.0),
        (5, 1.0, 0.0),
    ],
)
def test_what_is_left_is_until_the_first_budget_ends(trials, minutes, left):
    clock = Clock()
    progress = started(clock, trials=trials, minutes=minutes)
    clock.now += 20
    progress(batch_done(20.0, 10))
    assert progress.left == left


def test_what_is_left_before_the_first_trial_and_before_the_start():
    assert Progress().left is None
    assert started(Clock(), trials=100, minutes=None).left is None
    assert started(Clock(), trials=100, minutes=2.0).left == 120.0


def test_what_is_left_of_a_continued_run_is_told_by_its_own_pace():
    """1000 trials were done in an hour, and now ten take twenty seconds."""
    clock = Clock()
    progress = started(clock, trials=1100, minutes=None, resumed_trials=1000, elapsed=3600.0)
    clock.now += 20
    progress(batch_done(3620.0, 1010))
    assert progress.left == 180.0


def test_time_goes_on_between_events():
    clock = Clock()
    progress = started(clock, trials=None, minutes=1.0, elapsed=5.0)
    clock.now += 2.5
    assert (progress.elapsed, progress.left) == (7.5, 52.5)


def test_a_continued_run_starts_with_what_is_known():
    known = task_info(0, default_seconds=2e-3, best_seconds=1e-3, trials=48, failed=3)
    progress = Progress(Clock())
    progress(RunStarted("r", "m", "native", 2, (known,), 100, None, 48, 60.0, {"crash": 3}))
    row = progress.rows[known.name]
    assert (row.default, row.best, row.trials, row.failed) == (2e-3, 1e-3, 48, 3)
    progress(TrialDone(known.name, "s", None, "crash", "", 1e-3, 49, False))
    assert (row.trials, row.failed, progress.failures["crash"], progress.done) == (49, 4, 4, 49)


# The terminal ----------------------------------------------------------------------------------


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        color_system=None,
        legacy_windows=False,
    )


def view_after(events, width: int = 80, height: int = 24, clock: Clock | None = None) -> list[str]:
    """The lines of the view, without colour, once these events have happened."""
    display = LiveDisplay(terminal(width, height), clock or Clock())
    with display:
        for event in events:
            display(event)
        paper = Console(file=io.StringIO(), width=width, height=height, color_system=None)
        paper.print(display.view())
    return [line.rstrip() for line in paper.file.getvalue().splitlines()]


def until(kind: type, count: int, clock: Clock | None = None, **more):
    """A scripted run up to and with the count-th event of a kind."""
    seen = 0
    for event in scripted_run(clock=clock or Clock(), **more):
        yield event
        seen += isinstance(event, kind)
        if seen == count:
            return


def test_the_view_in_the_middle_of_a_run():
    clock = Clock()
    assert view_after(until(TrialDone, 9, clock=clock), clock=clock) == [
        "tuning squeezenet for native, 2 threads, 3 tasks: 20 trials or 30 min",
        "  task               calls  default ms  best ms  speed-up  trials  failed",
        "  conv2d_add_relu_0      2       1.000    0.200     5.00x       5       1",
        "> conv2d_add_relu_1      2           -    0.250         -       4       1",
        "  conv2d_add_relu_2      2           -        -         -       -       -",
        "",
        "model 6.000 -> 4.400 ms, 1.36x (estimated)",
        "trials 9/20, 0:18 elapsed, 0:22 left; measuring 5 of conv2d_add_relu_1",
        "failed 2 crash",
    ]


def test_the_view_before_anything_was_measured():
    lines = view_after(until(BatchStarted, 1))
    assert lines[2] == "> conv2d_add_relu_0      2           -        -         -       -       -"
    assert lines[-2:] == [
        "model not known yet",
        "trials 0/20, 0:00 elapsed, 30:00 left; measuring 5 of conv2d_add_relu_0",
    ]


def test_a_wide_terminal_shows_shapes():
    lines = view_after(until(BatchDone, 1), width=120)
    assert lines[1].split()[:3] == ["task", "shape", "calls"]
    assert "55x55x16, 3x3x16x64, 64 -> 55x55x64" in lines[2]


def test_shared_results_are_counted_behind_the_name():
    start = RunStarted("r", "m", "native", 2, (task_info(0, also=("a", "b")),), None, None)
    lines = view_after([start])
    assert lines[2].startswith("  conv2d_add_relu_0 +2  ")
    assert lines[-1] == "trials 0, 0:00 elapsed; starting"


@pytest.mark.parametrize("width", [30, 50, 80, 120, 200])
@pytest.mark.parametrize("height", [5, 12, 24, 60])
def test_the_view_fits_every_terminal(width, height):
    """Long names, more tasks than lines: nothing wraps, nothing is taller than the terminal."""
    tasks = tuple(
        task_info(
            index,
            name=f"batch_matmul_divide_where_softmax_add_multiply_{index}",
            shape="1x7x7x7, " * 9 + "1x7 -> 1x7",
        )
        for index in range(40)
    )
    start = RunStarted("r", "m", "native", 2, tasks, 1000, 20.0, failures={"crash": 1})
    lines = view_after([start, BatchStarted(tasks[37].name, 16)], width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) < max(height, 9)
    marked = [line for line in lines if line.startswith("> ")]
    assert len(marked) == 1
    assert marked[0].split()[1].endswith("_37")


def test_rows_that_do_not_fit_are_counted_and_the_largest_shares_stay():
    tasks = tuple(task_info(index) for index in reversed(range(30)))
    start = RunStarted("r", "m", "native", 2, tasks, 1000, 20.0)

    def shown(lines):
        return [
            int(line.split("relu_")[1].split()[0])
            for line in lines
            if "relu_" in line and "measuring" not in line
        ]

    lines = view_after([start], height=24)
    count = len(shown(lines))
    assert shown(lines) == list(range(count))
    assert f"  and {30 - count} more that take less of the model's time" in lines
    assert count >= 15
    lines = view_after([start, BatchStarted("conv2d_add_relu_29", 16)], height=24)
    assert shown(lines) == [*range(count - 1), 29]
    assert shown(view_after([start], height=60)) == list(range(30))


def drawn(console: Console) -> str:
    return console.file.getvalue()


def test_the_terminal_is_redrawn_at_most_once_a_second():
    clock = Clock()
    console = terminal()
    with LiveDisplay(console, clock) as display:
        begin = clock.now
        for event in until(BatchDone, 4, clock=clock, seconds=0.5):
            display(event)
        frames = drawn(console).count("tuning squeezenet")
        # One at the start, one under the warning.
        assert 2 <= frames <= 2 + (clock.now - begin) / PAUSE


def test_warnings_stay_above_the_view():
    console = terminal()
    with LiveDisplay(console, Clock()) as display:
        display(RunStarted("r", "m", "native", 2, (task_info(0),), 1, None))
        display(Warned("something [odd]"))
    text = drawn(console)
    assert text.index("warning: something [odd]") < text.rindex("tuning m for native")


def erased(console: Console) -> bool:
    """Whether the last thing written was to go up and clear lines."""
    return drawn(console).endswith("\x1b[1A\x1b[2K")


def test_a_finished_run_leaves_the_terminal_to_the_final_table():
    console = terminal()
    with LiveDisplay(console, Clock()) as display:
        for event in scripted_run():
            display(event)
    assert erased(console)


def test_an_interrupted_run_leaves_its_last_view():
    console = terminal()
    clock = Clock()
    with pytest.raises(KeyboardInterrupt), LiveDisplay(console, clock) as display:
        for event in until(TrialDone, 9, clock=clock):
            display(event)
        raise KeyboardInterrupt
    assert not erased(console)
    assert "trials 9/20" in drawn(console).split("tuning squeezenet")[-1]
    assert "\x1b[?25h" in drawn(console)  # the cursor is back


def test_a_run_that_fails_before_it_starts_draws_nothing():
    console = terminal()
    with pytest.raises(RuntimeError), LiveDisplay(console, Clock()):
        raise RuntimeError
    assert drawn(console).strip() == ""


def test_what_is_confirmed_replaces_what_was_measured_once():
    script = list(scripted_run())
    changed = [
        dataclasses.replace(event, seconds=3e-4, default_seconds=9e-4) if hasattr(event, "seconds") else event
        for event in script
        if not isinstance(event, (RunFinished, TrialDone))
    ]
    lines = view_after(changed)
    assert lines[2].split()[:5] == ["conv2d_add_relu_0", "2", "0.900", "0.300", "3.00x"]
    assert lines[-1].endswith("measuring the best again")
