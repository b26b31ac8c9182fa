"""What users install: the wheel carries rules and configs, and tpo finds them there and in a checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tpo import resources

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The content of the wheel, as an installation would lay it out."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(REPOSITORY)], check=True, timeout=300)
    (wheel,) = folder.glob("tpo-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def shipped(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix in (".py", ".toml")}


@pytest.mark.parametrize("name", ["schedule_rules", "configs"])
def test_the_wheel_carries_the_folder(unpacked, name):
    assert shipped(REPOSITORY / name)
    assert shipped(unpacked / "tpo" / "_shipped" / name) == shipped(REPOSITORY / name)
    assert (unpacked / "tpo" / "py.typed").exists()


def test_an_installed_tpo_finds_its_own_folders(unpacked):
    code = (
        "from tpo import resources as r, targets; print(r.folder('configs')); print(targets.known_targets())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        cwd=unpacked,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    folder, known = done.stdout.splitlines()
    assert Path(folder).is_relative_to(unpacked)
    assert "x86-64-v3" in known


def test_a_checkout_uses_the_folders_at_its_top():
    assert resources.folder("schedule_rules") == REPOSITORY / "schedule_rules"


def test_a_missing_folder_is_said():
    with pytest.raises(FileNotFoundError, match="install it again"):
        resources.folder("no_such_folder")
