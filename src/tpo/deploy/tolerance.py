"""How far results may be from the reference's, by the arithmetic the model is written in.

An element passes when |result - reference| <= atol * max|reference| + rtol * |reference|. The first
term is relative to the largest value of that output, because a sum of large terms that happens to
be near zero keeps the rounding errors of its terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

QUANTISING = {
    "QuantizeLinear",
    "DynamicQuantizeLinear",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
}


@dataclass(frozen=True)
class Tolerance:
    """Limits of an element's error; `quanta` is what 8 bit integers may differ by, others never do."""

    arithmetic: str
    atol: float
    rtol: float
    quanta: int = 0

    def override(self, atol: float | None, rtol: float | None) -> Tolerance:
        """The same with what the user gave."""
        return replace(
            self, atol=self.atol if atol is None else atol, rtol=self.rtol if rtol is None else rtol
        )

    def __str__(self) -> str:
        quanta = f", 8 bit integers within {self.quanta}" if self.quanta else ""
        return f"{self.atol:g} of the largest + {self.rtol:g} relative ({self.arithmetic}{quanta})"


# float32: networks reorder sums of thousands of terms and approximate exp and erf; errors of 1e-6 to
# 1e-5 of the largest value are usual, while a single wrong weight shows at 1e-3 and more.
# quantised: a value on the edge between two 8 bit steps may be rounded either way, and one step is
# 1/255 of the range of that layer; a few such steps meet in one output.
TOLERANCES = {
    "float64": Tolerance("float64", 1e-7, 1e-6),
    "float32": Tolerance("float32", 1e-4, 1e-3),
    "float16": Tolerance("float16", 5e-3, 1e-2),
    "bfloat16": Tolerance("bfloat16", 2e-2, 4e-2),
    "quantised": Tolerance("quantised", 2e-2, 1e-2, quanta=1),
}


def tolerance_for(model: Any) -> Tolerance:
    """The default for an ONNX model (a path or a ModelProto): that of its coarsest arithmetic."""
    import onnx

    if isinstance(model, (str, Path)):
        model = onnx.load(str(model), load_external_data=False)
    types: set[int] = set()
    for graph in _graphs(model.graph):
        types.update(tensor.data_type for tensor in graph.initializer)
        types.update(
            value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)
        )
        for node in graph.node:
            if node.op_type in QUANTISING:
                return TOLERANCES["quantised"]
            types.update(item.i for item in node.attribute if node.op_type == "Cast" and item.name == "to")
    names = onnx.TensorProto
    for kind, number in (
        ("bfloat16", names.BFLOAT16),
        ("float16", names.FLOAT16),
        ("float32", names.FLOAT),
        ("float64", names.DOUBLE),
    ):
        if number in types:
            return TOLERANCES[kind]
    return TOLERANCES["float32"]


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)
