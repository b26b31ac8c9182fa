"""Running ONNX models with ONNX Runtime, the independent reference of the frontend's tests."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail


def run_onnx(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name. Graph optimisations are off, so that the graph is run as it is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Fail as error:
        # The newest ONNX Runtime for Python 3.10 is older than the newest opsets of the zoo.
        if "opset" not in str(error):
            raise
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not run the model's opset")
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
