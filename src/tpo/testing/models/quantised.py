"""Quantised networks made by ONNX Runtime's static quantiser, in both of its formats."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tpo.testing.models.build import Builder

_SHAPE = (1, 3, 24, 24)


def _float_net(seed: int) -> onnx.ModelProto:
    b = Builder("quantised", seed, opset=17)
    x = b.input("x", _SHAPE)
    x = b.op("Relu", b.conv(x, 3, 16, stride=2))
    y = b.op("Relu", b.conv(x, 16, 16, group=16))
    x = b.op("Add", x, b.conv(y, 16, 16, 1))
    x = b.op("Concat", b.op("Relu", x), b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4), axis=1)
    x = b.op("Sigmoid", b.conv(x, 32, 24, stride=2))
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    x = b.op("MatMul", x, b.weight(24, 32, fan_in=24))
    b.output(b.gemm(x, 32, 10, gain=20.0), "y", (1, 10))
    return b.build()


class _Calibration:
    """Seeded random inputs, in the form ONNX Runtime's calibrator reads."""

    def __init__(self, seed: int, count: int = 8) -> None:
        rng = np.random.default_rng(seed)
        self._arrays = iter([rng.standard_normal(_SHAPE, dtype=np.float32) for _ in range(count)])

    def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
        """The next input, or None at the end."""
        array = next(self._arrays, None)
        return None if array is None else {"x": array}


def _make(style: str, seed: int) -> onnx.ModelProto:
    # Late: the quantiser needs sympy, which only the development extra installs.
    from onnxruntime import quantization

    class Reader(_Calibration, quantization.CalibrationDataReader):  # type: ignore[misc]
        """The calibrator insists on its own base class."""

    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it advises, through the root logger, to preprocess the model
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "float.onnx", Path(folder) / "quantised.onnx"
            onnx.save(_float_net(seed), source)
            quantization.quantize_static(
                source,
                target,
                Reader(seed),
                quant_format=quantization.QuantFormat[style],
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
            return onnx.load(target)
    finally:
        logging.root.setLevel(level)


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "quantised_qdq": partial(_make, "QDQ"),
    "quantised_qlinear": partial(_make, "QOperator"),
}
