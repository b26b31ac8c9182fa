"""The local runner, with real processes, real crashes and real schedules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
from tvm import s_tir, te

from support.scheduling import schedule_by
from support.workloads import matmul
from tpo import targets
from tpo.measure import BuildInput, Failure, LocalRunner, MeasureOptions, Runner
from tpo.testing import faults
from tpo.testing.runners import RunnerContract
from tpo.workload import Workload

TARGET = targets.resolve("native", 2)


def make(**options: object) -> LocalRunner:
    return LocalRunner(TARGET.tvm, MeasureOptions(threads=2, **options))  # type: ignore[arg-type]


class TestLocalRunnerContract(RunnerContract):
    def make_runner(self) -> Runner:
        return make(run_timeout=3.0)


def default_schedule(workload: Workload) -> object:
    sch = s_tir.Schedule(workload.module)
    return schedule_by("contraction", sch, TARGET.hardware).mod


def test_packed_weights_are_packed_before_the_timing() -> None:
    workload = matmul()
    module = default_schedule(workload)
    assert "layout_rewrite_preproc" in str(tvm.ir.save_json(module))
    with make() as runner:
        ((_, measured),) = runner.measure([BuildInput(workload, module)])
    assert measured.ok, measured.message
    assert measured.error is not None and measured.error < 1e-5


def test_far_slower_candidates_are_cut_short() -> None:
    workload = matmul(192, 256, 256)
    inputs = [BuildInput(workload, default_schedule(workload)), BuildInput(workload, workload.module)]
    with make() as runner:
        fast = dict(runner.measure(inputs[:1]))[0]
        assert fast.seconds is not None
        slow = dict(runner.measure(inputs[1:], {workload.key: fast.seconds}))[0]
    assert not fast.cut_short
    assert slow.ok and slow.cut_short and len(slow.samples) == 1


def test_one_batch_may_mix_workloads() -> None:
    works = [matmul(16, 16, 16), matmul(32, 16, 16), matmul(16, 32, 16), faults.workload()]
    with make() as runner:
        found = dict(runner.measure([BuildInput(work, work.module) for work in works]))
    assert [found[k].ok for k in range(4)] == [True] * 4


def test_a_workload_that_fails_unscheduled_fails_all_its_candidates() -> None:
    broken = Workload(faults.module(faults.exception))
    with make() as runner:
        good = BuildInput(faults.workload(), faults.module(faults.double))
        found = dict(runner.measure([BuildInput(broken, broken.module), good]))
    assert found[0].failure is Failure.RUN_ERROR and "unscheduled" in found[0].message
    assert found[1].ok


def test_functions_of_positive_numbers_are_checked_on_positive_numbers() -> None:
    x = te.placeholder((64, 64), name="x")
    logarithm = te.compute((64, 64), lambda i, j: te.log(x[i, j]), name="logarithm")
    good = Workload.of(te.create_prim_func([x, logarithm]))
    shifted = te.compute((64, 64), lambda i, j: te.log(x[i, j] + te.const(0.01, "float32")), name="logarithm")
    bad = Workload.of(te.create_prim_func([x, shifted]))
    with make() as runner:
        found = dict(runner.measure([BuildInput(good, good.module), BuildInput(good, bad.module)]))
    assert found[0].ok
    assert found[1].failure is Failure.WRONG_RESULT


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float64", "bool"])
def test_every_element_type_can_be_measured(dtype: str) -> None:
    x = te.placeholder((32, 32), dtype=dtype, name="x")
    same = te.compute((32, 32), lambda i, j: x[j, i], name="transposed")
    workload = Workload.of(te.create_prim_func([x, same]))
    with make() as runner:
        ((_, measured),) = runner.measure([BuildInput(workload, workload.module)])
    assert measured.ok, measured.message


def test_workers_stay_and_are_recycled() -> None:
    workload = faults.workload()
    batch = [BuildInput(workload, faults.module(faults.double))] * 4
    with make(workers=1, recycle=8) as runner:
        seen = []
        for _ in range(4):
            assert all(measured.ok for _, measured in runner.measure(batch))
            seen.append(runner.workers[0].pid)
    assert seen[0] == seen[1] and seen[2] == seen[3] and seen[1] != seen[2]


def test_a_worker_that_grew_too_large_is_replaced() -> None:
    workload = faults.workload()
    with make(workers=1, worker_mb=1) as runner:
        list(runner.measure([BuildInput(workload, faults.module(faults.double))]))
        before = runner.workers[0].pid
        list(runner.measure([BuildInput(workload, faults.module(faults.double))]))
        assert runner.workers[0].pid != before


def test_workers_come_back_when_the_process_that_makes_them_was_killed() -> None:
    batch = [BuildInput(faults.workload(), faults.module(faults.double))]
    with make(workers=1) as runner:
        list(runner.measure(batch))
        before = runner.workers[0].pid
        assert before is not None
        os.kill(psutil.Process(before).ppid(), signal.SIGKILL)
        ((_, lost),) = runner.measure(batch)
        ((_, measured),) = runner.measure(batch)
        assert measured.ok, measured.message
        assert runner.workers[0].pid != before
    assert lost.ok or lost.failure is Failure.CRASH


def test_closing_leaves_no_process_and_no_file() -> None:
    runner = make()
    list(runner.measure([BuildInput(faults.workload(), faults.module(faults.double))]))
    pids = [worker.pid for worker in runner.workers]
    pids.append(psutil.Process(pids[0]).ppid())  # what they are forks of
    folder = runner._pool.folder
    assert all(psutil.pid_exists(pid) for pid in pids) and folder.is_dir()
    runner.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not folder.exists()


_KILLED_PARENT = """
import sys
from tpo import targets
from tpo.measure import BuildInput, LocalRunner, MeasureOptions
from tpo.testing import faults
runner = LocalRunner(targets.resolve("native", 2).tvm, MeasureOptions(threads=2, workers=2))
work = faults.workload()
list(runner.measure([BuildInput(work, faults.module(faults.double))]))
print(*(worker.pid for worker in runner.workers), flush=True)
list(runner.measure([BuildInput(work, faults.module(faults.endless_loop))]))
"""


def test_workers_die_with_a_killed_parent_even_inside_an_endless_kernel() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _KILLED_PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert len(gone) == 2 and not alive


def test_the_number_of_threads_is_the_one_asked_for(tmp_path: Path) -> None:
    with make(workers=1) as runner:
        list(runner.measure([BuildInput(faults.workload(), faults.module(faults.double))]))
        environment = psutil.Process(runner.workers[0].pid).environ()
        assert runner.capabilities.threads == 2
    assert environment["TVM_NUM_THREADS"] == "2"


def test_reference_values_do_not_depend_on_the_runner() -> None:
    from tpo.measure.data import load

    values = []
    for _ in range(2):
        with make(workers=1) as runner:
            work = matmul(8, 8, 8)
            list(runner.measure([BuildInput(work, work.module)]))
            _, arrays = load(runner._pool.folder / work.key)
            values.append(arrays)
    for one, other in zip(*values, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(values[0][0] @ values[0][1], values[0][2], rtol=1e-5, atol=1e-6)
