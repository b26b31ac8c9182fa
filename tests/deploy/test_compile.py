"""From ONNX file to checked library: real architectures, and everything that can go wrong on the way."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tpo
from support.onnx_runs import run_onnx
from tpo.deploy import manifest as manifests
from tpo.deploy.compile import check_output
from tpo.errors import ArtifactError, MismatchError, OutputError
from tpo.schedule import UNSCHEDULED
from tpo.testing import models

LIGHT = [name for name in models.names() if name.startswith("light_")]
# The largest first: the suite ends sooner when they do not come last.
LIGHT.sort(key=["light_vgg19", "light_densenet121", "light_bvlc_alexnet"].__contains__, reverse=True)


@pytest.mark.parametrize("name", LIGHT)
def test_a_real_architecture_imports_compiles_and_verifies(name, tmp_path):
    path = tmp_path / f"{name}.onnx"
    onnx.save(models.make(name), path)
    manifest = tpo.compile(path, tmp_path / "m.so", threads=1)
    assert manifest.numeric_check is not None
    assert manifest.numeric_check.max_rel_error < 1e-4
    assert not [function.name for function in manifest.functions if function.scheduled_by == UNSCHEDULED]
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.onnx", "m.so", "m.so.json"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small convolutional network with a transposed input and a softmax head."""
    path = tmp_path_factory.mktemp("small") / "opset7.onnx"
    onnx.save(models.make("opset7"), path)
    return path


def test_the_manifest_tells_where_the_library_came_from(small, tmp_path):
    manifest = tpo.compile(small, tmp_path / "m.so", threads=2)
    assert manifests.read(tmp_path / "m.so") == manifest
    assert manifest.threads == 2
    assert manifest.model.path == str(small)
    assert manifest.target.name == "native"
    assert {"conv2d", "softmax"} <= {op for function in manifest.functions for op in function.operators}
    assert any(
        function.flops > 0 and function.scheduled_by == "contraction" for function in manifest.functions
    )


def test_the_library_computes_what_onnxruntime_does_on_new_inputs(small, tmp_path):
    tpo.compile(small, tmp_path / "m.so", threads=1)
    model = onnx.load(small)
    feeds = models.random_inputs(model, seed=99)
    (want,) = run_onnx(model, feeds).values()
    with tpo.load(tmp_path / "m.so") as artifact:
        np.testing.assert_allclose(artifact(**feeds), want, rtol=1e-4, atol=1e-5)


def test_a_model_compiled_again_to_the_same_path_runs_the_new_code(tmp_path):
    """Also while the old library is still loaded: the dynamic linker would hand it out again."""
    x = np.linspace(-1, 1, 32, dtype="float32")
    loaded = []
    for operator, reference in (("Relu", lambda v: np.maximum(v, 0)), ("Neg", np.negative), ("Abs", np.abs)):
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32]) for name in "xy"]
        graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", info[:1], info[1:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
        tpo.compile(tmp_path / "m.onnx", tmp_path / "m.so", threads=1)
        loaded.append((tpo.load(tmp_path / "m.so"), reference))
    for artifact, reference in loaded:
        np.testing.assert_array_equal(artifact(x), reference(x))
        artifact.close()


def test_a_library_overwritten_in_place_while_loaded_is_refused(small, tmp_path):
    tpo.compile(small, tmp_path / "m.so", threads=1)
    other = replace(tpo.load_onnx(small), module=tpo.load_onnx(small).module)
    with tpo.load(tmp_path / "m.so"):
        tpo.compile(other, tmp_path / "n.so", threads=2)
        longer = 1 + (tmp_path / "m.so").stat().st_size  # nothing of the old file may be left
        content = (tmp_path / "n.so").read_bytes().ljust(longer, b" ") + b"longer"
        manifest = manifests.read(tmp_path / "n.so")
        (tmp_path / "n.so").write_bytes(content)
        library = manifests.describe_library(tmp_path / "n.so")
        with (tmp_path / "m.so").open("r+b") as file:
            file.write(content)
        manifests.write(manifest.model_copy(update={"library": library}), tmp_path / "m.so")
        with pytest.raises(ArtifactError, match="overwritten while"):
            tpo.load(tmp_path / "m.so")


def test_external_weights_are_part_of_the_models_identity(small, tmp_path):
    """Verify and bench find the model again; with other weights it is another model."""
    onnx.save(
        onnx.load(small),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=256,
    )
    tpo.compile(tmp_path / "m.onnx", tmp_path / "m.so", threads=1)
    with tpo.load(tmp_path / "m.so") as artifact:
        assert tpo.verify(artifact, tmp_path / "m.onnx").same_model
        tpo.bench(tmp_path / "m.so", rounds=1, seconds=0.01, min_runs=1)
        weights = bytearray((tmp_path / "w.bin").read_bytes())
        weights[2] ^= 1
        (tmp_path / "w.bin").write_bytes(weights)
        assert not tpo.verify(artifact, tmp_path / "m.onnx").same_model


def test_a_wrong_library_is_never_put_in_place(small, tmp_path):
    """Code for weights with two channels swapped is caught by the comparison, and nothing is written."""
    model = onnx.load(small)
    name = next(node.input[1] for node in model.graph.node if node.op_type == "Conv")
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    swapped = numpy_helper.to_array(weight).copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    weight.CopyFrom(numpy_helper.from_array(swapped, name))
    onnx.save(model, tmp_path / "swapped.onnx")
    wrong = replace(tpo.load_onnx(small), module=tpo.load_onnx(tmp_path / "swapped.onnx").module)
    with pytest.raises(MismatchError):
        tpo.compile(wrong, tmp_path / "m.so", threads=1)
    assert [file.name for file in tmp_path.iterdir()] == ["swapped.onnx"]


def test_an_older_library_is_replaced_only_by_a_good_one(small, tmp_path, monkeypatch):
    output = tmp_path / "m.so"
    first = tpo.compile(small, output, threads=1)

    def fail(*args):
        raise MismatchError(path="m.so", reference="test", why="forced")

    monkeypatch.setattr("tpo.deploy.compile._checked", fail)
    with pytest.raises(MismatchError):
        tpo.compile(small, output, threads=1)
    assert manifests.read(output) == first
    assert manifests.describe_library(output) == first.library


@pytest.mark.parametrize(
    "name, why",
    [
        ("m.txt", "ends in .so"),
        ("missing/m.so", "no folder"),
        ("folder.so", "is a folder"),
        ("pipe.so", "not a regular file"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_first(name, why, tmp_path):
    (tmp_path / "folder.so").mkdir()
    os.mkfifo(tmp_path / "pipe.so")
    with pytest.raises(OutputError, match=why):
        check_output(tmp_path / name)


def test_a_file_system_that_takes_no_files_is_refused_first(tmp_path):
    with pytest.raises(OutputError):
        check_output(Path("/proc/m.so"))
