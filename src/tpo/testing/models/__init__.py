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
from tpo.testing.models import light, quantised, recurrent, sized, structure, transformers, vision

_MAKERS = {
    **light.MAKERS,
    **vision.MAKERS,
    **transformers.MAKERS,
    **recurrent.MAKERS,
    **quantised.MAKERS,
    **structure.MAKERS,
}
# What whole models are compared on: real architectures in real sizes, all fp32.
_BENCHMARK = (
    *("light_resnet50", "light_vgg19", "light_squeezenet", "light_inception_v1", "light_inception_v2"),
    *("light_densenet121", "light_shufflenet", *sized.MAKERS),
)


def names() -> list[str]:
    """Names of all models to test with; they are small, but for those that come with `onnx`."""
    return sorted(_MAKERS)


def benchmark_names() -> tuple[str, ...]:
    """Names of all models to benchmark with.

    >>> benchmark_names()[-1]
    'yolo_320'
    """
    return _BENCHMARK


def make(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model of that name with weights drawn from `seed`."""
    makers = {**_MAKERS, **sized.MAKERS}
    if name not in makers:
        raise ValueError(f"no model maker {name!r}; there are {', '.join(sorted(makers))}")
    return makers[name](seed)


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs that a benchmark model leaves open.

    >>> shapes("gpt2_small")
    {'input_ids': (1, 64)}
    """
    return sized.SHAPES.get(name, {})


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
