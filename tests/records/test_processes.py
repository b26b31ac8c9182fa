"""Real processes write one store at once, and are killed while they do."""

import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tpo
from support import record_writer
from support.record_writer import TARGET, TVM, WORKLOAD
from tpo.records import Records


def start(path: Path, candidates: int) -> subprocess.Popen[str]:
    source = str(Path(tpo.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, record_writer.__file__, str(path), str(candidates)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )


def finish(writer: subprocess.Popen[str]) -> list[str]:
    printed, errors = writer.communicate(timeout=120)
    assert writer.returncode == 0, errors
    return printed.split()


def assert_sound(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    lonely = "SELECT count(*) FROM trials WHERE id NOT IN (SELECT trial FROM details)"
    assert connection.execute(lonely).fetchone() == (0,)
    connection.close()


def recorded(path: Path) -> list[str]:
    with Records.open(path, readonly=True, tvm_version=TVM) as records:
        return [trial.candidate for trial in records.trials()]


def test_several_processes_make_and_fill_one_store(tmp_path):
    path = tmp_path / "run.db"
    writers = [start(path, 150) for _ in range(3)]
    done = [finish(writer) for writer in writers]
    everything = [f"{number:016x}" for number in range(150)]
    assert sorted(key for keys in done for key in keys) == everything
    assert sorted(recorded(path)) == everything
    assert_sound(path)
    with Records.open(path, tvm_version=TVM) as records:
        assert [run.status for run in records.runs()] == ["done"] * 3
        assert Counter(records.count(run.id).total for run in records.runs()) == Counter(map(len, done))
        assert records.best(WORKLOAD, TARGET).candidate == everything[0]
    assert [item.name for item in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_writers_lose_at_most_the_trial_in_flight(tmp_path, seed):
    path, moments = tmp_path / "run.db", random.Random(seed)
    said: list[str] = []
    for cycle in range(1, 6):
        writer = start(path, 100_000)
        for _ in range(moments.randrange(60)):
            said.append(writer.stdout.readline().strip())
        writer.kill()
        said += writer.stdout.read().split()  # not `communicate`: it forgets what was read ahead
        writer.communicate(timeout=60)
        stored = recorded(path) if path.exists() else []
        assert len(stored) == len(set(stored))
        assert set(said) <= set(stored)
        assert len(stored) - len(said) <= cycle
        if path.exists() and path.stat().st_size:
            assert_sound(path)
    with Records.open(path, tvm_version=TVM) as records:
        assert {run.status for run in records.runs()} == {"killed"}
        killed = records.unfinished("5ha", TARGET)
        assert killed.id == records.runs()[-1].id
        records.take_over(killed.id)
        # Nothing the dead had claimed is lost to the living.
        keys = [f"{number:016x}" for number in range(len(stored) + 20)]
        assert records.claim(killed.id, WORKLOAD, TARGET, keys) == set(keys) - set(stored)


def test_a_killed_process_nobody_waited_for_is_dead(tmp_path):
    """It stays in the list of processes as a zombie until its parent takes notice."""
    path = tmp_path / "run.db"
    writer = start(path, 100_000)
    writer.stdout.readline()
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    with Records.open(path, tvm_version=TVM) as records:
        assert [run.status for run in records.runs()] == ["killed"]
    writer.communicate(timeout=60)


def test_a_stopped_creator_leaves_nothing_half_made(tmp_path):
    """Killed as early as possible: whatever is there can be opened, by a new process that goes on."""
    path = tmp_path / "run.db"
    for _ in range(3):
        writer = start(path, 5)
        while writer.poll() is None and not path.exists():
            pass
        writer.kill()
        writer.communicate(timeout=60)
        finish(start(path, 5))
        assert sorted(recorded(path)) == [f"{number:016x}" for number in range(5)]
        for item in tmp_path.iterdir():
            item.unlink()
