"""How often a `Loop` runs, when that does not depend on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tpo.frontend.inline import attribute

Lookup = Callable[[str], "npt.NDArray[Any] | None"]


def count_trips(
    node: onnx.NodeProto, body: onnx.GraphProto, constant: Lookup, opset: int, limit: int
) -> int | None:
    """The number of times a Loop's body runs, or None when only the data can tell.

    Either the trip count is constant and the condition stays true, or the condition can be computed
    from constants alone, as in the counters of converted `while` loops: then the part of the body
    that computes it is run. Counting stops beyond `limit`.
    """
    bound = constant(node.input[0]) if node.input[0] else None
    going = constant(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array(True)
    if going is None or (node.input[0] and bound is None):
        return None
    most = max(int(bound.item()), 0) if bound is not None else None
    if not going.item() or most == 0:
        return 0
    stays = _stays_true(body, constant)
    if stays is None:
        part = _condition_part(node, body, constant, opset)
        return _simulate(part, body, limit + 1 if most is None else min(most, limit + 1)) if part else None
    return most if stays else 1


def _stays_true(body: onnx.GraphProto, constant: Lookup) -> bool | None:
    """Whether the condition the body returns is always true, always false, or None: computed."""
    producers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    value = _body_constant(body, name, producers)
    value = constant(name) if value is None and name not in producers else value
    return None if value is None else bool(value.item())


def _body_constant(
    body: onnx.GraphProto, name: str, producers: dict[str, onnx.NodeProto]
) -> npt.NDArray[Any] | None:
    tensor = next((tensor for tensor in body.initializer if tensor.name == name), None)
    if name in producers and producers[name].op_type == "Constant":
        tensor = attribute(producers[name], "value")
    return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))


@dataclass
class _ConditionPart:
    """What the condition of a loop depends on, over all steps: a runnable part of its body."""

    evaluator: ReferenceEvaluator
    initial: dict[str, npt.NDArray[Any]]  # states by the name the body gives them as inputs


def _simulate(part: _ConditionPart, body: onnx.GraphProto, most: int) -> int:
    """Run the part until the condition is false, at most so many times; the number of runs."""
    states: dict[str, Any] = part.initial
    for step in range(most):
        feeds = {body.input[0].name: np.int64(step), body.input[1].name: np.bool_(True), **states}
        going, *after = part.evaluator.run(None, feeds)
        if not going:
            return step + 1
        states = dict(zip(states, after, strict=True))
    return most


def _condition_part(
    node: onnx.NodeProto, body: onnx.GraphProto, constant: Lookup, opset: int
) -> _ConditionPart | None:
    """The part of the body the condition depends on; None if that involves data."""
    producers = {name: one for one in body.node for name in one.output if name}
    own = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}
    initial = dict(zip((value.name for value in body.input[2:]), node.input[2:], strict=True))
    following = dict(zip(initial, (value.name for value in body.output[1:]), strict=False))
    given = {body.input[0].name, body.input[1].name}
    states: dict[str, npt.NDArray[Any]] = {}
    captured: dict[str, npt.NDArray[Any]] = {}
    needed, waiting = set(), [body.output[0].name]
    while waiting:
        name = waiting.pop()
        if name in needed or name in given or not name:
            continue
        needed.add(name)
        if name in producers:
            if any(one.HasField("g") or one.graphs for one in producers[name].attribute):
                return None
            waiting.extend(producers[name].input)
        elif name in initial:
            value = constant(initial[name])
            if value is None:
                return None
            states[name] = value
            waiting.append(following[name])
        else:
            value = own.get(name, constant(name))
            if value is None:
                return None
            captured[name] = value
    kept = [one for one in body.node if needed.intersection(one.output)]
    inputs = [value for value in body.input if value.name in given or value.name in states]
    outputs = [onnx.ValueInfoProto(name=name) for name in (body.output[0].name, *map(following.get, states))]
    tensors = [numpy_helper.from_array(value, name) for name, value in captured.items()]
    graph = helper.make_graph(kept, "condition", inputs, outputs, tensors)
    return _ConditionPart(ReferenceEvaluator(graph, opsets={"": opset}), states)
