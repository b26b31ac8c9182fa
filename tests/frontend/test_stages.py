"""Every stage of the frontend computes what ONNX Runtime computes of the file, and tidies as it should."""

import numpy as np
import onnx
import pytest
from tvm import relax, tirx

from support.converter_runs import operators_of, run_module
from support.onnx_runs import run_onnx
from tpo.frontend.lower import OPERATORS, find_calls
from tpo.frontend.pipeline import stages
from tpo.testing import models

SHAPES = {"bert": {"input_ids": (1, 12)}, "gpt2": {"input_ids": (1, 12)}, "llama": {"input_ids": (1, 12)}}
STAGES = ["shapes", "functions", "simplify", "integers", "import"]
STAGES += ["canonicalise", "layout", "attention", "legalise", "fuse", "mark"]


def every_stage(name: str) -> dict[str, object]:
    return dict(stages(models.make(name), f"{name}.onnx", SHAPES.get(name, {})))


def run(stage: object, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    if isinstance(stage, onnx.ModelProto):
        return list(run_onnx(stage, feeds).values())
    return run_module(stage, feeds)


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v3", "bert", "llama", "yolo", "unet", "gru", "quantised_qdq", "loop_constant", "opset7"],
)
def test_every_stage_computes_the_same(name):
    done = every_stage(name)
    assert list(done) == STAGES
    fixed = done["shapes"]
    feeds = models.random_inputs(fixed, seed=5)
    want = list(run_onnx(fixed, feeds).values())
    for stage, result in done.items():
        if stage == "integers" and name == "quantised_qdq":
            # On CPUs without VNNI ONNX Runtime adds products of uint8 and int8 in 16 bits, and saturates. The
            # stages after this one compute the same integers by other means.
            continue
        got = run(result, feeds)
        assert len(got) == len(want), stage
        for have, expected in zip(got, want, strict=True):
            assert have.dtype == expected.dtype, stage
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(have, expected, rtol=1e-3, atol=1e-4 * scale, err_msg=stage)


# What a person would write: one transpose of the NCHW input, and those that shuffle channels.
@pytest.mark.parametrize(
    "name, transposes", [("mobilenet_v2", 1), ("mobilenet_v3", 1), ("yolo", 1), ("light_shufflenet", 17)]
)
def test_no_transpose_is_left_that_a_person_would_not_write(name, transposes):
    operators = operators_of(every_stage(name)["layout"])
    assert operators.count("permute_dims") == transposes
    assert "nn.batch_norm" not in operators


@pytest.mark.parametrize(
    "name, operator, count",
    [
        ("bert", "nn.layer_norm", 5),
        ("bert", "nn.gelu", 2),
        ("gpt2", "nn.gelu_tanh", 2),
        ("llama", "nn.rms_norm", 5),
        ("llama", "nn.silu", 2),
        ("yolo", "nn.silu", 24),
    ],
)
def test_written_out_operators_are_found_in_real_exports(name, operator, count):
    assert operators_of(every_stage(name)["canonicalise"]).count(operator) == count


def test_a_tiny_epsilon_survives_simplification():
    """The rewriter of onnxscript takes 1e-12 for zero, which turns a constant row into NaN."""
    module = every_stage("bert")["canonicalise"]
    norms = [
        binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and binding.value.op.name == "relax.nn.layer_norm"
    ]
    assert norms
    assert all(float(norm.attrs.epsilon) > 0 for norm in norms)


def test_functions_are_named_after_their_operators_and_know_their_constants():
    module = every_stage("mobilenet_v2")["mark"]
    names = {call.args[0].name_hint for call in find_calls(module)}
    assert "conv2d_add_clip" in names
    operators = module.get_attr(OPERATORS)
    assert list(operators["conv2d_add_clip"]) == ["conv2d", "add", "clip"]
    assert {str(var.name_hint) for var in module.get_global_vars()} - {"main"} == names
    func = module["conv2d_add_clip"]
    assert isinstance(func, tirx.PrimFunc)
    assert [int(k) for k in func.attrs["layout_free_buffers"]] == [1, 2]
