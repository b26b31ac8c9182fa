"""Every model maker yields a valid model that computes something that depends on its input."""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.onnx_runs import run_onnx
from tpo.testing import models

make = functools.cache(models.make)
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_models.py"
HEAVY = {"light_vgg19", "light_bvlc_alexnet", "light_zfnet512"}  # hundreds of megabytes each
LIGHT = [name for name in models.names() if name.startswith("light_") and name not in HEAVY]
SMALL = [name for name in models.names() if not name.startswith("light_") and name != "large"]


@pytest.mark.parametrize("name", SMALL + LIGHT)
def test_model_is_valid_and_computes_with_its_inputs(name):
    model = make(name)
    onnx.checker.check_model(model)
    first, second = (run_onnx(model, models.random_inputs(model, seed, dynamic=4)) for seed in (1, 2))
    for output, one in first.items():
        assert np.isfinite(one).all()
        assert not np.array_equal(one, second[output])
        assert one.size == 1 or np.ptp(one.astype(np.float64)) > 0


@pytest.mark.parametrize("name", LIGHT)
def test_light_classifiers_are_neither_flat_nor_saturated(name):
    model = make(name)
    (scores,) = run_onnx(model, models.random_inputs(model, 3)).values()
    scores = scores.reshape(-1)
    if model.graph.node[-1].op_type == "Softmax":
        assert scores.max() < 0.5
        scores = np.log(scores)
    assert 1.0 < scores.std() < 4.0


@pytest.mark.parametrize("name", LIGHT)
def test_light_weights_are_all_random(name):
    model = make(name)
    floats = [
        t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and list(t.dims) != [1, 1]
    ]
    assert floats
    assert all(np.ptp(onnx.numpy_helper.to_array(t)) > 0 for t in floats)
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}


def test_all_nine_light_models_are_there():
    assert len([name for name in models.names() if name.startswith("light_")]) == 9


def test_large_model_exceeds_100_megabytes():
    assert models.make("large").ByteSize() > 100e6


@pytest.mark.parametrize("name", ["light_squeezenet", "bert", "quantised_qdq"])
def test_the_seed_decides_the_weights(name):
    assert models.make(name, 5) == models.make(name, 5)
    assert models.make(name, 5) != models.make(name, 6)


def test_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no model maker 'resnet1000'; there are .*light_resnet50"):
        models.make("resnet1000")


def test_integer_inputs_stay_in_the_range_the_model_declares():
    tokens = models.random_inputs(models.make("bert"), 0, dynamic=50)["input_ids"]
    assert tokens.dtype == np.int64 and tokens.min() >= 0 and 100 < tokens.max() < 1000
    image = models.random_inputs(models.make("scalars"), 0)["image"]
    assert image.dtype == np.uint8 and image.max() > 200


@pytest.mark.parametrize("external", [False, True])
def test_script_writes_a_model(tmp_path, external):
    target = tmp_path / "mobile.onnx"
    flags = ["--external-data"] if external else []
    subprocess.run(
        [sys.executable, SCRIPT, "mobilenet_v2", "-o", target, "--seed", "4", *flags],
        check=True,
        timeout=120,
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mobile.onnx"] + ["mobile.onnx.data"] * external
    written, expected = onnx.load(target), models.make("mobilenet_v2", 4)
    feeds = models.random_inputs(expected, 1)
    for one, other in zip(run_onnx(written, feeds).values(), run_onnx(expected, feeds).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_script_lists_and_refuses(tmp_path):
    listed = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True, timeout=120)
    assert set(listed.stdout.split()) == {*models.names(), *models.benchmark_names()}
    refused = subprocess.run(
        [sys.executable, SCRIPT, "nonsense", "-o", tmp_path / "x.onnx"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert refused.returncode == 2 and "no model 'nonsense'" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_the_benchmark_has_real_sizes_and_shapes_for_all_that_is_open():
    """The written ones are the small ones of the same names, in other sizes: only one is made here."""
    assert len(models.benchmark_names()) == 12
    model = models.make("yolo_320")
    onnx.checker.check_model(model)
    assert sum(np.prod(t.dims) for t in model.graph.initializer) > 1e6
    for name in models.benchmark_names():
        shapes = models.shapes(name)
        assert name.startswith("light_") or (all(min(shape) >= 1 for shape in shapes.values()) and shapes)
