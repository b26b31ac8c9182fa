"""The nine real architectures that ship with the `onnx` package, given weights worth computing with.

The package stores every weight as the constant 0.02, so a wrong weight packing or a swapped channel
changes nothing in the output. Here each weight is drawn He-like from a seeded generator by the role
its consumer gives it, and the classifier is scaled so that the softmax is neither flat nor saturated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_LOGIT_STD = 2.0
_RESHAPING = {"Reshape", "Unsqueeze", "Squeeze", "Transpose"}

# What (operator, input position) makes of a constant: its role decides how it is drawn.
_ROLES = {
    ("Conv", 1): "kernel",
    ("Gemm", 1): "matrix",
    ("BatchNormalization", 1): "scale",
    ("BatchNormalization", 4): "variance",
    ("Mul", 1): "scale",
}


def _make(file: Path, seed: int) -> onnx.ModelProto:
    model = onnx.load(file)
    _draw_weights(model, np.random.default_rng(seed))
    _scale_classifier(model, seed)
    model.producer_name = "tpo.testing"
    return model


def _draw_weights(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Replace every float constant by a random initializer, in place."""
    graph = model.graph
    consumers = {name: (node, place) for node in graph.node for place, name in enumerate(node.input)}
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    fillers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {node.output[0]: tuple(numpy_helper.to_array(initializers[node.input[0]])) for node in fillers}
    floats = [t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    shapes.update({tensor.name: tuple(tensor.dims) for tensor in floats})

    dropped = {node.input[0] for node in fillers} | {tensor.name for tensor in floats}
    for values in (graph.initializer, graph.input):
        kept = [value for value in values if value.name not in dropped]
        del values[:]
        values.extend(kept)
    for node in fillers:
        graph.node.remove(node)

    for name, shape in shapes.items():
        tensor = graph.initializer.add()
        tensor.name, tensor.data_type = name, onnx.TensorProto.FLOAT
        tensor.dims.extend(int(size) for size in shape)
        tensor.raw_data = _draw(rng, tuple(tensor.dims), *_role(name, consumers)).tobytes()
        # These files are of IR version 3, where an initializer must be a graph input too.
        graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, tensor.dims))


def _role(name: str, consumers: dict[str, tuple[onnx.NodeProto, int]]) -> tuple[str, onnx.NodeProto | None]:
    while name in consumers:
        node, place = consumers[name]
        if node.op_type not in _RESHAPING or place > 0:
            role = _ROLES.get((node.op_type, place), "offset")
            after = consumers.get(node.output[0])
            if (
                node.op_type == "BatchNormalization"
                and role == "scale"
                and after
                and after[0].op_type == "Sum"
            ):
                return "branch scale", node
            return role, node
        name = node.output[0]
    return "offset", None


def _draw(
    rng: np.random.Generator, shape: tuple[int, ...], role: str, consumer: onnx.NodeProto | None
) -> npt.NDArray[np.float32]:
    if role in ("scale", "variance"):
        return rng.uniform(0.7, 1.3, shape).astype(np.float32)
    if role == "branch scale":  # smaller, or each residual block would double the variance
        return rng.uniform(0.2, 0.6, shape).astype(np.float32)
    values = rng.standard_normal(shape, dtype=np.float32)
    if role == "offset":
        values *= np.float32(0.1)
    else:
        values *= np.float32(math.sqrt(2.0 / _fan_in(shape, role, consumer)))
    return values


def _fan_in(shape: tuple[int, ...], role: str, consumer: onnx.NodeProto | None) -> int:
    if role == "kernel":
        return math.prod(shape[1:])
    transposed = consumer is not None and any(a.name == "transB" and a.i for a in consumer.attribute)
    sizes = [size for size in shape if size > 1]
    return sizes[-1] if transposed or len(shape) > 2 else sizes[0]


def _scale_classifier(model: onnx.ModelProto, seed: int) -> None:
    """Scale the last layer by a power of two so that the logits' standard deviation is about 2.

    A power of two, so that the weights do not depend on the last bit of the machine's arithmetic.
    """
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    last = producers[graph.output[0].name]
    logits = last.input[0] if last.op_type == "Softmax" else last.output[0]
    layer = producers[logits]
    while layer.op_type not in ("Conv", "Gemm"):
        layer = producers[layer.input[0]]
    # Between the layer and the logits there is at most Relu and pooling, which a scale passes through.
    std = float(np.std(_evaluate(model, logits, seed)))
    factor = np.float32(2.0 ** round(math.log2(_LOGIT_STD / std)))
    names = set()
    for name in layer.input[1:]:
        while name in producers:
            name = producers[name].input[0]
        names.add(name)
    for tensor in graph.initializer:
        if tensor.name in names:
            tensor.raw_data = (numpy_helper.to_array(tensor) * factor).tobytes()


def _evaluate(model: onnx.ModelProto, tensor: str, seed: int) -> npt.NDArray[np.float32]:
    weights = {weight.name for weight in model.graph.initializer}
    feeds = {
        value.name: np.random.default_rng(seed)
        .standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim])
        .astype(np.float32)
        for value in model.graph.input
        if value.name not in weights
    }
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # hundreds of warnings about initializers that are also inputs
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    probe = model.graph.output.add()
    probe.CopyFrom(onnx.helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, None))
    try:
        serialized = model.SerializeToString()
    finally:
        model.graph.output.pop()
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    result: npt.NDArray[np.float32] = session.run([tensor], feeds)[0]
    return result


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    file.stem: partial(_make, file) for file in sorted(_FOLDER.glob("light_*.onnx"))
}
