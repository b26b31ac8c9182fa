"""tpo's own translations of ONNX operators to Relax; they take precedence over TVM's.

A converter is a function of one `Node` that returns the Relax expression of its output (or a tuple
of them). `@converter("Clip", since=11)` registers it for the operator's versions from 11 on, until
the next registered version, as ONNX itself counts. Each module of this package holds one family of
operators and is imported here, which registers it.
"""

from tpo.frontend.converters.registry import Converter, Node, Unsupported, converter, find, registered

# isort: split
from tpo.frontend.converters import (
    activations,
    convolution,
    elementwise,
    linear,
    normalisation,
    padding,
    pooling,
    quantised,
    quantised_microsoft,
    rearrange,
    recurrent,
    reductions,
    resize,
    scalar_math,
    shapes,
    signal,
)

__all__ = [
    "Converter",
    "Node",
    "Unsupported",
    "activations",
    "converter",
    "convolution",
    "elementwise",
    "find",
    "linear",
    "normalisation",
    "padding",
    "pooling",
    "quantised",
    "quantised_microsoft",
    "rearrange",
    "recurrent",
    "reductions",
    "registered",
    "resize",
    "scalar_math",
    "shapes",
    "signal",
]
