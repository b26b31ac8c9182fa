"""Models to test and benchmark with: real architectures and graphs shaped like real exports.

Nothing is downloaded: structure comes from the `onnx` package or is written here, weights are random,
seeded, and scaled so that every layer matters to the result.

>>> "light_squeezenet" in names()
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tpo.testing.models import light, quantised, recurrent, structure, transformers, vision

RANGE_KEY = "tpo.range."  # metadata "tpo.range.<input>" = "low,high" bounds an integer input, high excluded
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
    """Random arrays for every input of `model`; dimensions without a size get `dynamic`.

    Floats are standard normal, booleans fair, integers 0 or 1 unless the model's metadata says more.
    """
    rng = np.random.default_rng(seed)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    weights = {tensor.name for tensor in model.graph.initializer}
    arrays = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else dynamic for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        low, high = map(int, metadata.get(RANGE_KEY + value.name, "0,2").split(","))
        arrays[value.name] = _random_array(rng, shape, dtype, low, high)
    return arrays


def _random_array(
    rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any], low: int, high: int
) -> npt.NDArray[Any]:
    if dtype.kind in "iu":
        return np.asarray(rng.integers(low, high, shape, dtype=dtype))
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)
