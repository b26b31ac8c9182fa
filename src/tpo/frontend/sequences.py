"""Following lists of tensors through a graph: what a scripted loop appends to, once it is unrolled."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tpo.frontend.inline import Inliner, attribute

LIST_OPERATORS = {"SequenceInsert", "SequenceErase", "SequenceAt", "SequenceLength", "ConcatFromSequence"}


class Sequences:
    """The sequences of a graph whose items are known by name, in order of the nodes visited."""

    def __init__(self, inliner: Inliner) -> None:
        self._inliner = inliner
        self._items: dict[str, list[str]] = {}

    def resolve(self, node: onnx.NodeProto) -> list[str] | None:
        """Values that stand for the outputs of a node that reads a known sequence, else None.

        Nodes that make sequences are only remembered: without readers they are dead and removed.
        """
        if node.op_type == "SequenceEmpty":
            self._items[node.output[0]] = []
        elif node.op_type == "SequenceConstruct":
            self._items[node.output[0]] = list(node.input)
        elif node.op_type == "Identity" and node.input[0] in self._items:
            self._items[node.output[0]] = self._items[node.input[0]]
        elif node.op_type in LIST_OPERATORS and node.input[0] in self._items:
            return self._read(node, list(self._items[node.input[0]]))
        return None

    def _read(self, node: onnx.NodeProto, items: list[str]) -> list[str] | None:
        if node.op_type == "SequenceLength":
            return [self._inliner.add_constant(np.int64(len(items)))]
        if node.op_type == "ConcatFromSequence":
            return [self._join(node, items)] if items else None
        position = self._position(node, len(items))
        if position is None:
            return None
        if node.op_type == "SequenceAt":
            return [items[position]]
        if node.op_type == "SequenceInsert":
            items.insert(position, node.input[1])
        else:
            del items[position]
        self._items[node.output[0]] = items
        return None

    def _position(self, node: onnx.NodeProto, length: int) -> int | None:
        place = 2 if node.op_type == "SequenceInsert" else 1
        if len(node.input) <= place or not node.input[place]:
            return length if node.op_type == "SequenceInsert" else length - 1
        value = self._inliner.constant(node.input[place])
        return None if value is None else int(value.item()) % (length + (place == 2))

    def _join(self, node: onnx.NodeProto, items: list[str]) -> str:
        axis = attribute(node, "axis")
        if attribute(node, "new_axis"):
            return self._inliner.stack(items, axis)
        result = self._inliner.fresh(node.output[0])
        self._inliner.nodes.append(helper.make_node("Concat", items, [result], axis=axis))
        return result
