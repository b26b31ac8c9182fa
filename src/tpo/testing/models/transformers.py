"""Transformers as exporters write them: decomposed norms, shape arithmetic, masks, rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tpo.testing.models.build import Builder

_LAST = 2**63 - 1  # "to the end", as exporters write it in Slice


class _Exporter(Builder):
    """Builder with the idioms torch's exporter leaves around attention."""

    def dimension(self, x: str, axis: int) -> str:
        """The size of one axis as a one-element tensor: Shape -> Gather -> Unsqueeze."""
        size = self.op("Gather", self.op("Shape", x), self.const(axis, np.int64), axis=0)
        return self.op("Unsqueeze", size, self.ints(0))

    def reshape(self, x: str, *sizes: str | int) -> str:
        """Reshape to a shape concatenated of computed and constant sizes."""
        parts = [self.ints(size) if isinstance(size, int) else size for size in sizes]
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0))

    def decomposed_layer_norm(self, x: str, size: int, epsilon: float = 1e-12) -> str:
        """LayerNorm before opset 17."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.const(2.0)), axes=[-1])
        y = self.op("Div", centred, self.op("Sqrt", self.op("Add", variance, self.const(epsilon))))
        return self.op("Add", self.op("Mul", y, self.positive(size)), self.offset(size))

    def rms_norm(self, x: str, size: int, epsilon: float = 1e-6) -> str:
        """RMSNorm as Llama's code spells it."""
        mean = self.op("ReduceMean", self.op("Pow", x, self.const(2.0)), axes=[-1])
        root = self.op("Sqrt", self.op("Add", mean, self.const(epsilon)))
        y = self.op("Mul", x, self.op("Div", self.const(1.0), root))
        return self.op("Mul", self.positive(size), y)

    def projection(self, x: str, inputs: int, outputs: int) -> str:
        """A linear layer without bias."""
        return self.op("MatMul", x, self.weight(inputs, outputs, fan_in=inputs, gain=1.0))


def bert(
    seed: int, hidden: int = 64, heads: int = 4, layers: int = 2, vocabulary: int = 1000, context: int = 128
) -> onnx.ModelProto:
    """Encoder with dynamic batch and sequence, decomposed LayerNorm, erf-GELU and an additive mask."""
    b = _Exporter("bert", seed, opset=14)
    tokens = b.input("input_ids", ["batch", "sequence"], TensorProto.INT64, bounds=(0, vocabulary))
    mask = b.input("attention_mask", ["batch", "sequence"], TensorProto.INT64, bounds=(0, 2))

    mask = b.op("Unsqueeze", b.op("Unsqueeze", mask, b.ints(1)), b.ints(2))
    mask = b.op("Sub", b.const(1.0), b.op("Cast", mask, to=TensorProto.FLOAT))
    mask = b.op("Mul", mask, b.const(-10000.0))

    length = b.dimension(tokens, 1)
    positions = b.op("Slice", b.const([range(context)], np.int64), b.ints(0), length, b.ints(1), b.ints(1))
    words = b.op("Gather", b.weight(vocabulary, hidden, fan_in=1, gain=1.0), tokens, axis=0)
    places = b.op("Gather", b.weight(context, hidden, fan_in=1, gain=1.0), positions, axis=0)
    x = b.decomposed_layer_norm(b.op("Add", words, places), hidden)

    def split_heads(y: str, perm: list[int]) -> str:
        y = b.reshape(y, b.dimension(y, 0), b.dimension(y, 1), heads, hidden // heads)
        return b.op("Transpose", y, perm=perm)

    for _ in range(layers):
        query = split_heads(b.linear(x, hidden, hidden, gain=2.0), [0, 2, 1, 3])
        key = split_heads(b.linear(x, hidden, hidden, gain=2.0), [0, 2, 3, 1])
        value = split_heads(b.linear(x, hidden, hidden), [0, 2, 1, 3])
        scores = b.op("Div", b.op("MatMul", query, key), b.const(math.sqrt(hidden // heads)))
        scores = b.op("Softmax", b.op("Add", scores, mask), axis=-1)
        y = b.op("Transpose", b.op("MatMul", scores, value), perm=[0, 2, 1, 3])
        y = b.reshape(y, b.dimension(y, 0), b.dimension(y, 1), hidden)
        x = b.decomposed_layer_norm(b.op("Add", b.linear(y, hidden, hidden), x), hidden)
        y = b.linear(x, hidden, 4 * hidden, gain=2.0)
        gate = b.op("Add", b.op("Erf", b.op("Div", y, b.const(math.sqrt(2.0)))), b.const(1.0))
        y = b.op("Mul", b.op("Mul", y, gate), b.const(0.5))
        x = b.decomposed_layer_norm(b.op("Add", b.linear(y, 4 * hidden, hidden), x), hidden)

    first = b.op("Gather", x, b.const(0, np.int64), axis=1)
    pooled = b.op("Tanh", b.gemm(first, hidden, hidden, gain=1.0))
    b.output(x, "last_hidden_state", ["batch", "sequence", hidden])
    b.output(pooled, "pooler_output", ["batch", hidden])
    return b.build()


def gpt2(
    seed: int, hidden: int = 64, heads: int = 4, layers: int = 2, vocabulary: int = 500, context: int = 64
) -> onnx.ModelProto:
    """Decoder with one qkv projection, a causal mask sliced from a constant, tanh-GELU."""
    b = _Exporter("gpt2", seed, opset=17)
    tokens = b.input("input_ids", ["batch", "sequence"], TensorProto.INT64, bounds=(0, vocabulary))
    batch, length = b.dimension(tokens, 0), b.dimension(tokens, 1)
    size = b.op("Squeeze", length, b.ints(0))
    positions = b.op("Range", b.const(0, np.int64), size, b.const(1, np.int64))
    embedding = b.weight(vocabulary, hidden, fan_in=1, gain=1.0)
    places = b.op("Gather", b.weight(context, hidden, fan_in=1, gain=0.5), positions, axis=0)
    x = b.op("Add", b.op("Gather", embedding, tokens, axis=0), places)
    causal = b.const(np.tril(np.ones((1, 1, context, context))), np.bool_)
    lowest = b.const(np.finfo(np.float32).min)

    def layer_norm(y: str) -> str:
        return b.op("LayerNormalization", y, b.positive(hidden), b.offset(hidden), axis=-1, epsilon=1e-5)

    def conv1d(y: str, inputs: int, outputs: int) -> str:
        """GPT-2's linear layer: flatten, Gemm, restore."""
        flat = b.op("Gemm", b.op("Reshape", y, b.ints(-1, inputs)),
                    b.weight(inputs, outputs, fan_in=inputs, gain=1.5), b.offset(outputs))  # fmt: skip
        return b.reshape(flat, batch, length, outputs)

    def split_heads(y: str, perm: list[int]) -> str:
        return b.op("Transpose", b.reshape(y, batch, length, heads, hidden // heads), perm=perm)

    def gelu(y: str) -> str:
        cubed = b.op("Mul", b.op("Pow", y, b.const(3.0)), b.const(0.044715))
        inner = b.op("Mul", b.op("Add", y, cubed), b.const(math.sqrt(2.0 / math.pi)))
        return b.op("Mul", b.op("Mul", y, b.const(0.5)), b.op("Add", b.op("Tanh", inner), b.const(1.0)))

    for _ in range(layers):
        widths = b.ints(hidden, hidden, hidden)
        query, key, value = b.ops("Split", conv1d(layer_norm(x), hidden, 3 * hidden), widths, count=3, axis=2)
        scores = b.op("MatMul", split_heads(query, [0, 2, 1, 3]), split_heads(key, [0, 2, 3, 1]))
        scores = b.op("Div", scores, b.const(math.sqrt(hidden // heads)))
        allowed = b.op("Slice", causal, b.ints(0), length, b.ints(2), b.ints(1))
        allowed = b.op("Slice", allowed, b.ints(0), length, b.ints(3), b.ints(1))
        scores = b.op("Softmax", b.op("Where", allowed, scores, lowest), axis=-1)
        y = b.op("Transpose", b.op("MatMul", scores, split_heads(value, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        x = b.op("Add", x, conv1d(b.reshape(y, batch, length, hidden), hidden, hidden))
        x = b.op("Add", x, conv1d(gelu(conv1d(layer_norm(x), hidden, 4 * hidden)), 4 * hidden, hidden))
    logits = b.op("MatMul", layer_norm(x), b.op("Transpose", embedding, perm=[1, 0]))
    b.output(b.op("Mul", logits, b.const(0.25)), "logits", ["batch", "sequence", vocabulary])
    return b.build()


def llama(
    seed: int,
    hidden: int = 64,
    heads: int = 4,
    groups: int = 2,
    layers: int = 2,
    inner: int = 192,
    vocabulary: int = 400,
) -> onnx.ModelProto:
    """Decoder with RMSNorm, rotary embeddings, grouped-query attention and a gated SiLU."""
    width = hidden // heads
    b = _Exporter("llama", seed, opset=17)
    tokens = b.input("input_ids", ["batch", "sequence"], TensorProto.INT64, bounds=(0, vocabulary))
    batch, length = b.dimension(tokens, 0), b.dimension(tokens, 1)
    size = b.op("Squeeze", length, b.ints(0))
    x = b.op("Gather", b.weight(vocabulary, hidden, fan_in=1, gain=1.0), tokens, axis=0)

    positions = b.op("Range", b.const(0, np.int64), size, b.const(1, np.int64))
    positions = b.op("Cast", b.op("Unsqueeze", positions, b.ints(1)), to=TensorProto.FLOAT)
    frequencies = b.const([1.0 / 10000.0 ** (np.arange(0, width, 2) / width)])
    angles = b.op("MatMul", positions, frequencies)
    angles = b.op("Concat", angles, angles, axis=-1)
    cosine, sine = b.op("Cos", angles), b.op("Sin", angles)

    square = b.op("Concat", length, length, axis=0)
    blocked = b.op("Expand", b.const(np.finfo(np.float32).min), square)
    causal = b.op("Trilu", blocked, b.const(1, np.int64), upper=1)

    def rotate(y: str) -> str:
        first = b.op("Slice", y, b.ints(0), b.ints(width // 2), b.ints(3), b.ints(1))
        second = b.op("Slice", y, b.ints(width // 2), b.ints(_LAST), b.ints(3), b.ints(1))
        turned = b.op("Concat", b.op("Neg", second), first, axis=-1)
        return b.op("Add", b.op("Mul", y, cosine), b.op("Mul", turned, sine))

    def split_heads(y: str, count: int) -> str:
        return b.op("Transpose", b.reshape(y, batch, length, count, width), perm=[0, 2, 1, 3])

    def repeat_groups(y: str) -> str:
        y = b.op("Unsqueeze", y, b.ints(2))
        shape = b.op("Concat", batch, b.ints(groups), b.ints(heads // groups), length, b.ints(width), axis=0)
        return b.reshape(b.op("Expand", y, shape), batch, heads, length, width)

    for _ in range(layers):
        y = b.rms_norm(x, hidden)
        query = rotate(split_heads(b.projection(y, hidden, hidden), heads))
        key = repeat_groups(rotate(split_heads(b.projection(y, hidden, groups * width), groups)))
        value = repeat_groups(split_heads(b.projection(y, hidden, groups * width), groups))
        scores = b.op("MatMul", query, b.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = b.op("Add", b.op("Div", scores, b.const(math.sqrt(width))), causal)
        y = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
        y = b.reshape(b.op("Transpose", y, perm=[0, 2, 1, 3]), batch, length, hidden)
        x = b.op("Add", x, b.projection(y, hidden, hidden))
        y = b.rms_norm(x, hidden)
        gate = b.projection(y, hidden, inner)
        gate = b.op("Mul", gate, b.op("Sigmoid", gate))
        y = b.op("Mul", gate, b.projection(y, hidden, inner))
        x = b.op("Add", x, b.projection(y, inner, hidden))
    b.output(
        b.projection(b.rms_norm(x, hidden), hidden, vocabulary), "logits", ["batch", "sequence", vocabulary]
    )
    return b.build()


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {m.__name__: m for m in (bert, gpt2, llama)}
