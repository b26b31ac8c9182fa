import json
import os
import platform
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.artifacts import two_output_model
from support.commands import assert_refused, tpo


def dynamic_conv_model() -> onnx.ModelProto:
    """A conv and relu on x[batch, 3, side, side]: needs --shape."""
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype("float32")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "side", "side"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, "side", "side"])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    onnx.save(dynamic_conv_model(), folder / "conv.onnx")
    onnx.save(two_output_model(), folder / "tiny.onnx")
    return folder


def test_the_whole_way(folder, tmp_path):
    """Compile, run, verify and profile, each as its own command."""
    done = tpo(
        "compile",
        "conv.onnx",
        "-o",
        tmp_path / "m.so",
        "--shape",
        "x=1,3,16,16",
        "--threads",
        "1",
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "m.so") in done.stdout
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.so", "m.so.json"]
    manifest = json.loads((tmp_path / "m.so.json").read_text())
    assert manifest["threads"] == 1
    assert manifest["numeric_check"]["max_rel_error"] < 1e-5
    assert manifest["inputs"] == [{"name": "x", "shape": [1, 3, 16, 16], "dtype": "float32"}]
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    done = tpo("run", "m.so", "--input", "x=x.npy", "-o", "y.npz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "conv.onnx", providers=["CPUExecutionProvider"])
    with np.load(tmp_path / "y.npz") as stored:
        np.testing.assert_allclose(stored["y"], session.run(None, {"x": x})[0], rtol=1e-3, atol=1e-4)
    assert tpo("verify", "m.so", folder / "conv.onnx", folder=tmp_path).returncode == 0
    profile = json.loads(tpo("profile", "m.so", "--json", folder=tmp_path).stdout)
    functions = {function["name"] for function in manifest["functions"]}
    assert functions == {row["name"] for row in profile["rows"]} - {"(virtual machine)"}


def test_default_output_and_json(folder, tmp_path):
    done = tpo("compile", folder / "tiny.onnx", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["model"]["name"] == "tiny"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["tiny.so", "tiny.so.json"]


def test_tasks(tpo_inside, folder):
    done = tpo("tasks", "conv.onnx", "--shape", "x=1,3,8,8", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:6] == ["name", "operators", "shape", "weight", "FLOPs", "bytes"]
    tasks = json.loads(
        tpo_inside("tasks", "conv.onnx", "--shape", "x=1,3,8,8", "--json", folder=folder).stdout
    )
    conv = next(task for task in tasks if any("conv" in operator for operator in task["operators"]))
    assert set(conv) == {"name", "operators", "shape", "weight", "flops", "bytes"}
    assert conv["weight"] == 1
    assert conv["flops"] >= 2 * 8 * 8 * 8 * 27


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["none.onnx"], ["cannot read model none.onnx"]),
        (["empty.onnx"], ["empty.onnx"]),
        (["garbage.onnx"], ["garbage.onnx is not a valid ONNX model"]),
        (["conv.onnx"], ["dynamic input dimensions", "--shape x="]),
        (["conv.onnx", "--shape", "x=1,3,0,8"], ["0"]),
        (["conv.onnx", "--shape", "x=1,3,-8,8"], ["-8"]),
        (["conv.onnx", "--shape", "x=1,4,8,8"], ["'x'"]),
        (["conv.onnx", "--shape", "x=1,3,8,9"], ["side"]),
        (["conv.onnx", "--shape", "z=1,3,8,8"], ["'z'"]),
        (["conv.onnx", "--shape", "x"], ["--shape NAME=1,3,224,224"]),
        (["tiny.onnx", "--target", "nosuch"], ["'nosuch'", "x86-64-v3"]),
        (["tiny.onnx", "--threads", "0"], ["0 threads"]),
        (["tiny.onnx", "-o", "none/m.so"], ["cannot write none/m.so"]),
        (["tiny.onnx", "-o", "."], ["cannot write ."]),
    ],
)
def test_compile_refuses(tpo_inside, folder, tmp_path, words, parts):
    for name in ("conv.onnx", "tiny.onnx"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "garbage.onnx").write_bytes(b"not a protobuf at all" * 10)
    before = sorted(tmp_path.iterdir())
    assert_refused(tpo_inside("compile", *words, folder=tmp_path), *parts)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 machine")
def test_preset_target(tpo_inside, folder, tmp_path):
    done = tpo_inside(
        "compile", folder / "tiny.onnx", "-o", tmp_path / "m.so", "--target", "x86-64-v2", "--json"
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["target"]["name"] == "x86-64-v2"
    assert "sse4.2" in manifest["target"]["features"]
    assert "avx" not in manifest["target"]["features"]
    assert manifest["numeric_check"] is not None


@pytest.mark.skipif(platform.machine() == "aarch64", reason="needs no cross compiler")
def test_missing_cross_compiler(tpo_inside, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = tpo_inside("compile", folder / "tiny.onnx", "-o", tmp_path / "m.so", "--target", "aarch64")
    assert_refused(
        done, "aarch64-linux-gnu-g++ is needed to link the library", "apt-get install g++-aarch64-linux-gnu"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="needs the cross compiler")
@pytest.mark.skipif(platform.machine() == "aarch64", reason="would be native")
def test_artifact_for_another_architecture(tpo_inside, folder, tmp_path):
    done = tpo_inside(
        "compile", folder / "tiny.onnx", "-o", tmp_path / "m.so", "--target", "aarch64", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["numeric_check"] is None
    assert_refused(tpo_inside("run", tmp_path / "m.so"), "this CPU lacks the aarch64 instruction set")


def test_refusal_as_a_process(folder, tmp_path):
    done = tpo("compile", folder / "conv.onnx", "-o", tmp_path / "m.so")
    assert_refused(done, "dynamic input dimensions", "--shape x=")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(tpo_inside, folder, tmp_path):
    tmp_path.chmod(0o555)
    assert_refused(tpo_inside("compile", folder / "tiny.onnx", "-o", tmp_path / "m.so"), "permission denied")
    tmp_path.chmod(0o755)
