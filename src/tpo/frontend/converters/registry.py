"""The registry of converters and the view of an ONNX node that they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tpo.dtypes import numpy_dtype

Expr = Any
Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Result = Expr | tuple[Expr | None, ...]
Converter = Callable[["Node"], Result]

_CONVERTERS: dict[tuple[str, str], dict[int, Converter]] = {}


class Unsupported(Exception):  # noqa: N818 (it reads as a statement about the node)
    """A node is used in a way that cannot be translated; the text says which."""


@dataclass(frozen=True)
class Node:
    """One ONNX node under translation: its inputs as Relax expressions, its attributes as Python values.

    `outputs` are the names ONNX gives them, "" where nobody wants one; `version` is the opset
    version of the node's domain.
    """

    operator: str
    domain: str
    version: int
    inputs: tuple[Expr | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    builder: relax.BlockBuilder
    by_tvm: Callable[[], Expr]  # TVM's own translation of the node, for converters that only check it

    def optional(self, index: int) -> Expr | None:
        """Input `index`, or None when the node leaves it out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def input(self, index: int) -> Expr:
        """Input `index`, which must be there."""
        value = self.optional(index)
        if value is None:
            raise Unsupported(f"input {index} is missing")
        return value

    def constant(self, index: int) -> Array | None:
        """Value of input `index` when it is known now, else None."""
        return value_of(self.optional(index))

    def required_constant(self, index: int, what: str) -> Array:
        """Value of input `index`, which must be known at compile time."""
        value = self.constant(index)
        if value is None:
            raise Unsupported(f"its {what} (input {index}) must be a constant")
        return value

    def attribute(self, name: str, default: Any = None) -> Any:
        """Value of an attribute: strings as str, lists as tuples, tensors as arrays."""
        return self.attributes.get(name, default)

    def wants(self, index: int) -> bool:
        """Whether anybody uses output `index`."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def emit(self, expression: Expr) -> Expr:
        """Bind an expression to a variable, so that its type is known."""
        return expression if isinstance(expression, GenericConst) else self.builder.emit(expression)


def converter(*operators: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a converter for `operators` of `domain` from opset version `since` on."""

    def register(function: Converter) -> Converter:
        for operator in operators:
            _CONVERTERS.setdefault((domain, operator), {})[since] = function
        return function

    return register


def find(domain: str, operator: str, version: int) -> Converter | None:
    """The converter with the largest `since` that is not above `version`."""
    versions = _CONVERTERS.get((domain, operator), {})
    usable = [since for since in versions if since <= version]
    return versions[max(usable)] if usable else None


def registered() -> frozenset[tuple[str, str]]:
    """All (domain, operator) pairs that have a converter."""
    return frozenset(_CONVERTERS)


def constant(value: Any, dtype: str | None = None) -> Expr:
    """A Relax constant of `value`, converted to `dtype` when given."""
    array = np.asarray(value)
    if dtype is not None:
        array = array.astype(numpy_dtype(dtype))
    # Through a tensor, because relax.const turns int64 and float64 arrays into their 32-bit types.
    return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape)))


def value_of(expression: Expr | None) -> Array | None:
    """The numpy value of a constant expression, not to be written to; else None."""
    if not isinstance(expression, GenericConst):
        return None
    try:
        view: Array = np.from_dlpack(expression.value)  # a view: weights are large and asked for often
    except RuntimeError:  # a dtype that numpy only knows through ml_dtypes
        copy: Array = expression.value.numpy()
        return copy
    view.flags.writeable = False
    return view


def shape_of(expression: Expr) -> Shape:
    """The static shape of an expression."""
    shape = expression.ty.shape
    if shape is None:
        raise Unsupported("the shape of an input is not known at compile time")
    try:
        return tuple(int(dimension) for dimension in shape.values)
    except TypeError:
        raise Unsupported(f"an input has the dynamic shape {list(shape.values)}") from None


def rank_of(expression: Expr) -> int:
    """Number of dimensions of an expression."""
    return len(shape_of(expression))


def dtype_of(expression: Expr) -> str:
    """The dtype of an expression, as numpy spells it."""
    return str(expression.ty.dtype.dtype)


def is_float(dtype: str) -> bool:
    """Whether a dtype name is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def cast(node: Node, expression: Expr, dtype: str) -> Expr:
    """`expression` as `dtype`; constants are cast now."""
    if dtype_of(expression) == dtype:
        return expression
    value = value_of(expression)
    if value is not None:
        return constant(value, dtype)
    return node.emit(relax.op.astype(expression, dtype))


def normalise_axis(axis: int, rank: int) -> int:
    """A non-negative axis, checked against the rank."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} is outside a tensor of {rank} dimensions")
    return axis % rank if rank else 0
