"""A fixed sample of the node tests that `onnx` ships; scripts/onnx_node_tests.py counts all of them."""

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SAMPLE = """
abs add_bcast and_bcast3v1d argmax_default_axis_example averagepool_2d_ceil averagepool_2d_same_lower
basic_conv_with_padding batchnorm_epsilon cast_FLOAT16_to_FLOAT ceil clip_example concat_2d_axis_1
conv_with_strides_padding convinteger_with_padding convtranspose_output_shape cumsum_1d depthtospace_example
dequantizelinear_axis dft_opset19 dynamicquantizelinear einsum_batch_matmul elu erf expand_dim_changed
flatten_axis2 gather_1 gathernd_example_int32 gelu_tanh_1 gemm_all_attributes globalaveragepool
group_normalization_example gru_batchwise hardsigmoid instancenorm_example isinf layer_normalization_4d_axis2
leakyrelu logsoftmax_axis_1 lrn lstm_batchwise lstm_with_peepholes matmul_3d matmulinteger maxpool_2d_ceil
maxpool_with_argmax_2d_precomputed_pads mean_example nllloss_NCd1 onehot_with_axis pow prelu_broadcast
qlinearconv qlinearmatmul_2D_int8_float32 quantizelinear_axis range_float_type_positive_delta
reduce_log_sum_exp_keepdims_example resize_upsample_scales_linear resize_downsample_sizes_cubic
reversesequence_time rms_normalization_4d_axis1 rnn_seq_length scatter_elements_with_axis slice_neg_steps
softmax_axis_1 spacetodepth split_equal_parts_2d stft top_k transpose_all_permutations_3 tril where_example
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[3] / "scripts" / "onnx_node_tests.py"
    spec = importlib.util.spec_from_file_location("onnx_node_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(script: ModuleType) -> dict[str, Any]:
    with warnings.catch_warnings():  # the generators of the tests overflow and divide by zero on purpose
        return script.load_cases("^test_(" + "|".join(SAMPLE) + ")$")


@pytest.mark.parametrize("name", SAMPLE)
def test_node(script, cases, name):
    if f"test_{name}" not in cases:
        pytest.skip(f"the installed onnx has no test_{name}")
    with warnings.catch_warnings():
        outcome = script.check(cases[f"test_{name}"])
    assert outcome.verdict in ("passed", "passed, parameters bound"), outcome.reason


def test_wrong_numbers_are_noticed(script):
    one = np.ones(3, dtype="float32")
    assert script.compare([one], [one], 1e-3, 1e-7) == ""
    assert "values" in script.compare([one * 1.1], [one], 1e-3, 1e-7)
    assert "shape" in script.compare([one[:2]], [one], 1e-3, 1e-7)
    assert "expected float32" in script.compare([one.astype("float64")], [one], 1e-3, 1e-7)
    assert "values" in script.compare([np.array([1, 2])], [np.array([1, 3])], 1, 1)
