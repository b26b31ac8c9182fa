"""A small graph builder: what the model makers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str | None


class Builder:
    """Collects nodes, seeded weights, inputs and outputs, and makes a checked model of them.

    Node names and value names follow torch's exporter ("/Conv_3", "/Conv_3_output_0").
    """

    def __init__(self, name: str, seed: int, opset: int = 17, ir_version: int = 8) -> None:
        self.name, self.opset, self.ir_version = name, opset, ir_version
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.metadata: dict[str, str] = {}
        self._count = 0

    def input(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype: int = TensorProto.FLOAT,
        bounds: tuple[int, int] | None = None,
    ) -> str:
        """Declare a graph input; `bounds` is the range, high excluded, of an integer one."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        if bounds is not None:
            self.metadata[f"tpo.range.{name}"] = f"{bounds[0]},{bounds[1]}"
        return name

    def output(self, value: str, name: str, shape: Sequence[Dim], dtype: int = TensorProto.FLOAT) -> None:
        """Declare `value` to be the graph output `name`."""
        self.nodes.append(self._rename_or_copy(value, name))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def _rename_or_copy(self, value: str, name: str) -> onnx.NodeProto:
        uses = sum(value in node.input for node in self.nodes)
        if uses == 0 and self.nodes and value in self.nodes[-1].output:
            node = self.nodes.pop()
            node.output[list(node.output).index(value)] = name
            return node
        return helper.make_node("Identity", [value], [name], name=f"/{name}_Identity")

    def ops(self, op_type: str, *inputs: str, count: int, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node with `count` outputs and give their names."""
        name = f"/{op_type}_{self._count}"
        self._count += 1
        outputs = [f"{name}_output_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and give its name."""
        return self.ops(op_type, *inputs, count=1, domain=domain, **attributes)[0]

    def const(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32, name: str = "") -> str:
        """Add an initializer with this value."""
        name = name or f"const_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def ints(self, *values: int) -> str:
        """Add a one-dimensional int64 initializer."""
        return self.const(values, np.int64)

    def weight(self, *shape: int, fan_in: int = 0, gain: float = 2.0) -> str:
        """Add a random weight with variance gain / fan_in (all dimensions but the first, unless given)."""
        fan_in = fan_in or math.prod(shape[1:])
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(math.sqrt(gain / fan_in))
        return self.const(values, name=f"weight_{len(self.initializers)}")

    def offset(self, size: int) -> str:
        """Add a small random vector: a bias, or a running mean."""
        return self.const(0.1 * self.rng.standard_normal(size), name=f"bias_{len(self.initializers)}")

    def positive(self, size: int) -> str:
        """Add a random vector around one: a scale, or a running variance."""
        return self.const(self.rng.uniform(0.7, 1.3, size), name=f"scale_{len(self.initializers)}")

    def conv(
        self, x: str, channels: int, filters: int, kernel: int = 3, *, stride: int = 1, dilation: int = 1,
        group: int = 1, bias: bool = True, gain: float = 2.0,
    ) -> str:  # fmt: skip
        """Add a same-padded square convolution."""
        pad = dilation * (kernel // 2)
        weights = [self.weight(filters, channels // group, kernel, kernel, gain=gain)]
        return self.op(
            "Conv", x, *weights, *([self.offset(filters)] if bias else []),
            kernel_shape=[kernel, kernel], strides=[stride, stride], dilations=[dilation, dilation],
            pads=[pad] * 4, group=group,
        )  # fmt: skip

    def batch_norm(self, x: str, channels: int, **attributes: Any) -> str:
        """Add an inference BatchNormalization."""
        parameters = self.positive(channels), self.offset(channels), self.offset(channels)
        return self.op("BatchNormalization", x, *parameters, self.positive(channels), **attributes)

    def gemm(self, x: str, inputs: int, outputs: int, gain: float = 2.0) -> str:
        """Add a fully connected layer as torch exports it."""
        return self.op("Gemm", x, self.weight(outputs, inputs, gain=gain), self.offset(outputs), transB=1)

    def linear(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """Add a MatMul and a bias Add: a fully connected layer on more than two dimensions."""
        product = self.op("MatMul", x, self.weight(inputs, outputs, fan_in=inputs, gain=gain))
        return self.op("Add", self.offset(outputs), product)

    def build(self) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.initializers)
        domains = {node.domain for node in self.nodes} | {function.domain for function in self.functions}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(domains - {""})]
        model = helper.make_model(
            graph, producer_name="tpo.testing", opset_imports=opsets, functions=self.functions,
            ir_version=self.ir_version,
        )  # fmt: skip
        if self.metadata:
            helper.set_model_props(model, self.metadata)
        onnx.checker.check_model(model)
        return model
