"""Replacing calls of ONNX functions, the model's own and the standard's, by the nodes they stand for."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator

import onnx
from onnx import helper, inliner

from tpo.frontend.shapes import infer_shapes
from tpo.frontend.support import nodes, operator_name

_DOMAIN = "tpo.expanded"
_log = logging.getLogger(__name__)


def expand_functions(model: onnx.ModelProto, supported: Container[str]) -> onnx.ModelProto:
    """Inline model-local functions, and those standard operators outside `supported` that have a body.

    A body may use operators that are again defined by functions, so this repeats until nothing more
    can be expanded; an operator without a body stays.
    """
    expanded = (_inline(infer_shapes(model)) if model.functions else None) or model
    while (rewritten := _as_local_functions(expanded, supported)) is not None:
        inlined = _inline(rewritten)
        if inlined is None:
            break
        expanded = inlined
    return expanded


def _inline(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with local functions inlined; None if onnx cannot. The argument is used up.

    Then the calls stay and are reported, with their nodes, as unsupported operators. Bodies written
    for another opset than the graph are converted, for which onnx wants the types of all arguments.
    """
    for function in model.functions:
        _adopt_opset(function, _opset(model))
    known = {value.name for value in [*model.graph.value_info, *model.graph.input]}
    for tensor in model.graph.initializer:
        if tensor.name not in known:
            model.graph.value_info.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except RuntimeError as error:
        _log.warning("cannot inline functions of %s: %s", model.graph.name, error)
        return None


def _as_local_functions(model: onnx.ModelProto, supported: Container[str]) -> onnx.ModelProto | None:
    """The model with calls of local functions for missing standard operators; None if there are none.

    `onnx.inliner` can expand standard operators itself, but stops at those with omitted inputs.
    """
    if all(operator_name(node) in supported for node in nodes(model.graph)):
        return None
    typed = infer_shapes(model)
    types = dict(_types(typed.graph))
    opset = _opset(model)
    functions: list[onnx.FunctionProto] = []
    for node in nodes(typed.graph):
        if operator_name(node) in supported or node.domain not in ("", "ai.onnx"):
            continue
        body = _body(node, opset, types)
        if body is not None:
            body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(functions)}"
            node.domain, node.op_type = body.domain, body.name
            functions.append(body)
    if not functions:
        return None
    typed.functions.extend(functions)
    typed.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return typed


def _opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _types(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    for value in [*graph.value_info, *graph.input, *graph.output]:
        yield value.name, value.type
    for tensor in graph.initializer:
        yield tensor.name, helper.make_tensor_type_proto(tensor.data_type, tensor.dims)


def _body(node: onnx.NodeProto, opset: int, types: dict[str, onnx.TypeProto]) -> onnx.FunctionProto | None:
    """The standard's definition of this node by other operators, if there is one.

    Attributes that have defaults and were omitted are added to the node: its body refers to them.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    given = {attribute.name for attribute in node.attribute}
    defaults = [a.default_value for name, a in schema.attributes.items() if name not in given]
    node.attribute.extend(value for value in defaults if value.name)
    body = onnx.FunctionProto()
    if schema.has_function:
        version = _usable(schema.function_opset_versions, opset)
        if version:
            body.ParseFromString(schema.get_function_with_opset_version(version))
    elif schema.has_context_dependent_function and all(name in types for name in node.input if name):
        version = _usable(schema.context_dependent_function_opset_versions, opset)
        arguments = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        if version:
            serialized = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), arguments
            )
            body.ParseFromString(serialized)
    return body if body.node else None


def _usable(versions: list[int], opset: int) -> int:
    """The newest of these opsets that the model's own can stand in for; 0 if all are newer."""
    return max((version for version in versions if version <= opset), default=0)


def _adopt_opset(body: onnx.FunctionProto, opset: int) -> None:
    """Declare the body to be of the model's opset where none of its operators changed in between.

    The inliner's own conversion needs the type of every argument and stops at omitted ones.
    """
    standard = {node.op_type for node in nodes(body) if node.domain == ""}
    for entry in body.opset_import:
        if entry.domain == "" and all(
            _interface(name, entry.version) == _interface(name, opset) for name in standard
        ):
            entry.version = opset


def _interface(op_type: str, opset: int) -> tuple[object, ...] | None:
    """What a change of meaning between two versions of an operator would show in."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    defaults = {name: a.default_value.SerializeToString() for name, a in schema.attributes.items()}
    return [value.name for value in schema.inputs], [value.name for value in schema.outputs], defaults
