"""`tpo space` and `tpo rules`: what people see, and what they are told when something is wrong."""

import json

import onnx
import pytest

from support.artifacts import two_output_model
from support.commands import tpo as command


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(two_output_model(), str(path))
    return path


@pytest.fixture(scope="module")
def task(model):
    return json.loads(command("tasks", str(model), "--json").stdout)[0]["name"]


def test_space_shows_sketches_sites_authors_and_a_candidate(model, task):
    done = command("space", str(model), "--task", task, "--threads", "1")
    assert done.returncode == 0, done.stderr
    for text in ("contraction/columns=", "tvm/0", "site ", "contraction @ root", "@T.prim_func"):
        assert text in done.stdout


def test_space_as_json(model, task):
    found = json.loads(command("space", str(model), "--task", task, "--json").stdout)
    first = found["sketches"][0]
    assert first["support"] >= first["allowed"] >= 1 and first["exact"]
    assert all(site["name"].startswith("contraction/root/") for site in first["sites"])
    assert {author for author in first["authors"] if author} == {"contraction @ root"}


@pytest.mark.parametrize(
    "words, message",
    [
        (["--task", "nothing"], "no task matches 'nothing'"),
        (["--task", "TASK", "--sketch", "nothing"], "there is no sketch 'nothing'"),
        (["--task", "TASK", "--rules", "nowhere.py"], "no such file or folder"),
    ],
)
def test_space_refuses_what_is_not_there(model, task, words, message):
    done = command("space", str(model), *(task if word == "TASK" else word for word in words))
    assert done.returncode == 2 and message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error")]) == 1


def test_rules_are_listed_and_shown():
    listed = command("rules", "ls").stdout
    assert all(name in listed for name in ("contraction", "tiling_cpu", "auto_bind", "common"))
    names = [rule["name"] for rule in json.loads(command("rules", "ls", "--json").stdout)]
    assert len(set(names)) == len(names)
    assert "@rule(" in command("rules", "show", "elementwise").stdout
    done = command("rules", "show", "nothing")
    assert done.returncode == 2 and "there is no rule 'nothing'" in done.stderr


def test_a_new_rule_works_as_it_is(tmp_path):
    assert command("rules", "new", "mine", folder=tmp_path).returncode == 0
    again = command("rules", "new", "mine", folder=tmp_path)
    assert again.returncode == 2 and "it exists" in again.stderr
    assert command("rules", "new", "Not A Name", folder=tmp_path).returncode == 2
    checked = command("rules", "check", "mine.py", "--json", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout
    outcomes = json.loads(checked.stdout)["mine"]
    assert any(outcome["candidates"] for outcome in outcomes)


def test_a_rule_that_fails_is_reported_with_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("from tpo import rule\n\n@rule()\ndef broken(sch, block, hw):\n    sch.no_such_step()\n")
    done = command("rules", "check", str(path))
    assert done.returncode == 1
    assert "broken.py:5" in done.stdout and "no_such_step" in done.stdout
