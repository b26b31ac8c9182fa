"""Translate a static-shape ONNX model into a Relax module whose weights are constants.

The walk over the graph is ours; an operator is translated by `tpo.frontend.converters` when it has
a converter there, else by TVM's ONNX frontend.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import onnx
import tvm
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tpo.errors import UnsupportedInputError, UnsupportedModelError
from tpo.frontend import converters
from tpo.frontend.converters import folding
from tpo.frontend.converters.registry import Result, constant, dtype_of, value_of

# What TVM lists but tpo does not offer: operators of other domains that TVM does not tell apart, results
# that are no tensor of fixed shape, and Attention, whose function body is better than TVM's translation
# of com.microsoft's operator of that name.
_NOT_OFFERED = frozenset(
    {
        "AllClassNMS",
        "Attention",
        "BiasGelu",
        "ConcatFromSequence",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "NonMaxSuppression",
        "NonZero",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SkipLayerNormalization",
        "SplitToSequence",
        "Unique",
    }
)
# Arithmetic that loses digits in 16 bits: computed in float32 between two casts, as ONNX Runtime does.
_WIDENED = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Exp",
        "Gelu",
        "Gemm",
        "GroupNormalization",
        "InstanceNormalization",
        "LogSoftmax",
        "MatMul",
        "Mish",
        "Pow",
        "ReduceMean",
        "ReduceSum",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Swish",
        "Tanh",
    }
)
_HALF = frozenset({"float16", "bfloat16"})
_NO_NUMBERS = frozenset({onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING})
_REASON_LENGTH = 200


def import_model(model: onnx.ModelProto, path: str) -> tvm.IRModule:
    """The Relax module of `model`: `main` takes the graph's inputs in order and returns its outputs.

    `path` is only used in error messages.
    """
    importer = _Importer(model, path)
    # TVM's frontend prints and warns about what we report ourselves.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return importer.from_onnx(model.graph, importer.versions.get("", 1))
        except UnsupportedModelError:
            # The builder has one block open here, and would complain about it on stderr when it dies.
            importer.bb._end_block()
            raise


def supported_operators() -> frozenset[str]:
    """Names of the operators that can be translated; those outside ai.onnx as `domain::Operator`."""
    ours = {f"{domain}::{name}" if domain else name for domain, name in converters.registered()}
    theirs = set(onnx_frontend._get_convert_map()) - _NOT_OFFERED
    return frozenset(ours | theirs | folding.FOLDED_ONLY)


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer with our walk over the nodes, our converters first, and our errors."""

    def __init__(self, model: onnx.ModelProto, path: str) -> None:
        super().__init__(shape_dict={}, dtype_dict=None)
        self.path = path
        self.versions = {_domain(entry.domain): int(entry.version) for entry in model.opset_import}

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._nodes[tensor.name] = constant(numpy_helper.to_array(tensor))

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        taken: set[str] = set()
        for value in graph.input:
            if value.name in self._nodes:
                continue
            if not value.type.HasField("tensor_type") or value.type.tensor_type.elem_type in _NO_NUMBERS:
                kind = (value.type.WhichOneof("value") or "untyped").removesuffix("_type")
                kind = "a tensor of strings" if kind == "tensor" else f"a {kind}"
                raise UnsupportedInputError(path=self.path, name=value.name, kind=kind)
            tensor = value.type.tensor_type
            shape = [int(dimension.dim_value) for dimension in tensor.shape.dim]
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            variable = relax.Var(_identifier(value.name, taken), relax.TensorType(shape, dtype))
            self._nodes[value.name] = self._inputs[value.name] = variable
            self._num_input += 1

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing to do here: the support stage has reported all of them at once before import."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            try:
                outputs = self._translate(node)
            except Exception as error:  # TVM's converters raise anything; all become one kind of error.
                raise UnsupportedModelError(
                    path=self.path,
                    operator=node.op_type,
                    node=node.name or node.output[0],
                    why=_reason(error),
                ) from error
            for name, output in zip(node.output, outputs, strict=False):
                if name and output is not None:
                    self._nodes[name] = output
        for value in graph.output:
            kind = value.type.WhichOneof("value") or "tensor_type"
            known = value_of(self._nodes[value.name])
            why = ""
            if kind != "tensor_type":
                why = f"a {kind.removesuffix('_type')} is not supported"
            elif known is not None and known.size == 0:
                why = "tensors without elements are not supported"
            if why:
                raise UnsupportedModelError(path=self.path, operator="the output", node=value.name, why=why)

    def _translate(self, proto: onnx.NodeProto) -> tuple[Any, ...]:
        version = self.versions.get(_domain(proto.domain), 1)
        inputs = tuple(self._nodes[name] if name else None for name in proto.input)
        known = folding.folded(proto, inputs, version)
        if known is not None:
            return tuple(constant(known[name]) if name else None for name in proto.output)
        halves = {dtype_of(value) for value in inputs if value is not None} & _HALF
        if len(halves) == 1 and proto.op_type in _WIDENED:
            (half,) = halves
            wide = tuple(self._as_type(value, half, "float32") for value in inputs)
            outputs = self._convert(proto, version, wide)
            return tuple(self._as_type(output, "float32", half) for output in outputs)
        return self._convert(proto, version, inputs)

    def _as_type(self, value: Any, source: str, target: str) -> Any:
        """`value` cast to `target` if it is of type `source`."""
        if value is None or dtype_of(value) != source:
            return value
        known = value_of(value)
        return self.bb.emit(relax.op.astype(value, target)) if known is None else constant(known, target)

    def _convert(self, proto: onnx.NodeProto, version: int, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        domain = _domain(proto.domain)
        node = converters.Node(
            operator=proto.op_type,
            domain=domain,
            version=version,
            inputs=inputs,
            attributes=_attributes(proto),
            outputs=tuple(proto.output),
            builder=self.bb,
            by_tvm=partial(self._convert_by_tvm, proto, inputs),
        )
        convert = converters.find(domain, proto.op_type, version)
        result = node.by_tvm() if convert is None else convert(node)
        return self._outputs(result, len(proto.output))

    def _convert_by_tvm(self, proto: onnx.NodeProto, inputs: tuple[Any, ...]) -> Any:
        if proto.op_type in folding.FOLDED_ONLY:
            raise converters.Unsupported("its inputs must be constants")
        known = set(onnx_frontend._get_convert_map()) - _NOT_OFFERED
        if _domain(proto.domain) or proto.op_type not in known:
            raise converters.Unsupported("there is no translation for this operator")
        attributes = self._parse_attr(proto.attribute)
        attributes["tvm_custom"] = {"name": proto.name, "num_outputs": len(proto.output)}
        return self._convert_operator(proto.op_type, onnx_frontend.onnx_input(inputs), attributes, self.opset)

    def _outputs(self, result: Result, count: int) -> tuple[Any, ...]:
        """The outputs one by one, each bound to a variable or a constant."""
        if isinstance(result, tuple):
            return tuple(None if item is None else self._bound(item) for item in result)
        if isinstance(result, relax.Tuple):
            return tuple(self._bound(item) for item in result.fields)
        value = self._bound(result)
        if isinstance(value.ty, relax.TupleType):
            return tuple(self.bb.emit(relax.TupleGetItem(value, index)) for index in range(count))
        return (value,)

    def _bound(self, expression: Any) -> Any:
        if isinstance(expression, (relax.Var, tvm.ir.GenericConst)):
            return expression
        return self.bb.emit(expression)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _identifier(name: str, taken: set[str]) -> str:
    """A valid, unused variable name that resembles `name`."""
    stem = re.sub(r"\W", "_", name, flags=re.ASCII)
    stem = stem if stem and not stem[0].isdigit() else f"input_{stem}"
    unique, count = stem, 0
    while unique in taken:
        count += 1
        unique = f"{stem}_{count}"
    taken.add(unique)
    return unique


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    """Attributes as plain Python: str for strings, tuples for lists, numpy arrays for tensors."""
    return {
        attribute.name: _plain(onnx.helper.get_attribute_value(attribute)) for attribute in node.attribute
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value


def _reason(error: Exception) -> str:
    """The gist of an error of any kind, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else type(error).__name__
    return text if len(text) <= _REASON_LENGTH else text[:_REASON_LENGTH] + "..."
