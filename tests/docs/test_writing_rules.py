"""Every command of docs/writing-rules.md runs as it is written, and the rule it writes pays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_commands_run_as_written(tmp_path):
    text = (REPOSITORY / "docs" / "writing-rules.md").read_text()
    commands = "set -e\n" + "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "blocked_transpose/inner=rows" in done.stdout
    assert re.search(r"narrow_transpose\n", done.stdout)
    assert "1 of 1 tuned" in done.stdout
    rule = (tmp_path / "blocked_transpose.py").read_text().splitlines()
    assert len(rule) <= 40
