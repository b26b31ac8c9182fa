import re
import subprocess
import sys
from pathlib import Path

import pytest

import tpo as package
from support.commands import assert_refused, tpo
from tpo import cli, doctor
from tpo.cli.output import count

COMMANDS = ("doctor", "tasks", "tune", "compile", "run", "verify", "bench", "profile")


def test_version():
    done = tpo("--version")
    assert (done.returncode, done.stdout) == (0, f"tpo {package.__version__}\n")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(words):
    done = tpo(*words)
    assert done.returncode == 0
    for command in (*COMMANDS, "db"):
        assert f"\n  {command}  " in done.stdout
    assert "--debug" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert cli.run([command, "--help"]) == 0
    assert f"Usage: tpo {command} [OPTIONS]" in capsys.readouterr().out


def test_help_starts_without_tvm():
    code = (
        "import sys; from tpo import cli; cli.run(['--help'])\n"
        "print([name for name in ('tvm', 'onnx', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_usage_errors_are_one_line():
    assert_refused(tpo("nosuch"), "nosuch", "tpo --help")
    assert_refused(tpo("compile"), "MODEL")
    assert_refused(tpo("bench", "m.so", "--rounds", "many"), "--rounds")
    assert_refused(tpo("run", "m.so", "--nosuch"), "--nosuch")


@pytest.mark.parametrize("words", [("--debug", "run", "none.so"), ("run", "none.so", "--debug")])
def test_debug_shows_the_traceback(words):
    done = tpo(*words)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: cannot load none.so")


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (
            RuntimeError("boom\nsecond line"),
            1,
            "error: internal: RuntimeError: boom, run again with --debug\n",
        ),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (AssertionError(), 1, "error: internal: AssertionError: no message, run again with --debug\n"),
    ],
)
def test_unexpected_errors_are_one_line(monkeypatch, capsys, raised, code, message):
    def fail():
        raise raised

    monkeypatch.setattr(doctor, "examine", fail)
    assert cli.run(["doctor"]) == code
    assert capsys.readouterr().err.lstrip("\n") == message


def test_a_reader_that_leaves_early_is_no_error():
    writer = subprocess.Popen(
        [sys.executable, "-m", "tpo", "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    writer.stdout.close()
    assert "Traceback" not in writer.stderr.read()
    writer.stderr.close()
    assert writer.wait() in (0, 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(command, capsys):
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    section = text.split(f"## tpo {command}\n")[1].split("\n## ")[0]
    cli.run([command, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    # They are documented in one form of the pair each.
    options -= {"--output", "--verify"}
    assert {option for option in options if option not in section} == set()


def test_count():
    assert [count(number) for number in (0, 999, 1500, 2.5e6, 3e9)] == ["-", "999", "1.5 k", "2.5 M", "3 G"]
