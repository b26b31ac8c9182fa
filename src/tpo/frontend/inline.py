"""Putting the body of a control flow node into the graph around it, under names of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

_AXES_ARE_INPUTS = 13  # from this opset on, Unsqueeze takes its axes as an input


def attribute(node: onnx.NodeProto, name: str) -> Any:
    """The value of a node's attribute, or None."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


class Inliner:
    """Collects the nodes and initializers of a graph in which bodies replace the nodes that held them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.nodes: list[onnx.NodeProto] = []
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        inputs = {value.name for value in graph.input}
        self._constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs}
        for node in graph.node:
            if node.op_type == "Constant" and (tensor := attribute(node, "value")) is not None:
                self._constants[node.output[0]] = tensor
        self._types = {value.name: value.type for value in [*graph.value_info, *graph.input]}
        self._added: list[onnx.TensorProto] = []
        self._taken = _names(graph)
        self._count = 0

    def finish(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A copy of `model` with the collected nodes and initializers."""
        result = onnx.ModelProto()
        result.CopyFrom(model)
        del result.graph.node[:]
        result.graph.node.extend(self.nodes)
        result.graph.initializer.extend(self._added)
        return result

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a constant of the graph."""
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def shape(self, name: str) -> list[int] | None:
        """The shape of a value of the graph; unknown sizes are 0, None is an unknown rank."""
        if name in self._constants:
            return list(self._constants[name].dims)
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        return [dim.dim_value for dim in kind.tensor_type.shape.dim]

    # Bodies -------------------------------------------------------------------------------------

    def lift_initializers(self, body: onnx.GraphProto) -> dict[str, str]:
        """Add the body's initializers to the graph, once for all copies of it; their new names."""
        lifted = {}
        for tensor in body.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = lifted[tensor.name] = self.fresh(tensor.name)
            self._added.append(copy)
        return lifted

    def inline(self, body: onnx.GraphProto, arguments: list[str], lifted: dict[str, str]) -> list[str]:
        """Add a copy of the body's nodes, with its inputs bound to `arguments`; names of its outputs."""
        names = dict(lifted)
        names.update(zip((value.name for value in body.input), arguments, strict=True))
        for node in body.node:
            self.nodes.append(self._renamed(node, names))
        return [names.get(value.name, value.name) for value in body.output]

    def _renamed(self, node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
        """A copy of the node; its outputs get fresh names, which are added to `names`."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        for one in copy.attribute:
            for graph in ([one.g] if one.HasField("g") else []) + list(one.graphs):
                self._rename_graph(graph, dict(names))
        for name in filter(None, node.output):
            names[name] = self.fresh(name)
        copy.output[:] = [names.get(name, name) for name in node.output]
        copy.name = self.fresh(node.name or node.op_type)
        return copy

    def _rename_graph(self, graph: onnx.GraphProto, names: dict[str, str]) -> None:
        del graph.value_info[:]
        own: dict[str, str] = {}  # an initializer may be declared as an input too: both are one value
        for value in [*graph.input, *graph.initializer]:
            if value.name not in own:
                own[value.name] = self.fresh(value.name)
            value.name = own[value.name]
        names.update(own)
        renamed = [self._renamed(node, names) for node in graph.node]
        del graph.node[:]
        graph.node.extend(renamed)
        for value in graph.output:
            value.name = names.get(value.name, value.name)

    def fresh(self, stem: str) -> str:
        """A name nothing else has."""
        while True:
            name = f"{stem}__{self._count}"
            self._count += 1
            if name not in self._taken:
                self._taken.add(name)
                return name

    # Small pieces -------------------------------------------------------------------------------

    def add_constant(self, value: npt.ArrayLike, stem: str = "unrolled") -> str:
        """Add an initializer; its name."""
        tensor = numpy_helper.from_array(np.asarray(value), self.fresh(stem))
        self._added.append(tensor)
        self._constants[tensor.name] = tensor
        return str(tensor.name)

    def scalar(self, value: np.generic, declared: onnx.ValueInfoProto) -> str:
        """A one-element constant of the rank the body declares for it: some exporters write [1]."""
        return self.add_constant(
            np.reshape(value, [1] * len(declared.type.tensor_type.shape.dim)), declared.name
        )

    def pick(self, source: str, index: int, axis: int) -> str:
        """One item of `source` along `axis`."""
        result = self.fresh(source)
        where = self.add_constant(np.int64(index))
        self.nodes.append(
            helper.make_node("Gather", [source, where], [result], self.fresh("pick"), axis=axis)
        )
        return result

    def stack(self, values: list[str], axis: int) -> str:
        """The values as one tensor along a new axis."""
        widened = []
        for value in values:
            result = self.fresh(value)
            if self.opset >= _AXES_ARE_INPUTS:
                inputs, attributes = [value, self.add_constant(np.array([axis], np.int64))], {}
            else:
                inputs, attributes = [value], {"axes": [axis]}
            self.nodes.append(
                helper.make_node("Unsqueeze", inputs, [result], self.fresh("widen"), **attributes)
            )
            widened.append(result)
        joined = self.fresh("stacked")
        self.nodes.append(helper.make_node("Concat", widened, [joined], self.fresh("stack"), axis=axis))
        return joined

    def empty_like(self, item: onnx.ValueInfoProto, axis: int) -> str | None:
        """A constant of no items of this type, stacked along `axis`; None when its shape is unknown."""
        tensor = item.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        if not tensor.HasField("shape") or 0 in sizes:
            return None
        sizes.insert(axis, 0)
        return self.add_constant(np.zeros(sizes, helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def _names(graph: onnx.GraphProto) -> set[str]:
    """All names of values and nodes in the graph and in those inside it."""
    names = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    for node in graph.node:
        names.update((node.name, *node.input, *node.output))
        for one in node.attribute:
            for inner in ([one.g] if one.HasField("g") else []) + list(one.graphs):
                names |= _names(inner)
    return names
