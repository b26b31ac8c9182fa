"""Exchange with plain TVM: what is exported is applied by it, what others wrote is read."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import s_tir, te
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T  # noqa: N812 (the name its printed traces use)

import tpo
from support.onnx_runs import run_onnx
from support.scheduling import schedule_by
from tpo import targets
from tpo.errors import TvmDatabaseError, UsageError
from tpo.measure.contract import Failure, Measurement
from tpo.records import Records, RunInfo, plain_tvm, target_key, tvm_json
from tpo.records.replay import as_python, replay, uses_intrinsics
from tpo.records.rows import pack_text
from tpo.space import Candidate
from tpo.space.tvm_rules import register_intrinsics
from tpo.tasks import extract_tasks
from tpo.workload import Workload

TARGET = targets.resolve("native", 1)
KEY = target_key(TARGET.tvm)
OTHER_TARGET = targets.resolve("x86-64-v3", 4)
OTHER_KEY = target_key(OTHER_TARGET.tvm)


def conv_and_matmul() -> onnx.ModelProto:
    """A convolution, a pooling, a matrix product: two tuned functions among others."""
    rng = np.random.default_rng(3)
    constants = {
        "filter": rng.standard_normal((16, 8, 3, 3)),
        "bias": rng.standard_normal(16),
        "weight": rng.standard_normal((16, 24)) / 4,
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "filter", "bias"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "weight"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 24])],
        [numpy_helper.from_array(value.astype("float32"), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(conv_and_matmul(), path)
    return tpo.load_onnx(path)


def scheduled(workload: Workload, cores: int = 1) -> Candidate:
    """The workload under the default schedule, as a search would propose it."""
    schedule = s_tir.Schedule(workload.module)
    hardware = targets.resolve("native", cores).hardware
    schedule = schedule_by("contraction", schedule, hardware)
    return Candidate("contraction", schedule.trace, schedule.mod)


def annotated(workload: Workload, number: int) -> Candidate:
    """Another program that computes the same."""
    schedule = s_tir.Schedule(workload.module)
    schedule = schedule_by("contraction", schedule, TARGET.hardware)
    schedule.annotate(schedule.get_sblock("root"), "number", number)
    return Candidate("annotated", schedule.trace, schedule.mod)


def begin(records: Records, target: str = KEY) -> str:
    return records.begin_run(RunInfo("small", "small.onnx", "0", target, 1, 0))


@pytest.fixture(scope="module")
def contractions(model):
    """The two functions that have something to tune, by name."""
    found = {task.name: Workload.of(task.func) for task in extract_tasks(model)}
    return {name: found[name] for name in found if re.search("conv2d|matmul", name)}


@pytest.fixture
def records(tmp_path, contractions):
    """A store with one trial for each of the two functions."""
    with Records.open(tmp_path / "run.db") as records:
        run = begin(records)
        for number, (name, workload) in enumerate(contractions.items()):
            records.add_workload(workload, name)
            records.add(run, workload.key, KEY, scheduled(workload), Measurement(1e-3 * (number + 1) / 3))
        yield records


def test_the_key_of_a_target_is_the_target():
    for target in (TARGET.tvm, OTHER_TARGET.tvm, tvm.target.Target({"kind": "llvm", "tag": ""})):
        again = tvm.target.Target(json.loads(target_key(target)))
        assert target_key(again) == target_key(target)
        assert str(again) == str(target)


def test_a_stored_trace_makes_the_same_program(contractions):
    for workload in contractions.values():
        candidate = scheduled(workload)
        again = replay(workload, candidate.trace_json, KEY)
        assert tvm_ffi.structural_equal(again.mod, candidate.module)


def test_a_stored_trace_is_python_that_runs(contractions):
    for workload in contractions.values():
        trace = scheduled(workload).trace_json
        schedule = s_tir.Schedule(workload.module)
        exec(as_python(workload, trace, KEY), {"sch": schedule, "T": T})
        steps = [str(step.kind.name) for step in schedule.trace.insts]
        assert steps == [step[0] for step in json.loads(trace)[0]]


TENSORIZED = """
import json, sys
from tpo.records.replay import replay
from tpo.workload import Workload, structural_key
workload, trace, target = json.load(sys.stdin)
print(structural_key(replay(Workload.from_json(workload), trace, target).mod))
"""


def test_a_trace_with_tensor_instructions_replays_in_a_new_process():
    """TVM must have been told of the instructions; a process that did not search has not been."""
    register_intrinsics("x86_64")
    a, b = te.placeholder((4,), "uint8", "A"), te.placeholder((16, 4), "int8", "B")
    k = te.reduce_axis((0, 4), name="k")
    c = te.compute((16,), lambda i: te.sum(a[k].astype("int32") * b[i, k].astype("int32"), axis=k), name="C")
    workload = Workload.of(te.create_prim_func([a, b, c]))
    schedule = s_tir.Schedule(workload.module)
    block = schedule.get_sblock("C")
    loop, _ = schedule.get_loops(block)
    initial = schedule.decompose_reduction(block, loop)
    schedule.vectorize(schedule.get_loops(initial)[0])
    schedule.tensorize(loop, "dot_16x4_vnni")
    candidate = Candidate("vnni", schedule.trace, schedule.mod)
    target = target_key(targets.resolve("x86-64-v4", 1).tvm)
    done = subprocess.run(
        [sys.executable, "-c", TENSORIZED],
        input=json.dumps([workload.to_json(), candidate.trace_json, target]),
        env={**os.environ, "PYTHONPATH": str(Path(tpo.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == candidate.key
    assert uses_intrinsics(candidate.trace_json)
    assert "import tvm.s_tir.tensor_intrin" in plain_tvm.readme(target, False, intrinsics=True)


# Export

PLAIN = """
import sys
from pathlib import Path
import numpy as np
{code}
assert "tpo" not in sys.modules, "plain TVM only"
original = tvm.ir.load_json(Path("module.json").read_text())
with target, ms.database.JSONDatabase(work_dir="."):
    applied = relax.transform.MetaScheduleApplyDatabase()(original)
functions = [applied[var] for var in applied.get_global_vars()]
marked = [f for f in functions if isinstance(f, tvm.tirx.PrimFunc) and f.attrs.get("tirx.is_scheduled")]
print("scheduled", len(marked), "of", sum(isinstance(f, tvm.tirx.PrimFunc) for f in functions))
machine = relax.VirtualMachine(executable, tvm.cpu())
np.save("y.npy", machine["main"](tvm.runtime.tensor(np.load("x.npy"))).numpy())
"""


def test_plain_tvm_applies_an_export(records, model, tmp_path):
    report = tvm_json.export(records, tmp_path / "out", module=model.module)
    assert (report.workloads, report.trials, report.matched, report.left_out) == (2, 2, 2, {})
    assert report.functions == len(extract_tasks(model)) > 2
    folder = tmp_path / "out"
    assert sorted(item.name for item in folder.iterdir()) == [
        "README.md", "database_tuning_record.json", "database_workload.json", "module.json",
    ]  # fmt: skip
    (code,) = re.findall("```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype("float32")
    np.save(folder / "x.npy", x)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN.format(code=code)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"scheduled {report.matched} of {report.functions}"
    expected = run_onnx(conv_and_matmul(), {"x": x})["y"]
    np.testing.assert_allclose(np.load(folder / "y.npy"), expected, rtol=1e-4, atol=1e-5)


def test_an_export_carries_our_instructions_and_registers_them(tmp_path):
    """The copied file makes the names known to a process without tpo."""
    plain_tvm.write_dot_products(tmp_path)
    code = plain_tvm.code(KEY, with_module=False, intrinsics=False, dots=True)
    assert "import tpo_dot_products" in code
    assert code.index("tpo_dot_products.register()") < code.index("JSONDatabase(")
    check = """
import sys, tpo_dot_products
from tvm.s_tir import TensorIntrin
tpo_dot_products.register()
assert TensorIntrin.get("tpo.dot.uint8.int8.16x4") is not None
assert "tpo" not in sys.modules
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_without_a_model_the_readme_says_what_is_missing(records, tmp_path):
    report = tvm_json.export(records, tmp_path / "out")
    assert (report.functions, report.matched) == (None, None)
    assert not (tmp_path / "out" / "module.json").exists()
    assert "tpo db export --model" in (tmp_path / "out" / "README.md").read_text()


def read_back(folder: Path):
    return ms.database.JSONDatabase(work_dir=str(folder)).get_all_tuning_records()


def test_tvm_takes_the_trial_that_tpo_calls_best(records, contractions, tmp_path):
    """A faster time that was not measured again would come first in TVM, so it is left out."""
    (name, workload), _ = contractions.items()
    run = begin(records)
    numbers = [
        records.add(run, workload.key, KEY, annotated(workload, number), Measurement(seconds))
        for number, seconds in enumerate((1e-5, 2e-4, 9e-4))
    ]
    records.confirm(numbers[1], Measurement(2.5e-4))
    report = tvm_json.export(records, tmp_path / "out", top=9)
    assert report.left_out == {"faster than the best, but not measured again": 1}
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    found = database.query_tuning_record(workload.module, TARGET.tvm, name)
    assert [time.value for time in found.run_secs] == [2.5e-4]
    assert len(read_back(tmp_path / "out")) == report.trials == 4


def test_top_limits_the_trials_of_each_workload(records, contractions, tmp_path):
    workload = next(iter(contractions.values()))
    run = begin(records)
    for number in range(3):
        records.add(run, workload.key, KEY, annotated(workload, number), Measurement(1.0 + number))
    assert tvm_json.export(records, tmp_path / "one").trials == 2
    assert tvm_json.export(records, tmp_path / "two", top=2).trials == 3
    assert len(read_back(tmp_path / "two")) == 3


def test_one_export_is_for_one_target(records, contractions, tmp_path):
    workload = next(iter(contractions.values()))
    records.add(begin(records, OTHER_KEY), workload.key, OTHER_KEY, annotated(workload, 1), Measurement(1e-9))
    with pytest.raises(UsageError, match=r"several targets; choose with --target: .llvm .*num-cores=4"):
        tvm_json.export(records, tmp_path / "out")
    assert tvm_json.export(records, tmp_path / "out", target=OTHER_KEY).workloads == 1
    (record,) = read_back(tmp_path / "out")
    assert target_key(record.target) == OTHER_KEY


def test_trials_of_another_tvm_are_not_exported(tmp_path, contractions):
    workload = next(iter(contractions.values()))
    with Records.open(tmp_path / "run.db", tvm_version="0.26.0") as old:
        old.add_workload(workload)
        old.add(begin(old), workload.key, KEY, scheduled(workload), Measurement(1.0))
    with Records.open(tmp_path / "run.db") as records, pytest.raises(UsageError, match=r"some by 0\.26\.0"):
        tvm_json.export(records, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_trace_that_does_not_replay_is_left_out(records, contractions, tmp_path):
    workload = list(contractions.values())[-1]
    with records.transaction() as connection:
        number = records.best(workload.key, KEY).id
        wrong = pack_text('[[["GetSBlock",[],["nowhere","main"],["b0"]]],[]]')
        connection.execute("UPDATE details SET trace = ? WHERE trial = ?", (wrong, number))
    report = tvm_json.export(records, tmp_path / "out")
    assert (report.workloads, report.trials, report.left_out) == (1, 1, {"its trace cannot be replayed": 1})


def test_folders_that_cannot_be_written_to(records, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    (tmp_path / "file").touch()
    for name, why in {"full": "not empty", "file": "not a folder", "no/where": "no folder"}.items():
        with pytest.raises(UsageError, match=why):
            tvm_json.export(records, tmp_path / name)
    (tmp_path / "empty").mkdir()
    tvm_json.export(records, tmp_path / "empty")
    names = sorted(item.name for item in tmp_path.iterdir() if not item.name.startswith("run.db"))
    assert names == ["empty", "file", "full"]


# Import


@pytest.fixture
def exported(records, tmp_path):
    tvm_json.export(records, tmp_path / "exported", top=9)
    return tmp_path / "exported"


def test_importing_an_export_gives_the_same_best(records, exported, contractions, tmp_path):
    with Records.open(tmp_path / "new.db") as new:
        report = tvm_json.import_folder(new, exported)
        assert (report.read, report.skipped, report.other_tvm) == (2, {}, 0)
        for workload in contractions.values():
            ours, theirs = records.best(workload.key, KEY), new.best(workload.key, KEY)
            assert (theirs.candidate, theirs.seconds) == (ours.candidate, ours.seconds)
            assert new.workload(workload.key).same_as(workload)
            assert replay(workload, theirs.trace, KEY).mod is not None
        (run,) = new.runs()
        assert (run.id, run.status, run.info.model_name) == (*report.runs, "done", "imported")
        assert run.info.model_path == str(exported)
        again = tvm_json.import_folder(new, exported)
        assert (again.read, again.skipped, again.runs) == (0, {"recorded already": 2}, ())
        assert new.count().total == 2


def edit(path: Path, change) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")


def test_bad_lines_are_counted_and_left_out(exported, tmp_path):
    def spoil(lines):
        index, (trace, times, target, arguments) = json.loads(lines[0])
        nowhere = [[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []]
        return [
            "not json",
            "",
            "[1, 2]",
            "{}",
            lines[0][: len(lines[0]) // 2],
            json.dumps([99, [trace, times, target, arguments]]),
            json.dumps([index, [trace, [1e10], target, arguments]]),
            json.dumps([index, [trace, None, target, arguments]]),
            json.dumps([index, [trace, times, None, arguments]]),
            json.dumps([index, [trace, times, {"kind": "abacus"}, arguments]]),
            json.dumps([index, [nowhere, times, target, arguments]]),
            *lines,
            lines[0],
        ]

    edit(exported / "database_tuning_record.json", spoil)
    with Records.open(tmp_path / "new.db") as new:
        report = tvm_json.import_folder(new, exported)
    assert report.read == 2
    assert report.skipped == {
        "unreadable record": 5,
        "its workload is missing or unreadable": 1,
        "no time (it failed when it was measured)": 2,
        "no target": 1,
        "unknown target": 1,
        "its trace cannot be replayed": 1,
        "recorded already": 1,
    }


def test_an_unreadable_workload_costs_its_records_only(exported, tmp_path):
    edit(exported / "database_workload.json", lambda lines: ['["1", "bm90IGpzb24="]', *lines[1:]])
    with Records.open(tmp_path / "new.db") as new:
        report = tvm_json.import_folder(new, exported)
    assert (report.read, report.skipped) == (
        1, {"unreadable workload": 1, "its workload is missing or unreadable": 1},
    )  # fmt: skip


def test_records_of_another_tvm_are_kept_as_such(exported, contractions, tmp_path):
    def age(lines):
        for line in lines:
            shash, packed = json.loads(line)
            content = base64.b64decode(packed)
            old = content.replace(tvm.__version__.encode(), b"0.1".ljust(len(tvm.__version__), b"0"))
            assert old != content
            yield json.dumps([shash, base64.b64encode(old).decode()])

    edit(exported / "database_workload.json", age)
    with Records.open(tmp_path / "new.db") as new:
        report = tvm_json.import_folder(new, exported)
        assert (report.read, report.other_tvm) == (2, 2)
        workload = next(iter(contractions.values()))
        assert new.best(workload.key, KEY) is None
        assert new.others(workload.key, KEY) == ["1 trial by TVM 0.1000000000"]


def test_folders_that_are_no_database(tmp_path, records):
    for make in (lambda: None, lambda: (tmp_path / "database_workload.json").touch()):
        make()
        with pytest.raises(TvmDatabaseError, match=r"database_\w+\.json"):
            tvm_json.check_folder(tmp_path)
        with pytest.raises(TvmDatabaseError, match=r"database_\w+\.json"):
            tvm_json.import_folder(records, tmp_path)


def test_failures_are_not_exported(records, contractions, tmp_path):
    workload = next(iter(contractions.values()))
    run = begin(records)
    records.add(run, workload.key, KEY, annotated(workload, 5), Measurement.failed(Failure.CRASH, "boom"))
    rough = Measurement(1e-9, cut_short=True)
    records.add(run, workload.key, KEY, annotated(workload, 6), rough)
    assert tvm_json.export(records, tmp_path / "out", top=9).trials == 2
