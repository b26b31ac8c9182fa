import json

from support.commands import tpo
from tpo import cli, doctor


def test_table_and_json_agree():
    table, as_json = tpo("doctor"), tpo("doctor", "--json")
    assert table.returncode == as_json.returncode == 0
    report = json.loads(as_json.stdout)
    assert report["ready"] is True
    lines = {line.split("  ")[0]: line for line in table.stdout.splitlines()}
    for finding in report["findings"]:
        if finding["name"] not in ("load", "free disk", "free memory"):
            assert finding["value"] in lines[finding["name"]] or finding["fix"] in table.stdout
    assert "\x1b" not in table.stdout


def test_not_ready(monkeypatch, capsys):
    broken = doctor.Finding("tvm", "not installed", "missing", "pip install apache-tvm", required=True)
    monkeypatch.setattr(doctor, "examine", lambda: [broken])
    assert cli.run(["doctor"]) == 1
    assert "pip install apache-tvm" in capsys.readouterr().out
