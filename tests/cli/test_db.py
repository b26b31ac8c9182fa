import json
import re

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import s_tir

import tpo as package
from support.commands import assert_refused, tpo
from support.scheduling import schedule_by
from tpo import targets
from tpo.measure.contract import Failure, Measurement
from tpo.records import Records, RunInfo, target_key
from tpo.space import Candidate
from tpo.tasks import extract_tasks
from tpo.workload import Workload

COMMANDS = ("ls", "show", "best", "merge", "export", "import", "prune")
TARGET = targets.resolve("native", 1)
KEY = target_key(TARGET.tvm)
ELSEWHERE = target_key(targets.resolve("x86-64-v3", 4).tvm)


def matmul_model() -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((32, 48)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "mm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 48])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def variant(workload: Workload, number: int) -> Candidate:
    schedule = s_tir.Schedule(workload.module)
    schedule = schedule_by("contraction", schedule, TARGET.hardware)
    schedule.annotate(schedule.get_sblock("root"), "variant", number)
    return Candidate("contraction", schedule.trace, schedule.mod)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, run.db with its trials, and other.db with one for another target and one by an old TVM."""
    folder = tmp_path_factory.mktemp("db")
    onnx.save(matmul_model(), folder / "mm.onnx")
    (task,) = extract_tasks(package.load_onnx(folder / "mm.onnx"))
    workload = Workload.of(task.func)
    measured = {
        0: Measurement(2e-3),
        1: Measurement(1.25e-3),
        2: Measurement(1e-4, cut_short=True),
        3: Measurement.failed(Failure.BUILD_TIMEOUT, "30 s"),
        4: Measurement.failed(Failure.CRASH, "signal 11"),
        5: Measurement.failed(Failure.CRASH, "signal 6"),
    }
    with Records.open(folder / "run.db") as records:
        records.add_workload(workload, task.name, task.flops)
        run = records.begin_run(RunInfo("mm", "mm.onnx", "5ha", KEY, 1, 3))
        for number, measurement in measured.items():
            records.add(run, workload.key, KEY, variant(workload, number), measurement)
        records.confirm(records.best(workload.key, KEY).id, Measurement(1.5e-3))
        records.end_run(run, "interrupted")
    with Records.open(folder / "other.db") as records:
        records.add_workload(workload)
        run = records.begin_run(RunInfo("mm", "mm.onnx", "5ha", ELSEWHERE, 4, 3))
        records.add(run, workload.key, ELSEWHERE, variant(workload, 6), Measurement(1e-5))
        records.using("0.26.0").add(run, workload.key, KEY, variant(workload, 7), Measurement(1e-6))
        records.end_run(run, "done")
    return folder, workload


@pytest.fixture
def folder(made, tmp_path):
    """A copy of all that, for one test to change."""
    for item in made[0].iterdir():
        (tmp_path / item.name).write_bytes(item.read_bytes())
    return tmp_path


@pytest.fixture
def key(made):
    return made[1].key


def good(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_as_users_run_it(folder, key):
    printed = good(tpo("db", "ls", "run.db", folder=folder))
    assert re.search(rf"^matmul +{key} +6 +3 +1 build-timeout, 2 crash +1\.5$", printed, re.MULTILINE)
    assert_refused(tpo("db", "ls", "none.db", folder=folder), "none.db: there is no such file")
    assert sorted(item.name for item in folder.iterdir()) == ["mm.onnx", "other.db", "run.db"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(tpo_inside, command):
    printed = good(tpo_inside("db", command, "--help"))
    assert f"Usage: tpo db {command} [OPTIONS]" in printed
    assert "--json" in printed


def test_without_a_command_it_helps(tpo_inside):
    done = tpo_inside("db", "--help")
    assert done.returncode == 0
    assert all(f"\n  {command}  " in done.stdout for command in COMMANDS)


def test_ls(tpo_inside, folder, key):
    printed = good(tpo_inside("db", "ls", "run.db", folder=folder))
    runs, used, workloads = printed.split("\n\n")
    assert re.search(r"mm +interrupted .* 1 +3 +6 +3 +1 build-timeout, 2 crash", runs)
    assert re.search(rf"{re.escape(tvm.__version__)} +6 +yes", used)
    assert key in workloads
    printed = good(tpo_inside("db", "ls", "other.db", folder=folder))
    assert re.search(r"mcpu=x86-64-v3.*num-cores=4.* 1 +yes", printed)
    assert re.search(rf"0\.26\.0 +1 +no: TVM {re.escape(tvm.__version__)} is installed", printed)


def test_ls_json(tpo_inside, folder, key):
    content = json.loads(good(tpo_inside("db", "ls", "run.db", "--json", folder=folder)))
    (run,), (workload,) = content["runs"], content["workloads"]
    assert run["status"] == "interrupted"
    assert run["info"]["model_sha256"] == "5ha"
    assert run["counts"]["failures"] == {"build-timeout": 1, "crash": 2}
    assert (workload["workload"], workload["name"], workload["best"], workload["usable"]) == (
        key, "matmul", 1.5e-3, True,
    )  # fmt: skip
    content = json.loads(good(tpo_inside("db", "ls", "other.db", "--json", folder=folder)))
    assert sorted(group["usable"] for group in content["workloads"]) == [False, True]


@pytest.mark.parametrize("task", ["matmul", "mat*", "KEY"])
def test_show(tpo_inside, folder, key, task):
    printed = good(tpo_inside("db", "show", "run.db", task.replace("KEY", key[:6]), folder=folder))
    lines = printed.splitlines()
    assert lines[0] == f"matmul {key}: 6 trials, 3 ok, failed: 1 build-timeout, 2 crash"
    assert [line.split()[1:3] for line in lines[2:5]] == [["1.5", "twice"], ["2", "once"], ["0.1", "cut"]]
    assert lines[-1].endswith("signal 6")


def test_show_limit_and_json(tpo_inside, folder, key):
    done = tpo_inside("db", "show", "run.db", "matmul", "--limit", "2", folder=folder)
    assert len(good(done).splitlines()) == 4
    assert "--limit" in done.stderr
    (row,) = json.loads(good(tpo_inside("db", "show", "run.db", "matmul", "--json", folder=folder)))
    assert (row["key"], len(row["trials"])) == (key, 6)
    assert row["trials"][0]["confirmed"] is True
    assert row["trials"][-1]["failure"] == "crash"


def test_show_trace(tpo_inside, folder):
    printed = good(tpo_inside("db", "show", "run.db", "matmul", "--trace", folder=folder))
    assert printed.startswith("# ")
    assert "sch.get_sblock(" in printed
    compile(printed, "trace", "exec")
    (row,) = json.loads(
        good(tpo_inside("db", "show", "run.db", "matmul", "--trace", "--json", folder=folder))
    )
    assert row["python"] in printed


def test_best(tpo_inside, folder, key):
    done = tpo_inside("db", "best", "run.db", folder=folder)
    _, line = good(done).splitlines()
    gflops = 2 * 16 * 32 * 48 / 1.5e-3 / 1e9
    assert line.split() == ["matmul", key, "1.5", f"{gflops:.1f}", "twice", "2", "contraction"]
    done = tpo_inside("db", "best", "other.db", folder=folder)
    assert good(done).splitlines()[1].split()[:3] == ["(no", "name)", key]
    assert done.stderr == "not used: 1 trials by TVM 0.26.0\n"
    (row,) = json.loads(good(tpo_inside("db", "best", "run.db", "matmul", "--json", folder=folder)))
    assert (row["name"], row["seconds"], row["confirmed"]) == ("matmul", 1.5e-3, True)


def test_merge(tpo_inside, folder, key):
    printed = good(tpo_inside("db", "merge", "all.db", "run.db", "other.db", folder=folder))
    assert re.search(r"trials added +8$", printed, re.MULTILINE)
    content = json.loads(good(tpo_inside("db", "merge", "all.db", "run.db", "--json", folder=folder)))
    assert content == {"runs": 0, "added": 0, "replaced": 0, "duplicates": 6}
    printed = good(tpo_inside("db", "best", "all.db", folder=folder))
    assert len(printed.splitlines()) == 3
    assert "mcpu=x86-64-v3" in printed


def test_export_and_import(tpo_inside, folder, key):
    done = tpo_inside("db", "export", "run.db", "out", "--model", "mm.onnx", "--top", "2", folder=folder)
    assert re.search(r"functions +1 of the model's 1 have a record", good(done))
    assert (folder / "out" / "module.json").is_file()
    done = tpo_inside("db", "import", "new.db", "out", folder=folder)
    assert re.search(r"read +2$", good(done), re.MULTILINE)
    content = json.loads(good(tpo_inside("db", "import", "new.db", "out", "--json", folder=folder)))
    assert (content["read"], content["skipped"]) == (0, {"recorded already": 2})
    (row,) = json.loads(good(tpo_inside("db", "best", "new.db", "--json", folder=folder)))
    assert row["seconds"] == 1.5e-3
    content = json.loads(good(tpo_inside("db", "export", "run.db", "out2", "--json", folder=folder)))
    assert (content["trials"], content["target"], content["matched"]) == (1, KEY, None)


@pytest.mark.parametrize("text", ["native", "TITLE", "KEY"])
def test_export_chooses_a_target(tpo_inside, folder, text):
    good(tpo_inside("db", "merge", "all.db", "run.db", "other.db", folder=folder))
    assert_refused(tpo_inside("db", "export", "all.db", "out", folder=folder), "--target", "num-cores=4")
    mcpu = json.loads(KEY)["mcpu"]
    words = {"native": "native", "TITLE": f"mcpu={mcpu} num-cores=1", "KEY": KEY}
    done = tpo_inside("db", "export", "all.db", "out", "--target", words[text], "--json", folder=folder)
    assert json.loads(good(done))["target"] == KEY


def test_prune(tpo_inside, folder):
    printed = good(tpo_inside("db", "prune", "run.db", "--failures", folder=folder))
    assert re.search(r"trials deleted +3$", printed, re.MULTILINE)
    content = json.loads(good(tpo_inside("db", "prune", "run.db", "--keep", "1", "--json", folder=folder)))
    assert (content["kept"], content["deleted"]) == (1, 2)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("ls", "mm.onnx"), ("mm.onnx is not a record store", "choose another path")),
        (("ls", "."), ("it is a folder",)),
        (("show", "run.db", "nothing*"), ("no workload 'nothing*'", "tpo db ls run.db")),
        (("show", "run.db", "matmul", "--target", "pdp11"), ("no target 'pdp11'",)),
        (("show", "other.db", "mat*"), ("no workload",)),
        (("best", "run.db", "nothing"), ("no workload 'nothing'",)),
        (("merge", "out.db"), ("DB...",)),
        (("merge", "out.db", "missing.db"), ("missing.db: there is no such file",)),
        (("merge", "run.db", "run.db"), ("into itself",)),
        (("export", "run.db", "."), ("not empty",)),
        (("export", "run.db", "out", "--top", "0"), ("--top",)),
        (("export", "run.db", "out", "--model", "run.db"), ("run.db",)),
        (("export", "missing.db", "out"), ("no such file",)),
        (("import", "new.db", "nowhere"), ("nowhere", "database_workload.json")),
        (("import", "mm.onnx", "."), ("database_workload.json",)),
        (("prune", "run.db"), ("--keep N", "--failures")),
        (("prune", "run.db", "--keep", "0"), ("--keep",)),
        (("prune", "missing.db", "--keep", "1"), ("no such file",)),
        (("nosuch", "run.db"), ("nosuch",)),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(tpo_inside, folder, words, parts):
    before = {item.name: item.read_bytes() for item in folder.iterdir()}
    assert_refused(tpo_inside("db", *words, folder=folder), *parts)
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before


def test_an_empty_store(tpo_inside, folder):
    (folder / "empty.db").touch()
    assert good(tpo_inside("db", "ls", "empty.db", folder=folder)).startswith("run  ")
    assert json.loads(good(tpo_inside("db", "best", "empty.db", "--json", folder=folder))) == []
    assert_refused(tpo_inside("db", "export", "empty.db", "out", folder=folder), "no usable trial")
    assert (folder / "empty.db").stat().st_size == 0
