"""Run tpo as a user does: a process of its own, its exit code, stdout and stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tpo import cli


def tpo(*words: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`tpo WORDS...` in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "tpo", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def tpo_inside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Like `tpo`, in this process: for the many cases whose start-up would take most of the time."""

    def run(*words: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if folder is not None:
                patch.chdir(folder)
            arguments = [*map(str, words)]
            code = cli.run(arguments)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return run


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str, code: int = 2) -> None:
    """It failed with one clear line, no traceback and nothing on stdout."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr
