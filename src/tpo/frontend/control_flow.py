"""Removing control flow that does not depend on data: `If` decided, `Loop` and `Scan` unrolled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tpo.errors import UnsupportedModelError
from tpo.frontend.inline import Inliner, attribute
from tpo.frontend.sequences import LIST_OPERATORS, Sequences
from tpo.frontend.simplify import simplify
from tpo.frontend.support import nodes
from tpo.frontend.trips import count_trips

MAX_UNROLLED_NODES = 20_000
_RESOLVABLE = {"If", "Loop", "Scan"} | LIST_OPERATORS


def resolve_control_flow(model: onnx.ModelProto, path: str | Path) -> onnx.ModelProto:
    """The model with every `If`, `Loop` and `Scan` inlined whose course is known before it runs.

    What is inside a body often becomes constant only when the body stands in the graph itself, so
    inlining and simplifying alternate until nothing changes. Lists that unrolled loops appended to
    become their items. What depends on data stays, for `check_supported` to report.
    """
    unrolled = 0
    if _may_resolve(model):
        model = simplify(model)
    while _may_resolve(model):
        resolver = _Resolver(model, path, unrolled)
        resolved = resolver.run()
        if resolved is None:
            break
        unrolled = resolver.unrolled
        model = simplify(resolved)
    return model


def _may_resolve(model: onnx.ModelProto) -> bool:
    return any(node.op_type in _RESOLVABLE for node in model.graph.node)


class _Resolver:
    """One sweep over the nodes of the main graph."""

    def __init__(self, model: onnx.ModelProto, path: str | Path, unrolled: int) -> None:
        self.model, self.path, self.unrolled = model, path, unrolled
        self.inliner = Inliner(model)
        self.sequences = Sequences(self.inliner)

    def run(self) -> onnx.ModelProto | None:
        """The model after the sweep; None if there was nothing to inline."""
        changed = False
        by_kind = {"If": self._decide, "Loop": self._unroll_loop, "Scan": self._unroll_scan}
        for node in self.model.graph.node:
            resolve = by_kind.get(node.op_type, self.sequences.resolve)
            outputs = resolve(node) if node.domain in ("", "ai.onnx") else None
            if outputs is None:
                self.inliner.nodes.append(node)
                continue
            changed = True
            # The graph goes on using the node's own output names; simplify removes the identities.
            for name, value in zip(node.output, outputs, strict=False):
                if name:
                    self.inliner.nodes.append(helper.make_node("Identity", [value], [name]))
        return self.inliner.finish(self.model) if changed else None

    def _decide(self, node: onnx.NodeProto) -> list[str] | None:
        condition = self.inliner.constant(node.input[0])
        if condition is None:
            return None
        branch = attribute(node, "then_branch" if condition.item() else "else_branch")
        return self.inliner.inline(branch, [], self.inliner.lift_initializers(branch))

    def _unroll_loop(self, node: onnx.NodeProto) -> list[str] | None:
        body = attribute(node, "body")
        trips = count_trips(node, body, self.inliner.constant, self.inliner.opset, MAX_UNROLLED_NODES)
        if trips is None:
            return None
        states, carried = list(node.input[2:]), len(node.input) - 2
        empty = (
            [self.inliner.empty_like(value, axis=0) for value in body.output[1 + carried :]]
            if not trips
            else []
        )
        if None in empty:
            return None
        self._charge(node, body, trips)
        lifted = self.inliner.lift_initializers(body)
        collected: list[list[str]] = [[] for _ in body.output[1 + carried :]]
        for step in range(trips):
            counter = self.inliner.scalar(np.int64(step), body.input[0])
            going = self.inliner.scalar(np.bool_(True), body.input[1])
            _, *results = self.inliner.inline(body, [counter, going, *states], lifted)
            states = results[:carried]
            for items, value in zip(collected, results[carried:], strict=True):
                items.append(value)
        stacked = [self.inliner.stack(items, axis=0) for items in collected] if trips else empty
        return states + [name for name in stacked if name]

    def _unroll_scan(self, node: onnx.NodeProto) -> list[str] | None:
        body = attribute(node, "body")
        scanned = attribute(node, "num_scan_inputs")
        carried = len(node.input) - scanned
        sources = list(node.input[carried:])
        in_axes = attribute(node, "scan_input_axes") or [0] * scanned
        in_reversed = attribute(node, "scan_input_directions") or [0] * scanned
        produced = len(body.output) - carried
        out_axes = attribute(node, "scan_output_axes") or [0] * produced
        out_reversed = attribute(node, "scan_output_directions") or [0] * produced
        shape = self.inliner.shape(sources[0])
        # Before opset 9 Scan had a batch dimension and optional lengths; nobody exports that.
        if shape is None or not shape[in_axes[0]] or self.inliner.opset < 9:
            return None
        trips = shape[in_axes[0]]
        self._charge(node, body, trips)
        lifted = self.inliner.lift_initializers(body)
        states = list(node.input[:carried])
        collected: list[list[str]] = [[] for _ in range(produced)]
        for step in range(trips):
            items = [
                self.inliner.pick(source, trips - 1 - step if backwards else step, axis)
                for source, axis, backwards in zip(sources, in_axes, in_reversed, strict=True)
            ]
            results = self.inliner.inline(body, states + items, lifted)
            states = results[:carried]
            for values, value in zip(collected, results[carried:], strict=True):
                values.append(value)
        return states + [
            self.inliner.stack(values[::-1] if backwards else values, axis)
            for values, axis, backwards in zip(collected, out_axes, out_reversed, strict=True)
        ]

    def _charge(self, node: onnx.NodeProto, body: onnx.GraphProto, trips: int) -> None:
        size = sum(1 for _ in nodes(body)) * trips
        self.unrolled += size
        if self.unrolled > MAX_UNROLLED_NODES:
            raise UnsupportedModelError(
                path=self.path,
                operator=node.op_type,
                node=node.name,
                why=f"unrolling its {trips} steps takes {size} nodes, and {MAX_UNROLLED_NODES} is the limit",
            )
