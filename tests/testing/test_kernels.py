"""Operators of the kernel benchmarks: what the frontend makes of them, and what they are compared with."""

import numpy as np
import pytest

from tpo import targets
from tpo.deploy.reference import Reference
from tpo.measure import data
from tpo.testing import beside
from tpo.testing.kernels import OTHER, PEAK, WINOGRAD, Operator, channels_last, imported, operators
from tpo.workload import Workload

SMALL = {item.name: item for group in operators(small=True).values() for item in group}
# One of each kind; pooling gets its layout from the convolutions around it.
KINDS = ["matmul 64x64x576", "conv3x3 7x7 128->128", "depthwise3x3 7x7x960", "MaxPool 3x3 28x28x64 s2"]


def test_the_operators_are_those_of_the_figures():
    found = operators()
    assert [len(found[group]) for group in (PEAK, WINOGRAD, OTHER)] == [22, 8, 18]
    peak = {item.name: item for item in found[PEAK]}
    assert peak["matmul 128x3072x768"].output == (128, 3072)
    assert peak["matmul 128x3072x768"].flops == 2 * 128 * 3072 * 768
    assert peak["conv3x3 56x56 128->128 s2"].flops == 2 * 28 * 28 * 128 * 128 * 9
    assert all("3x3" in item.name and "s2" not in item.name for item in found[WINOGRAD])


def test_small_operators_are_small_and_keep_awkward_sizes():
    assert max(item.flops for item in SMALL.values()) < 1e8
    assert {item.input[-1] for item in SMALL.values()} >= {7, 197, 1000}


@pytest.mark.parametrize("name", KINDS)
def test_an_imported_operator_is_one_function_with_its_constants(name):
    item = imported(SMALL[name])
    shapes = data.signature(item.func, ()).shapes
    x = np.empty(item.operator.input, np.float32)
    assert shapes[0] == (channels_last(x) if item.operator.images else x).shape
    assert all(array.shape == shapes[position] for position, array in item.constants.items())
    assert sorted([0, *item.constants, len(shapes) - 1]) == list(range(len(shapes)))


def passes(operator: Operator, want=None):
    """Both sides' passes over two copies; `want` replaces the right result."""
    item = imported(operator)
    x = np.random.default_rng(0).standard_normal(operator.input, dtype=np.float32)
    if want is None:
        (want,) = Reference(operator.model()).run({"x": x}).values()
    copies = beside.Copies(2, 2)
    ours = beside.kernel_pass(
        item, Workload.of(item.func).func, targets.resolve("native", 1), x, want, copies
    )
    return ours, beside.onnxruntime_pass(operator, x, want, copies, 1)


@pytest.mark.parametrize("name", KINDS)
def test_both_sides_compute_the_operator(name):
    (_, error), run = passes(SMALL[name])
    assert error < 1e-5
    run()


def test_a_wrong_result_is_not_timed():
    operator = SMALL["conv3x3 7x7 128->128"]
    with pytest.raises(ValueError, match="not ONNX Runtime's result"):
        passes(operator, np.ones(operator.output, np.float32))


def test_onnxruntime_runs_convolutions_in_its_own_layout_without_reorders():
    operator = SMALL["conv3x3 7x7 128->128"]
    nodes = [node for node in beside._optimised(operator.model()).graph.node if node.op_type == "Conv"]
    repeated = beside._repeated(beside._optimised(operator.model()), nodes, operator, beside.Copies(3, 2))
    assert [node.op_type for node in repeated.graph.node] == ["Conv"] * 3
    assert len({node.input[1] for node in repeated.graph.node}) == 3
    assert [node.input[0] for node in repeated.graph.node] == ["x0", "x1", "x0"]


def test_weights_are_cold_unless_that_takes_too_long():
    megabyte = 2**20
    assert beside.Copies.of(8 * megabyte, megabyte, 1e-4) == beside.Copies(8, 8)
    assert beside.Copies.of(megabyte, 4 * megabyte, 1e-4) == beside.Copies(64, 2)
    assert beside.Copies.of(megabyte, 4 * megabyte, 1.0).weights == 3
    assert beside.Copies.of(0, megabyte, 1e-4) == beside.Copies(8, 8)


def test_turns_alternate_and_count_calls():
    order = []
    runs = {name: (lambda name=name: order.append(name)) for name in ("a", "b")}
    times = beside.take_turns(runs, rounds=4, calls=2, threads=1)
    firsts = [name for k, name in enumerate(order) if k == 0 or order[k - 1] != name]
    assert [len(times[name]) for name in "ab"] == [4, 4]
    assert firsts == ["a", "b", "a", "b", "a"]
