"""Tiny models and libraries made straight with TVM, so that deploy tests need no frontend."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tpo.deploy import manifest as manifests
from tpo.targets import required_features, resolve


def two_output_model(seed: int = 0) -> onnx.ModelProto:
    """Y = relu(x @ w + b), total = sum(y): two inputs, two outputs, one of them a scalar."""
    weight = np.random.default_rng(seed).standard_normal((64, 32)).astype("float32")
    return _model(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["y"]),
            helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
        ],
        [("x", TensorProto.FLOAT, [4, 64]), ("b", TensorProto.FLOAT, [32])],
        [("y", TensorProto.FLOAT, [4, 32]), ("total", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(weight, "w")],
    )


def gather_model() -> onnx.ModelProto:
    """Rows of a table by index, and whether they are positive: integer in, float and bool out."""
    table = np.random.default_rng(1).standard_normal((8, 5)).astype("float32")
    return _model(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"], axis=0),
            helper.make_node("Greater", ["rows", "zero"], ["positive"]),
        ],
        [("ids", TensorProto.INT64, [3])],
        [("rows", TensorProto.FLOAT, [3, 5]), ("positive", TensorProto.BOOL, [3, 5])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.float32(0), "zero")],
    )


def _model(nodes: list, inputs: list, outputs: list, constants: list) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(*item) for item in inputs],
        [helper.make_tensor_value_info(*item) for item in outputs],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def build(model: onnx.ModelProto, folder: Path, name: str = "tiny", threads: int = 1) -> Path:
    """Save `name.onnx` and compile it to `name.so` with its manifest; the path of the library."""
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    source, library = folder / f"{name}.onnx", folder / f"{name}.so"
    onnx.save(model, source)
    target = resolve("native", threads)
    tvm.compile(from_onnx(model, keep_params_in_input=False), target.tvm).export_library(str(library))
    manifests.write(
        manifests.Manifest(
            model=manifests.ModelSource(
                name=name, path=str(source), sha256=hashlib.sha256(source.read_bytes()).hexdigest()
            ),
            inputs=tuple(map(_tensor, model.graph.input)),
            outputs=tuple(map(_tensor, model.graph.output)),
            target=manifests.TargetInfo(
                name="native",
                tvm=str(target.tvm),
                arch=target.arch,
                features=tuple(required_features(target)),
            ),
            versions=manifests.Versions(tpo="0", tvm=tvm.__version__, llvm="22"),
            threads=threads,
            functions=(
                manifests.Function(
                    name="matmul",
                    operators=("MatMul",),
                    calls=1,
                    flops=16384,
                    bytes=9728,
                    scheduled_by="none",
                ),
            ),
            library=manifests.describe_library(library),
            created=manifests.now(),
        ),
        library,
    )
    return library


def _tensor(value: onnx.ValueInfoProto) -> manifests.Tensor:
    kind = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return manifests.Tensor(
        name=value.name, shape=tuple(dim.dim_value for dim in kind.shape.dim), dtype=dtype
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of `two_output_model`, tiny.so, with tiny.onnx beside it; do not change it."""
    return build(two_output_model(), tmp_path_factory.mktemp("two_outputs"))


@pytest.fixture(scope="session")
def gather_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of `gather_model`; do not change it."""
    return build(gather_model(), tmp_path_factory.mktemp("gather"), "gather")


@pytest.fixture
def own_library(library: Path, tmp_path: Path) -> Path:
    """A copy of `library` that a test may damage."""
    for name in ("tiny.so", "tiny.so.json", "tiny.onnx"):
        shutil.copy(library.with_name(name), tmp_path / name)
    return tmp_path / "tiny.so"
