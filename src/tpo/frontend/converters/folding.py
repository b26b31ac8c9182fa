"""Evaluate ONNX nodes whose inputs are all known, so that no converter sees shape arithmetic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tpo.frontend.converters.registry import Array, value_of

_log = logging.getLogger(__name__)

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


def folded(node: onnx.NodeProto, inputs: Sequence[Any], version: int) -> dict[str, Array] | None:
    """Outputs of a node by name, if its inputs are all known and it is worth evaluating now; else None.

    The values come from ONNX's own reference implementation; where that has none, the node is left
    to be translated like any other.
    """
    if node.op_type not in _FOLDABLE | FOLDED_ONLY or node.domain not in ("", "ai.onnx"):
        return None
    values = [value_of(expression) for expression in inputs]
    known = [value for value in values if value is not None]
    if not known or len(known) != sum(bool(name) for name in node.input):
        return None
    if node.op_type not in _VIEWS and sum(value.size for value in known) > _LARGEST_INPUT:
        return None
    try:
        return _evaluate(node, values, version)
    except Exception as error:  # the reference raises whatever numpy does
        _log.debug("%s %s was not folded: %s", node.op_type, node.name, error)
        return None


def _evaluate(node: onnx.NodeProto, values: Sequence[Array | None], version: int) -> dict[str, Array]:
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
