"""Reading model files: what is accepted, and one clear refusal for each way a file can be bad."""

import hashlib
import os
import zipfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.onnx_runs import run_onnx
from tpo.errors import ExternalDataError, ModelFileError, NotOnnxError, OpsetError
from tpo.frontend.read import read
from tpo.testing import models


def relu_model(opset=17, **changes):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    for field, value in changes.items():
        setattr(model, field, value)
    return model


@pytest.fixture
def saved(tmp_path):
    """Write bytes or a model to a file; its path."""

    def save(content, name="m.onnx"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        return path

    return save


@pytest.fixture
def external(tmp_path):
    """A model in a folder of its own whose weights are in w.bin; its path."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "m.onnx"
    model = models.make("functions")
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def relocate(path, **entries):
    """Rewrite the external data entries of the first tensor; None removes one."""
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    old = {entry.key: entry.value for entry in tensor.external_data}
    del tensor.external_data[:]
    for key, value in {**old, **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return tensor.name


def test_a_model_comes_back_whole_with_its_hash(saved):
    path = saved(models.make("mobilenet_v2"))
    model, digest = read(path)
    assert model == models.make("mobilenet_v2")
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read(str(path))[1] == digest


@pytest.mark.parametrize("name", ["opset7", "newest", "loop_constant", "quantised_qlinear", "functions"])
def test_unusual_models_are_read(saved, name):
    assert read(saved(models.make(name)))[0] == models.make(name)


# Files that are not there or not ONNX


def test_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="there is no such file"):
        read(tmp_path / "none.onnx")


def test_folder(tmp_path):
    with pytest.raises(ModelFileError, match="it is a folder"):
        read(tmp_path)


def test_empty_file(saved):
    with pytest.raises(ModelFileError, match="the file is empty"):
        read(saved(b""))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(saved):
    path = saved(relu_model())
    path.chmod(0)
    with pytest.raises(ModelFileError, match="Permission denied"):
        read(path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_cut_file(saved, keep):
    content = models.make("mobilenet_v3").SerializeToString()
    with pytest.raises(NotOnnxError, match=r"is not a valid ONNX model"):
        read(saved(content[: int(len(content) * keep)]))


@pytest.mark.parametrize(
    "content",
    [
        b"# a text file\nwith lines\n",
        b'{"json": true}',
        bytes(np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)),
        b"\0" * 100,
        numpy_helper.from_array(np.ones((2, 3), np.float32), "t").SerializeToString(),
        helper.make_node("Relu", ["x"], ["y"]).SerializeToString(),
        relu_model().graph.SerializeToString(),
        b"\x80\x04\x95 a pickle",
    ],
    ids=["text", "json", "random", "zeros", "tensor", "node", "graph", "pickle"],
)
def test_files_of_other_formats(saved, content):
    with pytest.raises(NotOnnxError, match=r"is not a valid ONNX model"):
        read(saved(content))


def test_zip_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.onnx", "w") as archive:
        archive.writestr("data.pkl", "x")
    with pytest.raises(NotOnnxError, match="it is a zip archive"):
        read(tmp_path / "m.onnx")


# Models that are not valid


def test_model_without_outputs(saved):
    model = relu_model()
    del model.graph.output[:]
    with pytest.raises(NotOnnxError, match="no outputs"):
        read(saved(model))


def test_model_without_opset(saved):
    model = relu_model()
    del model.opset_import[:]
    with pytest.raises(NotOnnxError, match="declares no opset"):
        read(saved(model))


def test_model_the_checker_refuses(saved):
    model = relu_model()
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(NotOnnxError, match="nowhere"):
        read(saved(model))


def test_name_that_is_not_text(saved):
    content = relu_model().SerializeToString().replace(b"Relu", b"Re\xb9u")
    with pytest.raises(NotOnnxError, match=r"the name b'Re\\xb9u' in it is not text"):
        read(saved(content))


def test_unknown_data_type(saved):
    model = relu_model()
    model.graph.input[0].type.tensor_type.elem_type = 104
    with pytest.raises(NotOnnxError, match="unknown data type, 104"):
        read(saved(model))


def test_newer_opset_and_ir_version_than_installed(saved):
    newest = onnx.defs.onnx_opset_version()
    with pytest.raises(OpsetError, match=f"uses opset {newest + 1}, and tpo reads opsets 7 to {newest}"):
        read(saved(relu_model(opset=newest + 1)))
    with pytest.raises(OpsetError, match="uses ONNX IR version 999"):
        read(saved(relu_model(ir_version=999)))


def test_old_opset_is_converted(saved):
    model, _ = read(saved(relu_model(opset=6)))
    assert model.opset_import[0].version == 7
    feeds = {"x": np.array([-1, 2], np.float32)}
    np.testing.assert_array_equal(run_onnx(model, feeds)["y"], [0, 2])


def test_old_opset_that_cannot_be_converted(saved):
    model = relu_model(opset=1)
    model.graph.node[0].op_type = "Upsample"
    model.graph.node[0].attribute.extend(
        [helper.make_attribute("width_scale", 2.0), helper.make_attribute("height_scale", 2.0)]
    )
    with pytest.raises(OpsetError, match="uses opset 1, which cannot be converted"):
        read(saved(model))


# External data


def test_external_data_is_loaded_and_hashed(external):
    model, digest = read(external)
    expected = models.make("functions")
    feeds = models.random_inputs(expected, 0)
    np.testing.assert_array_equal(run_onnx(model, feeds)["y"], run_onnx(expected, feeds)["y"])
    weights = external.with_name("w.bin")
    content = bytearray(weights.read_bytes())
    content[0] ^= 1
    weights.write_bytes(content)
    assert read(external)[1] != digest


def test_external_data_is_found_from_any_working_directory(external, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert read(external.relative_to(tmp_path))[0].graph.initializer[0].raw_data
    monkeypatch.chdir(external.parent)
    assert read(external.name)[0].graph.initializer[0].raw_data


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("/etc/passwd", "is an absolute path"),
        ("C:\\w.bin", "is an absolute path"),
        ("../secret.bin", "points outside the folder"),
        ("sub/../../secret.bin", "points outside the folder"),
        ("..\\secret.bin", "points outside the folder"),
        ("other.bin", "file 'other.bin' is missing"),
        (".", "is not a regular file"),
        ("", "it names no file"),
    ],
)
def test_external_data_outside_or_missing(external, location, why):
    (external.parent.parent / "secret.bin").write_bytes(b"\0" * 10000)
    name = relocate(external, location=location)
    with pytest.raises(ExternalDataError) as caught:
        read(external)
    assert why in str(caught.value) and repr(name) in str(caught.value)


def test_external_data_through_a_link_out_of_the_folder(external):
    secret = external.parent.parent / "secret.bin"
    external.with_name("w.bin").rename(secret)
    external.with_name("w.bin").symlink_to(secret)
    with pytest.raises(ExternalDataError, match="is a link that leads outside the folder"):
        read(external)


def test_external_data_cut(external):
    weights = external.with_name("w.bin")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ExternalDataError, match="has 100 bytes and the tensor ends at byte"):
        read(external)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"offset": "-8"}, "is negative"),
        ({"length": "-8"}, "is negative"),
        ({"offset": "here"}, "is not a number"),
        ({"length": "4"}, "it is declared as 4 bytes and its shape needs 512"),
        ({"offset": "99999999999"}, "ends at byte"),
        ({"offset": "99999999999", "length": None}, "ends at byte"),
    ],
)
def test_external_data_with_a_wrong_extent(external, entries, why):
    relocate(external, **entries)
    with pytest.raises(ExternalDataError) as caught:
        read(external)
    assert why in str(caught.value)


def test_external_data_in_a_subgraph_is_checked_too(tmp_path):
    model = models.make("if_constant")
    tensor = next(
        attribute.g.initializer[0]
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.HasField("g") and attribute.g.initializer
    )
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ExternalDataError, match="points outside the folder"):
        read(tmp_path / "m.onnx")
