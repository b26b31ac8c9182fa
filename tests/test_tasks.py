"""Tasks: what is counted is what the model computes."""

import math

import onnx
import pytest

from tpo.frontend.load import load_onnx
from tpo.tasks import extract_tasks
from tpo.testing import models


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "mobilenet_v2.onnx"
    onnx.save(models.make("mobilenet_v2"), path)
    return load_onnx(path)


def test_every_convolution_is_counted_once(mobilenet):
    tasks = extract_tasks(mobilenet)
    convs = sum(task.weight for task in tasks if "conv2d" in task.operators)
    assert convs == sum(node.op_type == "Conv" for node in mobilenet.source.graph.node)


def test_flops_are_those_of_the_multiplications(mobilenet):
    """Compared with a count over the ONNX graph: weights times output pixels."""
    inferred = onnx.shape_inference.infer_shapes(mobilenet.source)
    shapes = {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in [*inferred.graph.value_info, *inferred.graph.output]
    }
    weights = {tensor.name: list(tensor.dims) for tensor in inferred.graph.initializer}
    expected = sum(
        2 * math.prod(weights[node.input[1]]) * math.prod(shapes[node.output[0]][2:])
        for node in inferred.graph.node
        if node.op_type == "Conv"
    )
    counted = sum(task.flops * task.weight for task in extract_tasks(mobilenet) if "conv2d" in task.operators)
    assert expected <= counted <= 1.1 * expected


def test_tasks_are_sorted_by_their_share_and_describe_themselves(mobilenet):
    tasks = extract_tasks(mobilenet)
    shares = [task.flops * task.weight for task in tasks]
    assert shares == sorted(shares, reverse=True)
    assert len({task.name for task in tasks}) == len(tasks)
    dense = next(task for task in tasks if task.operators[0] == "matmul")
    shapes = dense.shape.replace(" -> ", ", ").split(", ")
    assert len(shapes) == 4
    assert dense.bytes == 4 * sum(math.prod(map(int, shape.split("x"))) for shape in shapes)
