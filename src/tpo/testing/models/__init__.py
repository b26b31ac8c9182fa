"""Models to test and benchmark with: real architectures and graphs shaped like real exports.

Nothing is downloaded: structure comes from the `onnx` package or is written here, weights are random,
seeded, and scaled so that every layer matters to the result.

>>> "light_squeezenet" in names()
True
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper

from tpo.deploy import reference
from tpo.frontend.model import TensorSpec
from tpo.testing.models import light, quantised, recurrent, structure, transformers, vision

_MAKERS = {
    **light.MAKERS,
    **vision.MAKERS,
    **transformers.MAKERS,
    **recurrent.MAKERS,
    **quantised.MAKERS,
    **structure.MAKERS,
}


def names() -> list[str]:
    """Names of all models that `make` knows."""
    return sorted(_MAKERS)


def make(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model of that name with weights drawn from `seed`."""
    if name not in _MAKERS:
        raise ValueError(f"no model maker {name!r}; there are {', '.join(names())}")
    return _MAKERS[name](seed)


def random_inputs(model: onnx.ModelProto, seed: int = 0, dynamic: int = 1) -> dict[str, npt.NDArray[Any]]:
    """Random arrays for every input of `model`; dimensions without a size get `dynamic`."""
    weights = {tensor.name for tensor in model.graph.initializer}
    specs = []
    for value in model.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            shape = (dim.dim_value if dim.HasField("dim_value") else dynamic for dim in tensor.shape.dim)
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            specs.append(TensorSpec(value.name, tuple(shape), str(dtype)))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return reference.random_inputs(specs, seed, reference.parse_ranges(metadata))
