"""Naming every operator of a model that the importer cannot translate, all in one error.

Asked twice: of the model as it was read, so that a hopeless one is refused before anything else runs,
and of what folding, unrolling and expansion leave of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

import onnx

from tpo.errors import UnsupportedOperatorsError

_NAMES_SHOWN = 5
# Operators that unrolling removes where their course is known; only then can tpo do with them.
_MAY_VANISH = frozenset(
    {
        "ConcatFromSequence",
        "If",
        "Loop",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "Scan",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "SplitToSequence",
    }
)


def check_possible(model: onnx.ModelProto, path: str | Path, supported: Container[str]) -> None:
    """Like `check_supported`, on a model as it was read: only what no later stage can remove is named."""
    local = {f"{function.domain}::{function.name}" for function in model.functions}
    hopeless = {
        name
        for name in map(operator_name, _all_nodes(model))
        if name not in supported and name not in _MAY_VANISH and name not in local and not _has_body(name)
    }
    if hopeless:
        check_supported(model, path, set(map(operator_name, _all_nodes(model))) - hopeless)


def _has_body(name: str) -> bool:
    """Whether the standard defines the operator by other operators."""
    try:
        schema = onnx.defs.get_schema(name)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in (model.graph, *model.functions):
        yield from nodes(graph)


def check_supported(model: onnx.ModelProto, path: str | Path, supported: Container[str]) -> None:
    """Raise one error naming all operators outside `supported`, with their nodes.

    Standard operators are looked up by name ("Conv"), others with their domain ("com.x::Foo").
    """
    nodes_of: dict[str, list[str]] = {}
    for node in _all_nodes(model):
        name = operator_name(node)
        if name not in supported:
            nodes_of.setdefault(name, []).append(
                node.name or f"output {', '.join(filter(None, node.output))}"
            )
    if nodes_of:
        listed = ", ".join(f"{name} ({_node_list(found)})" for name, found in nodes_of.items())
        raise UnsupportedOperatorsError(path=path, count=len(nodes_of), operators=listed)


def operator_name(node: onnx.NodeProto) -> str:
    """The operator as users know it: its type, with its domain unless that is the standard one."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """All nodes of the graph or function and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from nodes(subgraph)


def _node_list(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"node{'s' if len(names) > 1 else ''} {shown}{more}"
