"""Compiling with tuning records: good ones are used, bad ones never, and nothing is skipped silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from tvm import s_tir

import tpo
from support.artifacts import two_output_model
from support.commands import tpo as command
from support.scheduling import schedule_by
from tpo import targets
from tpo.frontend.model import Model
from tpo.measure import Measurement
from tpo.records import Records, RunInfo, target_key
from tpo.records.record import StoredCandidate
from tpo.space import Candidate
from tpo.tasks import extract_tasks
from tpo.workload import Workload

TARGET = targets.resolve("native", 2)
TIME = Measurement(seconds=1e-4, samples=(1e-4,), error=0.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(two_output_model(), str(made))
    return made


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return tpo.load_onnx(path)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records.open(tmp_path / "run.db") as opened:
        yield opened


def good(sch: Any) -> Any:
    return schedule_by("contraction", sch, TARGET.hardware)


def imprecise(sch: Any) -> Any:
    """A schedule TVM is told to trust: sums are kept in half precision."""
    (block, *_) = sch.get_child_blocks(sch.get_sblock("root"))
    sch.unsafe_set_dtype(block, 0, "float16")
    return sch


def store(
    records: Records, workload: Workload, apply: Callable[[Any], Any], target: Any = TARGET.tvm
) -> None:
    sch = apply(s_tir.Schedule(workload.module))
    info = RunInfo("small", "small.onnx", "0" * 64, target_key(target), 2, 0)
    run = records.begin_run(info)
    records.add_workload(workload, "matmul")
    candidate = Candidate("made/up", sch.trace, sch.mod)
    records.add(run, workload.key, target_key(target), candidate, TIME)
    records.end_run(run, "done")


def anchor(model: Model) -> Workload:
    """The matrix product with its epilogue: the model's largest function."""
    return Workload.of(extract_tasks(model)[0].func)


def compiled(model: Model, tmp_path: Path, records: Records) -> tuple[dict[str, bool], list[str]]:
    """Which functions are tuned, and what was said about it."""
    from tpo.deploy.compile import compile_model

    said: list[str] = []
    manifest = compile_model(model, tmp_path / "m.so", TARGET, 2, True, records, said.append)
    return {function.name: function.tuned for function in manifest.functions}, said


def test_a_recorded_schedule_is_used_and_others_get_the_default(
    model: Model, tmp_path: Path, records: Records
) -> None:
    store(records, anchor(model), good)
    tuned, _ = compiled(model, tmp_path, records)
    assert sum(tuned.values()) == 1 and len(tuned) == 2
    manifest = tpo.load(tmp_path / "m.so").manifest
    assert [f.scheduled_by for f in manifest.functions if f.tuned] == ["made/up"]
    assert manifest.numeric_check is not None


def test_an_empty_store_changes_nothing(model: Model, tmp_path: Path, records: Records) -> None:
    tuned, said = compiled(model, tmp_path, records)
    assert not any(tuned.values())
    assert not any("not applied" in line for line in said)


def test_a_record_whose_result_would_be_wrong_is_refused(
    model: Model, tmp_path: Path, records: Records
) -> None:
    store(records, anchor(model), imprecise)
    tuned, said = compiled(model, tmp_path, records)
    assert not any(tuned.values())
    assert any("refused" in line and "wrong-result" in line for line in said), said


def test_a_trace_that_does_not_replay_is_said_and_not_used(
    model: Model, tmp_path: Path, records: Records
) -> None:
    workload = anchor(model)
    run = records.begin_run(RunInfo("small", "small.onnx", "0" * 64, target_key(TARGET.tvm), 2, 0))
    records.add_workload(workload)
    broken = StoredCandidate("0" * 16, "made/up", '[[["GetSBlock",[],["nowhere","main"],["b0"]]],[]]')
    records.add(run, workload.key, target_key(TARGET.tvm), broken, TIME)
    tuned, said = compiled(model, tmp_path, records)
    assert not any(tuned.values())
    assert any("cannot be replayed" in line for line in said), said


def test_records_for_another_target_or_tvm_are_named_and_not_applied(
    model: Model, tmp_path: Path, records: Records
) -> None:
    store(records, anchor(model), good, targets.resolve("x86-64-v3", 2).tvm)
    store(records.using("0.26.0"), anchor(model), good)
    tuned, said = compiled(model, tmp_path, records)
    assert not any(tuned.values())
    notes = [line for line in said if "not applied" in line]
    assert any("haswell" in line or "x86-64-v3" in line for line in notes), said
    assert any("0.26.0" in line for line in notes), said


def test_the_command_says_how_many_functions_are_tuned(
    path: Path, model: Model, tmp_path: Path, records: Records
) -> None:
    store(records, anchor(model), good)
    arguments = ("compile", str(path), "-o", str(tmp_path / "m.so"), "--threads", "2")
    done = command(*arguments, "--db", str(records.path))
    assert done.returncode == 0, done.stderr
    assert "1 of 2 tuned" in done.stdout
    missing = command(*arguments, "--db", str(tmp_path / "none.db"))
    assert missing.returncode == 2 and "none.db" in missing.stderr
    assert not (tmp_path / "none.db").exists()


def test_python_takes_a_path_or_an_open_store(model: Model, tmp_path: Path, records: Records) -> None:
    store(records, anchor(model), good)
    for given in (records, records.path, str(records.path)):
        manifest = tpo.compile(model, tmp_path / "m.so", threads=2, records=given)
        assert sum(function.tuned for function in manifest.functions) == 1
