"""Whole models whose kernels for a GPU run on the CPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tpo
from tpo.deploy.emulated_gpu import EmulatedGpu
from tpo.deploy.verify import verify
from tpo.errors import GpuLibraryError, UsageError
from tpo.measure.cuda import ORDERS
from tpo.targets import resolve

TARGET = resolve("cuda")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A convolution, pooling, a product of matrices and a softmax."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.random(shape, dtype=np.float32) - 0.5) * 0.4, name)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "b"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 40])],
        [weight("w", 8, 3, 3, 3), weight("m", 288, 40), weight("b", 40)],
    )
    path = tmp_path_factory.mktemp("gpu") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("order", ORDERS)
def test_a_model_computes_what_onnx_runtime_does(network, order):
    model = tpo.load_onnx(network)
    with EmulatedGpu(model, TARGET, order) as gpu:
        assert verify(gpu, model.source, seeds=(0,)).passed


def test_a_cpu_is_no_gpu(network):
    with pytest.raises(UsageError, match="no GPU"):
        EmulatedGpu(tpo.load_onnx(network), resolve("native"))


def test_libraries_are_for_cpus(network, tmp_path):
    with pytest.raises(GpuLibraryError):
        tpo.compile(network, tmp_path / "m.so", target="cuda")
    assert not list(tmp_path.iterdir())
