"""`tpo tune` around the tuning itself, which is replaced by a scripted run: no candidate is ever measured."""

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnx
import pytest

from support.artifacts import two_output_model
from support.commands import assert_refused, tpo
from support.tuning_events import scripted_run
from tpo.cli.live import LiveDisplay
from tpo.cli.progress import PlainDisplay
from tpo.cli.tune import EventLog, _display
from tpo.records import Records
from tpo.tuning.events import RunFinished, TrialDone


@pytest.fixture
def folder(tmp_path):
    onnx.save(two_output_model(), tmp_path / "tiny.onnx")
    return tmp_path


@pytest.fixture
def rules(folder):
    for rule in ("a.py", "b.py"):
        (folder / rule).write_text("import tpo\n\n@tpo.rule()\ndef idle(sch, block, hw):\n    pass\n")


@pytest.fixture
def runs(monkeypatch):
    """Replaces the tuning loop; what it was called with is kept, and `runs.ending` is raised at its end."""
    seen = SimpleNamespace(calls=[], ending=None)

    def tune_model(model, target, config, records, callbacks, resume=False):
        assert isinstance(records, Records)
        seen.calls.append(
            SimpleNamespace(model=model, target=target, config=config, path=records.path, resume=resume)
        )
        for event in scripted_run():
            if isinstance(event, RunFinished) and seen.ending is not None:
                raise seen.ending
            for callback in callbacks:
                callback(event)
        return event

    replaced = ModuleType("tpo.tuning.run")
    replaced.tune_model = tune_model
    monkeypatch.setitem(sys.modules, "tpo.tuning.run", replaced)
    for variable in os.environ:
        if variable.startswith("TPO_TUNE_"):
            monkeypatch.delenv(variable)
    return seen


def test_result_on_stdout_and_all_else_on_stderr(tpo_inside, runs, folder):
    done = tpo_inside("tune", "tiny.onnx", "--trials", 20, folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "task               calls  default ms  best ms  speed-up  share  trials  failed",
        "conv2d_add_relu_0      2       1.000    0.100    10.00x  33.3%      10       2",
        "conv2d_add_relu_1      2       1.000    0.200     5.00x  33.3%       5       1",
        "conv2d_add_relu_2      2       1.000    0.200     5.00x  33.3%       5       1",
    ]
    lines = done.stderr.splitlines()
    assert lines[0] == "records go to tiny.db"
    assert lines[1].startswith("tuning squeezenet for native")
    assert lines[-2:] == [
        "finished: 20 trials, 4 failed (4 crash) in 0:40; model 6.000 -> 1.000 ms, 6.00x (estimated)",
        "next: tpo compile tiny.onnx --db tiny.db -o tiny.so",
    ]
    assert (folder / "tiny.db").exists()


def test_what_the_loop_is_given(tpo_inside, runs, folder, rules):
    (folder / "c.toml").write_text("batch = 7\n[measure]\nhopeless = 5\n")
    done = tpo_inside(
        *("tune", "tiny.onnx", "--db", "run.db", "--config", "c.toml", "--set", "measure.recycle=8"),
        *("--trials", 10, "--minutes", 2.5, "--effort", "quick", "--task", "matmul*", "--seed", 3),
        *("--threads", 1, "--rules", "a.py", "--rules", "b.py"),
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    (call,) = runs.calls
    config = call.config
    assert (config.trials, config.minutes, config.effort, config.trials_per_task) == (10, 2.5, "quick", None)
    assert (config.batch, config.seed, config.threads) == (7, 3, 1)
    assert (config.tasks, config.rules) == ("matmul*", ("a.py", "b.py"))
    assert (config.measure.hopeless, config.measure.recycle) == (5, 8)
    assert (call.path.name, call.resume, call.model.name) == ("run.db", False, "tiny")
    assert (call.target.name, call.target.hardware.cores) == ("native", 1)
    assert "records go to" not in done.stderr
    assert done.stderr.splitlines()[-1] == "next: tpo compile tiny.onnx --db run.db -o tiny.so --threads 1"


def test_the_environment_is_below_options_and_above_the_file(tpo_inside, runs, folder, monkeypatch):
    (folder / "c.toml").write_text("batch = 7\nseed = 7\nconfirm = 7\n")
    monkeypatch.setenv("TPO_TUNE_BATCH", "8")
    monkeypatch.setenv("TPO_TUNE_SEED", "8")
    tpo_inside("tune", "tiny.onnx", "--config", "c.toml", "--seed", 9, folder=folder)
    config = runs.calls[0].config
    assert (config.confirm, config.batch, config.seed) == (7, 8, 9)


def test_threads_of_a_file_hold_for_the_target_and_the_next_command(tpo_inside, runs, folder):
    (folder / "c.toml").write_text("threads = 1")
    done = tpo_inside("tune", "tiny.onnx", "--config", "c.toml", folder=folder)
    assert runs.calls[0].target.hardware.cores == 1
    assert done.stderr.splitlines()[-1].endswith(" --threads 1")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 machine")
def test_the_next_command_repeats_what_decides_the_library(tpo_inside, runs, folder):
    (folder / "my models").mkdir()
    (folder / "tiny.onnx").rename(folder / "my models" / "tiny.onnx")
    done = tpo_inside(
        *("tune", "my models/tiny.onnx", "--target", "x86-64-v2", "--shape", "x=4,64"), folder=folder
    )
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stderr.splitlines()[-1].removeprefix("next: "))
    assert words == [
        *("tpo", "compile", "my models/tiny.onnx", "--db", "tiny.db", "-o", "tiny.so"),
        *("--target", "x86-64-v2", "--shape", "x=4,64"),
    ]


def test_ctrl_c_says_how_to_go_on_and_the_command_is_understood(tpo_inside, runs, folder, rules):
    runs.ending = KeyboardInterrupt()
    given = [
        *("--db", "my run.db", "--trials", "10", "--minutes", "2", "--effort", "quick", "--task", "matmul*"),
        *("--rules", "a.py", "--set", "batch=4", "--set", "confirm=2", "--json", "log.jsonl", "--seed", "3"),
        *("--threads", "1", "--shape", "x=4,64"),
    ]
    done = tpo_inside("tune", "tiny.onnx", *given, folder=folder)
    assert done.returncode == 130
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: interrupted, and what was measured is in my run.db; go on with: tpo tune ")
    words = shlex.split(last.split("go on with: ")[1])
    assert sorted(words) == sorted(["tpo", "tune", "tiny.onnx", *given, "--resume"])

    runs.ending = None
    done = tpo_inside(*words[1:], folder=folder)
    assert done.returncode == 0, done.stderr
    first, second = runs.calls
    assert (first.resume, second.resume) == (False, True)
    assert first.config == second.config
    assert first.path == second.path


def test_resuming_from_nothing_is_said(tpo_inside, runs, folder):
    done = tpo_inside("tune", "tiny.onnx", "--resume", folder=folder)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: there is no tiny.db to resume from: a new run begins\n")


@pytest.mark.parametrize(
    ("terminal", "kind", "display"),
    [(True, "xterm", LiveDisplay), (True, "dumb", PlainDisplay), (False, "xterm", PlainDisplay)],
)
def test_only_a_terminal_that_can_is_redrawn(monkeypatch, terminal, kind, display):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with _display() as shown:
        assert isinstance(shown, display)


# The log ---------------------------------------------------------------------------------------


def logged(path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_the_log_has_every_event_and_grows_only_on_resume(tpo_inside, runs, folder):
    log = folder / "log.jsonl"
    everything = [type(event).__name__ for event in scripted_run()]
    tpo_inside("tune", "tiny.onnx", "--json", "log.jsonl", folder=folder)
    assert logged(log) == everything
    tpo_inside("tune", "tiny.onnx", "--json", "log.jsonl", folder=folder)
    assert logged(log) == everything
    tpo_inside("tune", "tiny.onnx", "--json", "log.jsonl", "--resume", folder=folder)
    assert logged(log) == everything * 2


def test_every_line_is_in_the_file_as_soon_as_it_happens(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path, append=False) as log:
        for count, event in enumerate(scripted_run(), start=1):
            log(event)
            assert len(logged(path)) == count
    trial = next(event for event in scripted_run() if isinstance(event, TrialDone))
    line = next(line for line in path.read_text().splitlines() if '"TrialDone"' in line)
    assert json.loads(line) | {"time": ""} == trial.to_json() | {"time": ""}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_log_and_not_the_run(tpo_inside, runs, folder):
    done = tpo_inside("tune", "tiny.onnx", "--json", "/dev/full", folder=folder)
    assert done.returncode == 0
    assert done.stderr.count("cannot write /dev/full: No space left on device") == 1


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["none.onnx"], ["cannot read model none.onnx"]),
        (["tiny.onnx", "--trials", "0"], ["option trials: 0 should be greater than or equal to 1"]),
        (["tiny.onnx", "--trials", "many"], ["--trials"]),
        (["tiny.onnx", "--minutes", "-1"], ["option minutes: -1.0 should be greater than 0"]),
        (["tiny.onnx", "--minutes", "nan"], ["option minutes: nan should be a finite number"]),
        (["tiny.onnx", "--effort", "fast"], ["'quick', 'normal' or 'full'"]),
        (["tiny.onnx", "--seed", "-1"], ["option seed"]),
        (["tiny.onnx", "--threads", "0"], ["option threads: 0"]),
        (["tiny.onnx", "--set", "measure.hopeles=3"], ["did you mean measure.hopeless?"]),
        (["tiny.onnx", "--set", "trials=3", "--trials", "4"], ["give it once"]),
        (["tiny.onnx", "--config", "none.toml"], ["none.toml: the file cannot be read"]),
        (["tiny.onnx", "--config", "bad.toml"], ["bad.toml: there is no setting trails"]),
        (["tiny.onnx", "--task", "dense*"], ["no task matches 'dense*'", "the model has ", "matmul"]),
        (["tiny.onnx", "--target", "nosuch"], ["'nosuch'", "x86-64-v3"]),
        (["tiny.onnx", "--shape", "z=1"], ["'z'"]),
        (["tiny.onnx", "--json", "none/log.jsonl"], ["cannot write none/log.jsonl", "--json"]),
        (["tiny.onnx", "--json", "."], ["cannot write .: it is a folder"]),
        (["tiny.onnx", "--json", "tiny.onnx"], ["cannot write tiny.onnx: it is given as something else too"]),
        (["tiny.onnx", "--json", "./tiny.db"], ["cannot write tiny.db"]),
        (["tiny.onnx", "--db", "none/run.db"], ["none/run.db"]),
        (["tiny.onnx", "--db", "."], ["it is a folder"]),
        (["tiny.onnx", "--db", "tiny.onnx"], ["tiny.onnx is not a record store"]),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(tpo_inside, runs, folder, words, parts):
    (folder / "bad.toml").write_text("trails = 3")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert_refused(tpo_inside("tune", *words, folder=folder), *parts)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert runs.calls == []


@pytest.mark.skipif(platform.machine() == "aarch64", reason="would be native")
def test_what_cannot_run_here_cannot_be_tuned_here(tpo_inside, runs, folder):
    done = tpo_inside("tune", "tiny.onnx", "--target", "aarch64", folder=folder)
    assert_refused(done, "cannot tune for aarch64: this machine cannot run what is compiled for it")
    assert [path.name for path in folder.iterdir()] == ["tiny.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_places(tpo_inside, runs, folder):
    (folder / "closed").mkdir(mode=0o555)
    for option in ("--db", "--json"):
        done = tpo_inside("tune", "tiny.onnx", option, "closed/file", folder=folder)
        assert_refused(done, "permission denied")


def test_a_loop_that_fails_is_an_error_of_its_own(tpo_inside, runs, folder):
    runs.ending = RuntimeError("boom")
    done = tpo_inside("tune", "tiny.onnx", folder=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: internal: RuntimeError: boom, run again with --debug"


def test_refusal_as_a_process(folder):
    done = tpo("tune", "tiny.onnx", "--trials", "0", folder=folder)
    assert_refused(done, "option trials: 0")


def test_rules_that_do_not_load_are_refused_before_anything_is_written(tpo_inside, runs, folder):
    for rules, why in (("missing.py", "no such file"), ("empty.py", "defines no rule")):
        (folder / "empty.py").write_text("")
        done = tpo_inside("tune", "tiny.onnx", "--rules", rules, folder=folder)
        assert_refused(done, rules, why)
    assert not (folder / "tiny.db").exists() and not runs.calls
