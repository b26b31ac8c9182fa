"""The C++ program of docs/deployment.md, built with the command printed there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpo.deploy.artifact import load

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def documented_command() -> str:
    text = (ROOT / "docs" / "deployment.md").read_text()
    found = re.search(r"<!-- tests/deploy/test_cpp\.py runs this block -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert found
    return found.group(1)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "docs").symlink_to(ROOT / "docs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = f"set -e\n{documented_command()}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "run_artifact"


def run(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, check=False)


def parse(text):
    outputs = []
    for line in text.splitlines():
        if line.startswith("output"):
            outputs.append(([int(dim) for dim in line.split()[1:]], []))
        else:
            outputs[-1][1].append(float(line))
    return [np.array(values, "float32").reshape(shape) for shape, values in outputs]


def test_it_computes_what_python_computes(program, library, tmp_path):
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((4, 64)).astype("float32"), rng.standard_normal(32).astype("float32")
    x.tofile(tmp_path / "x.bin")
    b.tofile(tmp_path / "b.bin")
    done = run(program, library, 2, f"4,64:{tmp_path / 'x.bin'}", f"32:{tmp_path / 'b.bin'}")
    assert done.returncode == 0, done.stderr
    with load(library) as artifact:
        for printed, expected in zip(parse(done.stdout), artifact(x, b), strict=True):
            assert printed.shape == expected.shape
            np.testing.assert_allclose(printed, expected, rtol=1e-5, atol=1e-6)


def test_it_reports_errors(program, library, tmp_path):
    assert run(program).returncode == 2
    missing = run(program, library, 1, "4,64:none.bin", "32:none.bin")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "cannot read 1024 bytes" in missing.stderr
    assert "error: " in run(program, tmp_path / "none.so", 1).stderr
