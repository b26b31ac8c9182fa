"""ONNX models of a few operators, whose functions take microseconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save_chain(path: Path, rows: int = 16) -> Path:
    """Products followed by Relu, by a residual sum, and one of another size: three anchors' worth of two."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (64, 64), "w2": (64, 64), "w3": (64, 32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["d"]),
        helper.make_node("MatMul", ["d", "w3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 32])],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
            for name, shape in shapes.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path
