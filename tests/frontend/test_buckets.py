"""One model for several sizes: an entry each, and every distinct function once."""

import onnx
import pytest
from tvm import relax

import tpo
from tpo.errors import BucketError, UnknownDimensionError
from tpo.frontend.buckets import parse_buckets
from tpo.tasks import extract_tasks
from tpo.testing import models


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("buckets") / "gpt2.onnx"
    onnx.save(models.make("gpt2"), path)
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("32,64", "no NAME="),
        ("=32,64", "no NAME="),
        ("sequence=", "'' is not a size"),
        ("sequence=32,x", "'x' is not a size"),
        ("sequence=32,-1", "'-1' is not a size"),
        ("sequence=32", "two or more"),
        ("sequence=32,32", "two or more different"),
        ("sequence=0,32", "positive"),
    ],
)
def test_what_cannot_be_understood(text, why):
    with pytest.raises(BucketError, match=why) as caught:
        parse_buckets(text)
    assert caught.value.exit_code == 2


def test_every_size_has_an_entry_and_shares_functions(gpt2):
    model = tpo.load_onnx(gpt2, buckets={"sequence": (16, 8)})
    assert [(entry.function, entry.size) for entry in model.entries] == [("main_8", 8), ("main_16", 16)]
    assert [entry.inputs[0].shape for entry in model.entries] == [(1, 8), (1, 16)]
    assert model.inputs[0].shape == (1, 16) and model.outputs[0].shape[1] == 16
    functions = {
        name.name_hint for name, func in model.module.functions.items() if isinstance(func, relax.Function)
    }
    assert functions == {"main_8", "main_16"}
    single = {size: tpo.load_onnx(gpt2, shapes={"input_ids": (1, size)}) for size in (8, 16)}
    weights = {size: sum(task.weight for task in extract_tasks(found)) for size, found in single.items()}
    tasks = extract_tasks(model)
    assert sum(task.weight for task in tasks) == sum(weights.values())
    assert len(tasks) <= sum(len(extract_tasks(found)) for found in single.values())
    assert all(task.operators for task in tasks)


def test_a_dimension_nobody_has(gpt2):
    with pytest.raises(UnknownDimensionError, match=r"no dynamic dimension 'length'.*input_ids"):
        tpo.load_onnx(gpt2, buckets={"length": (8, 16)})
    with pytest.raises(BucketError, match="only one dimension"):
        tpo.load_onnx(gpt2, buckets={"sequence": (8, 16), "batch": (1, 2)})
