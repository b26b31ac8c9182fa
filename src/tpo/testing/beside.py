"""Kernels beside ONNX Runtime: in one process, in turns, on equal threads, with weights from memory.

Both sides run a *pass*: one call for each of so many copies of the operator, every copy with weights of
its own. In ONNX Runtime a pass is one graph of that many nodes, in its own blocked layout and without the
reorders at the graph's edges, which a model has once and not at every node.
"""

from __future__ import annotations

import copy
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import tvm
from onnx import TensorProto, helper, numpy_helper

from tpo.deploy.machine import wait_until_idle
from tpo.deploy.reference import Reference
from tpo.measure import data
from tpo.measure.packing import KERNEL, pack, split_kernel, written_parameters
from tpo.targets import Target, for_compiling
from tpo.testing.fma_peak import FmaPeak
from tpo.testing.kernels import Array, Imported, Operator, channels_last

# Weights are used again after this many bytes of others, or after the longest pass: those so small that
# a pass ends first take no time to read.
COLD_BYTES = 64 * 2**20
LONGEST_PASS = 0.1
MOST_COPIES = 128
# Inputs and outputs rotate through this much: a layer's input was written by the one before it, and is
# in the last cache and not in the first.
ACTIVATION_BYTES = 8 * 2**20
SHORTEST_TURN = 0.05
# After a rest a hypervisor may run two processors on one core for a tenth of a second and more.
WARM_UP = 0.2
_BLOCKED = "com.microsoft.nchwc"
_BLOCKS = (16, 8, 4)  # channels that ONNX Runtime keeps together; it depends on the CPU

Pass = Callable[[], None]


@dataclass(frozen=True)
class Copies:
    """How many copies of weights and of activations a pass goes through."""

    weights: int
    activations: int

    @classmethod
    def of(cls, weight_bytes: int, activation_bytes: int, seconds: float) -> Copies:
        """For an operator that takes so long.

        >>> Copies.of(weight_bytes=9 * 2**20, activation_bytes=2**18, seconds=0.001)
        Copies(weights=32, activations=32)
        """
        activations = min(max(2, math.ceil(ACTIVATION_BYTES / activation_bytes)), MOST_COPIES)
        cold = math.ceil(COLD_BYTES / weight_bytes) if weight_bytes else 1
        affordable = max(3, int(LONGEST_PASS / seconds))
        return cls(min(max(cold, activations), affordable, MOST_COPIES), activations)


@dataclass(frozen=True)
class Comparison:
    """Seconds per call in every round, by contender; GFLOP/s of the FMA peak before and after them."""

    seconds: dict[str, list[float]]
    peaks: tuple[float, float]
    copies: Copies
    error: float


def compare(
    item: Imported, candidates: dict[str, Any], target: Target, peak: FmaPeak, rounds: int, seconds: float
) -> Comparison:
    """Time scheduled functions, by name, beside ONNX Runtime; a wrong result of any of them raises.

    `seconds` is about what the best of them takes.
    """
    threads = target.hardware.cores
    copies = Copies.of(item.weight_bytes, item.activation_bytes, seconds)
    x = np.random.default_rng(1).standard_normal(item.operator.input, dtype=np.float32)
    (want,) = Reference(item.operator.model()).run({"x": x}).values()
    passes: dict[str, Pass] = {"onnxruntime": onnxruntime_pass(item.operator, x, want, copies, threads)}
    error = 0.0
    for name, func in candidates.items():
        passes[name], found = kernel_pass(item, func, target, x, want, copies)
        error = max(error, found)
    before = peak.read()
    rest(threads)
    times = take_turns(passes, rounds, copies.weights, threads)
    return Comparison(times, (before, peak.read()), copies, error)


def take_turns(passes: dict[str, Pass], rounds: int, calls: int, threads: int) -> dict[str, list[float]]:
    """Seconds of one of a pass's `calls`, in every round; the order is reversed in every second round."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    names = list(passes)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            run_for(passes[name], WARM_UP if threads > 1 else 0.0)
            times[name].append(statistics.median(run_for(passes[name], SHORTEST_TURN)) / calls)
            rest(threads)
    return times


def run_for(run: Pass, seconds: float) -> list[float]:
    """Seconds of every pass, for at least one pass and so long."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def rest(threads: int) -> None:
    """Wait until the threads of the last contender have stopped spinning: they would disturb the next."""
    if threads > 1:
        wait_until_idle(psutil.Process())


def kernel_pass(
    item: Imported, func: Any, target: Target, x: Array, want: Array, copies: Copies
) -> tuple[Pass, float]:
    """A scheduled function, built as for deployment, with packed weights; and its error, which is small."""
    (output,) = written_parameters(func)
    split = split_kernel(func, [output])
    function = _build(split.kernel, target)
    constants = dict(item.constants)
    if split.packed:
        weights = [constants[position] for position in split.packed]
        packed = pack(split, weights, lambda prepack: _build(prepack, target))
        constants.update(zip(split.packed, packed, strict=True))
    images = item.operator.images
    given, expected = (channels_last(x), channels_last(want)) if images else (x, want)
    shapes = data.signature(func, [output]).shapes
    inputs = [tvm.runtime.tensor(given.reshape(shapes[0])) for _ in range(copies.activations)]
    results = [
        tvm.runtime.tensor(np.full(shapes[output], np.nan, np.float32)) for _ in range(copies.activations)
    ]
    arguments = []
    for number in range(copies.weights):
        own: dict[int, Any] = {k: tvm.runtime.tensor(array) for k, array in constants.items()}
        own[0], own[output] = inputs[number % copies.activations], results[number % copies.activations]
        arguments.append([own[k] for k in range(len(own))])

    def run() -> None:
        for each in arguments:
            function(*each)

    run()
    error, wrong = data.difference(results[0].numpy().reshape(expected.shape), expected)
    if wrong:
        raise ValueError(f"{item.operator.name}: not ONNX Runtime's result: {wrong}")
    return run, error


def _build(func: Any, target: Target) -> Any:
    """As deployment does, with the checks of arguments that measuring leaves out."""
    module = tvm.IRModule({KERNEL: func.with_attr("global_symbol", KERNEL)})
    return tvm.tirx.build(module, for_compiling(target.tvm))[KERNEL]


def onnxruntime_pass(operator: Operator, x: Array, want: Array, copies: Copies, threads: int) -> Pass:
    """ONNX Runtime on a graph of copies of the operator's optimised nodes."""
    import onnxruntime

    optimised = _optimised(operator.model_in_place())
    wanted = {node.op_type for node in operator.model().graph.node} if operator.follows else None
    nodes = [
        node
        for node in optimised.graph.node
        if not node.op_type.startswith("Reorder") and (wanted is None or node.op_type in wanted)
    ]
    blocked = any(node.domain == _BLOCKED for node in nodes)
    model = _repeated(optimised, nodes, operator, copies)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it is optimised
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for block in _BLOCKS if blocked else (1,):
        binding, results = _bind(session, _to_blocks(x, block), want.shape, copies)
        session.run_with_iobinding(binding)
        wrong = data.difference(_from_blocks(results[0].numpy(), block), want)[1]
        if not wrong:
            return lambda: session.run_with_iobinding(binding)
    raise ValueError(f"{operator.name}: ONNX Runtime's optimised nodes do not compute the operator: {wrong}")


def _optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model as ONNX Runtime runs it: fused, and in its blocked layout."""
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="tpo-optimised-") as folder:
        path = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def _repeated(
    source: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], operator: Operator, copies: Copies
) -> onnx.ModelProto:
    """A model of copies of these nodes, each with its own weights and result."""
    constants = {tensor.name: tensor for tensor in source.graph.initializer}
    made = {name for node in nodes for name in node.output}
    used = {name for node in nodes for name in node.input}
    (entry,) = used - made - set(constants) - {""}
    (result,) = made - used
    repeated, weights = [], []
    for number in range(copies.weights):
        names = {name: f"{name}_{number}" for name in made | (used & set(constants))}
        names[entry] = f"x{number % copies.activations}"
        for node in nodes:
            other = copy.deepcopy(node)
            other.name = f"{node.name}_{number}"
            other.input[:] = [names.get(name, name) for name in node.input]
            other.output[:] = [names.get(name, name) for name in node.output]
            repeated.append(other)
        for name in sorted(used & set(constants)):
            weights.append(_different(constants[name], names[name], number))
    inputs = [
        helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, operator.input)
        for number in range(min(copies.activations, copies.weights))
    ]
    outputs = [
        helper.make_tensor_value_info(f"{result}_{number}", TensorProto.FLOAT, operator.output)
        for number in range(copies.weights)
    ]
    graph = helper.make_graph(repeated, "repeated", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=source.opset_import, ir_version=source.ir_version)


def _different(source: onnx.TensorProto, name: str, number: int) -> onnx.TensorProto:
    """A copy of weights that differs in its last digits: ONNX Runtime keeps equal packed weights once."""
    values = numpy_helper.to_array(source)
    if not np.issubdtype(values.dtype, np.floating):
        tensor = copy.deepcopy(source)
        tensor.name = name
        return tensor
    return numpy_helper.from_array(values * values.dtype.type(1 + number * np.finfo(values.dtype).eps), name)


def _bind(session: Any, x: Array, shape: tuple[int, ...], copies: Copies) -> tuple[Any, list[Any]]:
    """Inputs and results in place beforehand: nothing is allocated or copied in a pass."""
    import onnxruntime

    make = onnxruntime.OrtValue.ortvalue_from_numpy
    binding = session.io_binding()
    for item in session.get_inputs():
        binding.bind_ortvalue_input(item.name, make(x))
    results = [make(np.full(shape, np.nan, np.float32)) for _ in range(copies.activations)]
    for number, item in enumerate(session.get_outputs()):
        binding.bind_ortvalue_output(item.name, results[number % copies.activations])
    return binding, results


def _to_blocks(array: Array, block: int) -> Array:
    """An image with so many channels side by side; its shape stays.

    >>> _to_blocks(np.arange(8).reshape(1, 4, 1, 2), 2).ravel().tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    if block == 1 or array.shape[1] % block:
        return array
    split = array.reshape(array.shape[0], -1, block, *array.shape[2:])
    return np.reshape(np.moveaxis(split, 2, -1), array.shape)


def _from_blocks(array: Array, block: int) -> Array:
    """The inverse of `_to_blocks`."""
    if block == 1 or array.shape[1] % block:
        return array
    split = array.reshape(array.shape[0], -1, *array.shape[2:], block)
    return np.reshape(np.moveaxis(split, -1, 2), array.shape)
