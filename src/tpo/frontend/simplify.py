"""Folding constants and shape arithmetic, so that only computation is left in the graph.

This uses onnxscript's optimizer and not onnxslim. Both give right results on all models of
`tpo.testing.models`, but of the node tests in the `onnx` package onnxscript's fails on one, with
sequences, while onnxslim raises on 23 and breaks 11 (it drops graph inputs and loses values of
subgraphs). onnxscript's works on an in-memory IR that shares the weights, so that a model of hundreds of
megabytes takes a tenth of onnxslim's time; it folds `If`, and lets the caller say what to fold. What it
leaves and we do not want, Dropout of old opsets, is removed here.
"""

from __future__ import annotations

import logging
import math

import onnx
import onnx_ir as ir
from onnx_ir.passes import PassError
from onnx_ir.passes import common as passes
from onnxscript import optimizer

from tpo.frontend.shapes import infer_shapes

_MAX_ROUNDS = 8
_MAX_FILLED_ELEMENTS = 1 << 18  # ConstantOfShape up to here becomes data: initial states, masks
# The optimizer's own `optimize_ir` would add its rewrite rules, but those match constants with an
# absolute tolerance and drop the 1e-12 that keeps a LayerNorm from dividing by zero.
_TIDY = ir.passes.Sequential(
    passes.RemoveUnusedNodesPass(),
    passes.RemoveUnusedOpsetsPass(),
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    passes.LiftSubgraphInitializersToMainGraphPass(),
    passes.DeduplicateInitializersPass(),
    passes.CommonSubexpressionEliminationPass(),
    passes.OutputFixPass(),
    passes.NameFixPass(),
)
_log = logging.getLogger(__name__)


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without shape arithmetic, identities, dropouts and dead nodes, with all types inferred.

    Inputs and outputs keep their names and order. A model the optimizer cannot handle is handed on with
    its types inferred: what then cannot be imported is reported, with its operators, further on.
    """
    work = ir.from_proto(model)
    try:
        _drop_dropouts(work.graph)
        for _ in range(_MAX_ROUNDS):
            folded = optimizer.fold_constants_ir(work, onnx_shape_inference=True, should_fold=_should_fold)
            if not folded.modified:
                break
        _TIDY(work)
    except (PassError, RuntimeError) as error:
        _log.warning("%s was not simplified: %s", model.graph.name, error.__cause__ or error)
        return infer_shapes(model)
    return infer_shapes(ir.to_proto(work))


def _should_fold(node: ir.Node) -> bool | None:
    """Whether to fold a node with constant inputs; None leaves it to the optimizer."""
    if node.domain == "" and node.op_type == "ConstantOfShape" and node.inputs[0] is not None:
        shape = ir.convenience.get_const_tensor(node.inputs[0])
        return shape is not None and math.prod(shape.numpy().tolist()) <= _MAX_FILLED_ELEMENTS
    return None


def _drop_dropouts(graph: ir.Graph) -> None:
    """Make Dropout an Identity where nothing trains and nobody asks for the mask."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        if node.domain == "" and node.op_type == "Dropout" and _is_inference(node):
            source, (result, *masks) = node.inputs[0], node.outputs
            if any(mask.uses() or mask.is_graph_output() for mask in masks):
                continue
            identity = ir.node("Identity", [source], outputs=[_like(result)], name=node.name)
            ir.convenience.replace_nodes_and_values(
                node.graph, node, [node], [identity], [result], identity.outputs
            )


def _is_inference(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    mode = ir.convenience.get_const_tensor(training)
    return mode is not None and not mode.numpy().any()


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, shape=value.shape, type=value.type)
