"""`tpo tune` killed and interrupted, alone and two at once into one store: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from support.small_models import save_chain
from tpo.records import Records

KILLS = 10
TRIALS = 40
PATIENCE = 600.0


class Tuner:
    """One `tpo tune` process, started again with --resume whenever it was killed."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name, self.folder, self.seed = name, folder, seed
        self.log = folder / f"{name}.jsonl"
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0
        self._seen = 0

    def start(self) -> None:
        words = ["tune", "chain.onnx", "--db", "run.db", "--trials", TRIALS, "--seed", self.seed]
        words += ["--threads", 1, "--set", "batch=4", "--json", self.log]
        resume = ["--resume"] if self.started else []
        with (self.folder / f"{self.name}.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tpo", *map(str, [*words, *resume])],
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Whoever runs the tests in the background has Ctrl-C ignored, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.started += 1

    def events(self) -> list[dict[str, object]]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:  # the line that was being written when it was killed
                continue
        return found

    def has_news(self) -> bool:
        """Whether it measured something, or ended, since it was last asked."""
        assert self.process is not None
        count = sum(event["event"] == "TrialDone" for event in self.events())
        news = count > self._seen or self.process.poll() is not None
        self._seen = count
        return news

    def kill(self) -> list[psutil.Process]:
        """Kill it the hard way; the processes it leaves behind for a moment."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return children


def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    save_chain(tmp_path / "chain.onnx")
    chance = random.Random(7)
    tuners = [Tuner("one", tmp_path, 1), Tuner("two", tmp_path, 2)]
    for tuner in tuners:
        tuner.start()
    kills = 0
    deadline = time.monotonic() + PATIENCE
    orphans: list[psutil.Process] = []
    while any(tuner.process.poll() is None for tuner in tuners if tuner.process):
        assert time.monotonic() < deadline, [tuner.events()[-1:] for tuner in tuners]
        time.sleep(chance.uniform(0.01, 0.3))
        victim = chance.choice(tuners)
        assert victim.process is not None
        # Killing it before it measured anything since its last start would only test patience.
        if kills < KILLS and victim.has_news() and victim.process.poll() is None:
            orphans += victim.kill()
            kills += 1
            victim.start()
    errors = [(tmp_path / f"{tuner.name}.err").read_text() for tuner in tuners]
    assert [tuner.process.returncode for tuner in tuners if tuner.process] == [0, 0], errors
    assert kills == KILLS

    assert not psutil.wait_procs(orphans, timeout=20)[1], "a killed tuner's workers live on"
    with sqlite3.connect(tmp_path / "run.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM claims").fetchone() == (0,)
    connection.close()

    with Records.open(tmp_path / "run.db") as records:
        recorded = Counter((trial.workload, trial.target, trial.candidate) for trial in records.trials())
        runs = records.runs()
        searched = {run.id: sum(1 for _ in records.trials(run=run.id)) for run in runs}
    assert recorded and max(recorded.values()) == 1
    assert len(runs) == 2 and all(run.status == "done" for run in runs)
    # At least the budget each; what comes on top was handed to the task that shares an anchor.
    assert all(count >= TRIALS for count in searched.values()), searched

    reported = Counter(
        event["candidate"] for tuner in tuners for event in tuner.events() if event["event"] == "TrialDone"
    )
    assert max(reported.values()) == 1, "a candidate was measured twice"
    assert set(reported) <= {candidate for _, _, candidate in recorded}, "a measured candidate was lost"


def test_ctrl_c_leaves_no_process_and_says_how_to_go_on(tmp_path: Path) -> None:
    save_chain(tmp_path / "chain.onnx")
    tuner = Tuner("one", tmp_path, 1)
    tuner.start()
    assert tuner.process is not None
    deadline = time.monotonic() + PATIENCE
    while not tuner.has_news():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(tuner.process.pid).children(recursive=True)
    assert children
    tuner.process.send_signal(signal.SIGINT)
    assert tuner.process.wait(60) == 130
    assert not psutil.wait_procs(children, timeout=20)[1]
    said = (tmp_path / "one.err").read_text()
    assert "--resume" in said.splitlines()[-1] and "Traceback" not in said
    with Records.open(tmp_path / "run.db") as records:
        (run,) = records.runs()
        assert run.status == "interrupted" and records.count().total > 0
