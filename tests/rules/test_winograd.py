"""Winograd's convolution: its numbers against sums in float64, its place in records and in plain TVM."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, topi

from tpo.lang import Declined, apply_rule, condition
from tpo.lang.library import shipped_rule
from tpo.measure import Measurement
from tpo.measure.kernels import Kernel
from tpo.measure.packing import split_kernel, written_parameters
from tpo.records import Records, RunInfo, target_key
from tpo.records.replay import replay
from tpo.space.space import build_space, default_candidate
from tpo.targets import resolve
from tpo.workload import Workload, schedule_of

NATIVE = resolve("native")
WINOGRAD = shipped_rule("winograd")


def convolution(size=28, channels=32, filters=32, kernel=3, stride=1, dilation=1, constant=True, padding=1):
    data = te.placeholder((1, size, size, channels), name="data")
    weight = te.placeholder((kernel, kernel, channels, filters), name="weight")
    conv = topi.nn.conv2d_nhwc(data, weight, stride, padding, dilation)
    func = te.create_prim_func([data, weight, topi.nn.relu(conv)], index_dtype_override="int64")
    return Workload.of(func.with_attr("layout_free_buffers", [1] if constant else []))


def exact(data, weight):
    """The convolution, padded by one, and the relu, in float64."""
    size = data.shape[1]
    padded = np.pad(data.astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [
        np.tensordot(padded[:, r : r + size, s : s + size], weight[r, s].astype("float64"), 1)
        for r in range(3)
        for s in range(3)
    ]
    return np.maximum(sum(windows), 0)


@pytest.mark.parametrize("outputs, tolerance", [(2, 1e-6), (4, 1e-5)])
@pytest.mark.parametrize("size", [28, 13, 3])
@pytest.mark.parametrize("order", ["blocks", "products"])
def test_it_loses_few_digits(outputs, tolerance, size, order):
    sch = schedule_of(convolution(size).module)
    rule = condition(WINOGRAD, outputs=outputs, order=order)
    rng = np.random.default_rng(3)
    data, weight = (rng.standard_normal(s).astype("float32") for s in ((1, size, size, 32), (3, 3, 32, 32)))
    for way in apply_rule(rule, sch, sch.get_sblock("root"), NATIVE.hardware):
        func = way.sch.mod["main"]
        kernel = Kernel(split_kernel(func, written_parameters(func)), "", NATIVE.tvm)
        (packed,) = kernel.pack([weight])
        result = tvm.runtime.tensor(np.full((1, size, size, 32), np.nan, "float32"))
        kernel.function(tvm.runtime.tensor(data), tvm.runtime.tensor(packed), result)
        want = exact(data, weight)
        assert np.abs(result.numpy() - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize(
    "workload",
    [
        convolution(stride=2),
        convolution(dilation=2),
        convolution(kernel=5, padding=2),
        convolution(channels=3),
        convolution(constant=False),
    ],
    ids=["stride", "dilation", "5x5", "3 channels", "weights not constant"],
)
def test_it_declines_what_it_is_not_for(workload):
    sch = schedule_of(workload.module)
    with pytest.raises(Declined):
        apply_rule(WINOGRAD, sch, sch.get_sblock("root"), NATIVE.hardware)


def test_a_stored_trial_brings_its_program_along(tmp_path):
    workload = convolution()
    candidate = default_candidate(workload, NATIVE)
    assert candidate.program is not None
    target = target_key(NATIVE.tvm)
    with Records.open(tmp_path / "run.db") as records:
        records.add_workload(workload)
        run = records.begin_run(RunInfo("net", "net.onnx", "5ha", target, 1, 0))
        records.add(run, workload.key, target, candidate, Measurement(1e-3))
        trial = records.best(workload.key, target)
        assert trial.program == candidate.program.key
        again = replay(records.start(trial), trial.trace)
    assert tvm_ffi.structural_equal(again.mod, candidate.module)


def test_a_space_tells_its_sketches_apart_by_their_programs():
    space = build_space(convolution(), NATIVE)
    found = [sketch for sketch in space.sketches if sketch.name.startswith("winograd")]
    assert {sketch.program.key for sketch in found if "outputs=2" in sketch.name}.isdisjoint(
        sketch.program.key for sketch in found if "outputs=4" in sketch.name
    )
    rng = np.random.default_rng(0)
    for sketch in found:
        sampled = space.sample(sketch, 1)
        assert sampled.program is sketch.program
        changed = space.mutate(sampled, rng)
        assert changed is None or changed.program is sketch.program
