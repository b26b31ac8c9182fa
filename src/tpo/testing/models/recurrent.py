"""Recurrent networks: LSTM, GRU and RNN nodes with a classifier behind them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tpo.testing.models.build import Builder

_STEPS, _FEATURES, _HIDDEN, _CLASSES = 12, 16, 24, 5


def lstm(seed: int) -> onnx.ModelProto:
    """Two layers, the first bidirectional with peepholes, the second with an initial state."""
    b = Builder("lstm", seed)
    x = b.op("Transpose", b.input("x", ["batch", _STEPS, _FEATURES]), perm=[1, 0, 2])
    peepholes = b.const(0.2 * b.rng.standard_normal((2, 3 * _HIDDEN)))
    x = b.op("LSTM", x, *_parameters(b, 4, 2, _FEATURES), "", "", "", peepholes,
             hidden_size=_HIDDEN, direction="bidirectional")  # fmt: skip
    x = _join_directions(b, x)
    batch = b.op("Gather", b.op("Shape", x), b.ints(1), axis=0)
    zeros = b.op("ConstantOfShape", b.op("Concat", b.ints(1), batch, b.ints(_HIDDEN), axis=0))
    sequence, last, cell = b.ops(
        "LSTM", x, *_parameters(b, 4, 1, 2 * _HIDDEN), "", zeros, zeros, count=3, hidden_size=_HIDDEN
    )
    mean = b.op("ReduceMean", b.op("Squeeze", sequence, b.ints(1)), axes=[0], keepdims=0)
    x = b.op("Concat", mean, b.op("Squeeze", last, b.ints(0)), b.op("Squeeze", cell, b.ints(0)), axis=-1)
    b.output(b.gemm(x, 3 * _HIDDEN, _CLASSES), "y", ["batch", _CLASSES])
    return b.build()


def gru(seed: int) -> onnx.ModelProto:
    """A torch GRU (linear_before_reset), bidirectional, then a reverse one with the ONNX default."""
    b = Builder("gru", seed)
    x = b.op("Transpose", b.input("x", ["batch", _STEPS, _FEATURES]), perm=[1, 0, 2])
    x = b.op("GRU", x, *_parameters(b, 3, 2, _FEATURES),
             hidden_size=_HIDDEN, direction="bidirectional", linear_before_reset=1)  # fmt: skip
    _, last = b.ops("GRU", _join_directions(b, x), *_parameters(b, 3, 1, 2 * _HIDDEN),
                    count=2, hidden_size=_HIDDEN, direction="reverse")  # fmt: skip
    b.output(b.gemm(b.op("Squeeze", last, b.ints(0)), _HIDDEN, _CLASSES), "y", ["batch", _CLASSES])
    return b.build()


def rnn(seed: int) -> onnx.ModelProto:
    """A Tanh RNN in both directions, then a Relu one."""
    b = Builder("rnn", seed)
    x = b.op("Transpose", b.input("x", ["batch", _STEPS, _FEATURES]), perm=[1, 0, 2])
    x = b.op("RNN", x, *_parameters(b, 1, 2, _FEATURES), hidden_size=_HIDDEN, direction="bidirectional")
    _, last = b.ops("RNN", _join_directions(b, x), *_parameters(b, 1, 1, 2 * _HIDDEN),
                    count=2, hidden_size=_HIDDEN, activations=["Relu"])  # fmt: skip
    b.output(b.gemm(b.op("Squeeze", last, b.ints(0)), _HIDDEN, _CLASSES), "y", ["batch", _CLASSES])
    return b.build()


def _parameters(b: Builder, gates: int, directions: int, features: int) -> list[str]:
    """Input weights, recurrent weights and biases of one recurrent node."""
    rows = gates * _HIDDEN
    return [
        b.weight(directions, rows, features, fan_in=features, gain=1.0),
        b.weight(directions, rows, _HIDDEN, fan_in=_HIDDEN, gain=0.7),
        b.const(0.1 * b.rng.standard_normal((directions, 2 * rows))),
    ]


def _join_directions(b: Builder, x: str) -> str:
    """[steps, directions, batch, hidden] -> [steps, batch, directions * hidden]."""
    x = b.op("Transpose", x, perm=[0, 2, 1, 3])
    return b.op("Reshape", x, b.const([0, 0, -1], np.int64))


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {m.__name__: m for m in (lstm, gru, rnn)}
