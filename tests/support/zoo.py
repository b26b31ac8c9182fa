"""The small models of `tpo.testing.models` with fixed shapes, and comparing two stages of one model."""

import functools

import numpy as np
import onnx

from support.onnx_runs import run_onnx
from tpo.frontend.shapes import fix_shapes
from tpo.testing import models

SHAPES = {
    "bert": {"input_ids": (2, 9)},
    "gpt2": {"input_ids": (2, 9)},
    "llama": {"input_ids": (2, 9)},
    "loop_constant": {"x": (3, 5, 12)},
    "yolo": {"images": (2, 3, 64, 64)},
}
SMALL = [name for name in models.names() if not name.startswith("light_") and name != "large"]


@functools.cache
def fixed_model(name: str) -> onnx.ModelProto:
    """A model of the zoo with all its input shapes fixed; treat it as read-only."""
    return fix_shapes(models.make(name), name, SHAPES.get(name, {}))


def assert_same_results(
    model: onnx.ModelProto, reference: onnx.ModelProto, seed: int = 1, rtol: float = 1e-4
) -> None:
    """Both models give the same outputs, by name and order, on the same random inputs."""
    feeds = models.random_inputs(reference, seed)
    expected, actual = run_onnx(reference, feeds), run_onnx(model, feeds)
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype
        scale = float(np.abs(value.astype(np.float64)).max(initial=0))
        np.testing.assert_allclose(actual[name], value, rtol=rtol, atol=1e-6 * (1 + scale), err_msg=name)
