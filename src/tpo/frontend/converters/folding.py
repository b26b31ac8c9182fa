"""Evaluate ONNX nodes whose inputs are all known, so that no converter sees shape arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]

# Results no larger than their input: folding them is always a gain.
_VIEWS = frozenset(
    {"Cast", "CastLike", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
# Above this, folding anything else would trade a small graph for a large constant (and a slow evaluation).
_LARGEST_INPUT = 1 << 16
_FOLDABLE = _VIEWS | {
    "Abs",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Ceil",
    "Concat",
    "ConstantOfShape",
    "Div",
    "Equal",
    "Expand",
    "Floor",
    "Gather",
    "GatherElements",
    "GatherND",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "OneHot",
    "Or",
    "Pad",
    "Range",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ScatterElements",
    "ScatterND",
    "Slice",
    "Split",
    "Sqrt",
    "Sub",
    "Tile",
    "TopK",
    "Trilu",
    "Where",
    "Xor",
}


# Operators whose result has no fixed shape or is a table: only supported where they can be folded.
FOLDED_ONLY = frozenset(
    {"BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "NonZero", "Range", "Unique"}
)


def is_foldable(node: onnx.NodeProto, values: Sequence[Array | None]) -> bool:
    """Whether `node` only computes on small known values."""
    return (
        node.op_type in _FOLDABLE | FOLDED_ONLY
        and node.domain in ("", "ai.onnx")
        and any(value is not None for value in values)
        and all(value is not None or not name for value, name in zip(values, node.input, strict=True))
        and (
            node.op_type in _VIEWS
            or sum(value.size for value in values if value is not None) <= _LARGEST_INPUT
        )
    )


def fold(node: onnx.NodeProto, values: Sequence[Array | None], version: int) -> dict[str, Array]:
    """Outputs by name of `node` for the given input values, by ONNX's own reference implementation."""
    graph = onnx.helper.make_graph(
        [node],
        "folded",
        [onnx.ValueInfoProto(name=name) for name in node.input if name],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    feeds = {name: value for name, value in zip(node.input, values, strict=True) if name}
    wanted = [name for name in node.output if name]
    results = ReferenceEvaluator(model).run(None, feeds)
    return {name: np.asarray(array) for name, array in zip(wanted, results, strict=True)}
