"""A library for several sizes of a dimension: every size is right, and what lies between if that is safe."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tpo
from support.commands import assert_refused
from support.commands import tpo as command
from support.onnx_runs import run_onnx
from tpo.deploy.manifest import read
from tpo.errors import InputError
from tpo.testing import models

SIZES = (12, 24)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """An encoder with an attention mask, compiled for two lengths."""
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    onnx.save(models.make("bert"), path)
    tpo.compile(tpo.load_onnx(path, buckets={"sequence": SIZES}), path.with_suffix(".so"), threads=1)
    return path


@pytest.fixture(scope="module")
def centred(tmp_path_factory):
    """X minus its mean along a dynamic axis: filling up changes it."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1]),
            helper.make_node("Sub", ["x", "mean"], ["y"]),
        ],
        "centred",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "length"])],
    )
    path = tmp_path_factory.mktemp("centred") / "centred.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    tpo.compile(tpo.load_onnx(path, buckets={"length": (4, 8)}), path.with_suffix(".so"), threads=1)
    return path


def sentence(length):
    rng = np.random.default_rng(length)
    mask = np.ones((1, length), np.int64)
    mask[0, -1] = 0
    return {"input_ids": rng.integers(0, 1000, (1, length)), "attention_mask": mask}


@pytest.mark.parametrize("length", [*SIZES, 2, 11, 13, 23])
def test_every_length_gives_what_onnxruntime_does(bert, length):
    model, feeds = onnx.load(bert), sentence(length)
    with tpo.load(bert.with_suffix(".so")) as artifact:
        got = artifact.run(feeds)
    for name, want in run_onnx(model, feeds).items():
        assert got[name].shape == want.shape
        np.testing.assert_allclose(got[name], want, rtol=1e-3, atol=1e-4)


def test_the_manifest_names_the_sizes_and_that_filling_up_is_safe(bert):
    manifest = read(bert.with_suffix(".so"))
    assert manifest.dimension == "sequence" and manifest.padded
    assert [bucket.size for bucket in manifest.buckets] == list(SIZES)
    assert manifest.inputs == manifest.buckets[-1].inputs
    assert manifest.numeric_check is not None


def test_too_long_and_contradictory_inputs_are_refused(bert):
    with tpo.load(bert.with_suffix(".so")) as artifact:
        with pytest.raises(InputError, match="its sequence is 25, and the library takes those up to 24"):
            artifact.run(sentence(25))
        mixed = sentence(12) | {"attention_mask": np.ones((1, 13), np.int64)}
        with pytest.raises(InputError, match="attention_mask"):
            artifact.run(mixed)
        with pytest.raises(InputError, match="it is missing"):
            artifact.run({"input_ids": np.zeros((1, 12), np.int64)})
        assert artifact.run(sentence(12))["pooler_output"].shape[0] == 1


def test_where_filling_up_changes_the_results_only_the_sizes_are_taken(centred):
    x = np.random.default_rng(0).standard_normal((2, 8)).astype("float32")
    assert not read(centred.with_suffix(".so")).padded
    with tpo.load(centred.with_suffix(".so")) as artifact:
        for length in (4, 8):
            part = np.ascontiguousarray(x[:, :length])
            want = part - part.mean(axis=1, keepdims=True)
            np.testing.assert_allclose(artifact(part), want, rtol=1e-5, atol=1e-6)
        with pytest.raises(InputError, match="its length is 5, and the library takes those of 4, 8"):
            artifact(np.ascontiguousarray(x[:, :5]))


def test_verify_profile_and_bench_take_such_a_library(bert):
    library = str(bert.with_suffix(".so"))
    assert command("verify", library, str(bert)).returncode == 0
    assert command("profile", library, "--runs", "1").returncode == 0
    assert command("bench", library, "--rounds", "1", "--seconds", "0.01").returncode == 0


def test_the_command_line(centred, tmp_path):
    library = tmp_path / "m.so"
    done = command("compile", str(centred), "--bucket", "length=8,4", "-o", str(library))
    assert done.returncode == 0 and "length must be one of 4, 8" in done.stderr
    assert "4, 8" in done.stdout
    assert_refused(
        command("compile", str(centred), "--bucket", "length=8", "-o", str(library)), "two or more"
    )
    tasks = command("tasks", str(centred), "--bucket", "length=4,8")
    assert tasks.returncode == 0 and "2x8" in tasks.stdout and "2x4" in tasks.stdout
