"""Fixing the sizes of every model input, and inferring what follows from them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tpo.errors import (
    ShapeConflictError,
    ShapeSyntaxError,
    UnknownDimensionError,
    UnknownInputError,
    UnresolvedShapeError,
    UnsupportedInputError,
    UnsupportedModelError,
)
from tpo.frontend.model import TensorSpec

_MAX_SIZE = 2**31 - 1
_MAX_SHAPE_SIZE = 256  # a constant with more elements is data, and its values tell inference nothing
# A leading dimension with such a name is not a batch, and a silent 1 would be a wrong model.
_NOT_A_BATCH = re.compile(r"seq|len|time|step|token|frame|height|width|(^|_)[htw]($|_)", re.IGNORECASE)


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by input name, from command line arguments.

    >>> parse_shapes(["x=1,3,224,224", "scale=scalar"])
    {'x': (1, 3, 224, 224), 'scale': ()}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not equals or not name.strip():
            raise ShapeSyntaxError(text=text, why="there is no NAME= in front")
        name = name.strip()
        if name in shapes:
            raise ShapeSyntaxError(text=text, why=f"input {name!r} was already given")
        shape = () if sizes.strip() == "scalar" else tuple(_size(text, part) for part in sizes.split(","))
        shapes[name] = shape
    return shapes


def _size(text: str, part: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", part.strip(), re.ASCII):
        raise ShapeSyntaxError(text=text, why=f"{part.strip()!r} is not a whole number")
    return _checked(text, int(part))


def _checked(text: str, size: int) -> int:
    if size <= 0:
        raise ShapeSyntaxError(text=text, why=f"size {size} is not positive")
    if size > _MAX_SIZE:
        raise ShapeSyntaxError(text=text, why=f"size {size} is too large")
    return size


@dataclass
class _Input:
    """An input as the model declares it; sizes are numbers, names, or "" for neither."""

    name: str
    dims: list[int | str] | None

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.name}[of unknown rank]"
        return f"{self.name}[{','.join(str(dim) or '?' for dim in self.dims)}]"


def fix_shapes(
    model: onnx.ModelProto,
    path: str | Path,
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """The model with every input dimension a number; `dimensions` are sizes by name.

    A size given for one input holds for all dimensions of that name. A leading dynamic dimension is
    taken for the batch and becomes 1; any other that stays open is an error that says what to give.
    Initializers that are also declared as inputs stop being inputs, so that they count as constant.
    """
    values = _input_values(model)
    inputs = [_declared(value, path) for value in values]
    for name in dimensions or {}:
        if not any(name in (one.dims or ()) for one in inputs):
            raise UnknownDimensionError(path=path, name=name, inputs=", ".join(map(str, inputs)) or "none")
    sizes = _default_batches(inputs, _sizes_by_name(inputs, shapes, dimensions or {}))
    resolved = {one.name: _resolve(one, shapes.get(one.name), sizes) for one in inputs}
    _refuse_unresolved(inputs, resolved, path)

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    fixed.ir_version = max(fixed.ir_version, 4)  # before 4 every initializer had to be an input
    del fixed.graph.input[:]
    for value in values:
        dtype = value.type.tensor_type.elem_type
        fixed.graph.input.append(helper.make_tensor_value_info(value.name, dtype, resolved[value.name]))
    _carry_over(fixed.graph, inputs, resolved)
    return fixed


def _input_values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _declared(value: onnx.ValueInfoProto, path: str | Path) -> _Input:
    kind = value.type.WhichOneof("value") or "untyped"
    tensor = value.type.tensor_type
    if kind != "tensor_type":
        said = f"not a tensor but of kind {kind.removesuffix('_type')!r}"
        raise UnsupportedInputError(path=path, name=value.name, kind=said)
    if tensor.elem_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        element = "strings" if tensor.elem_type == TensorProto.STRING else "an undeclared type"
        raise UnsupportedInputError(path=path, name=value.name, kind=f"a tensor of {element}")
    if not tensor.HasField("shape"):
        return _Input(value.name, None)
    # Some exporters write a dynamic size as 0 or -1.
    return _Input(value.name, [d.dim_value if d.dim_value > 0 else d.dim_param for d in tensor.shape.dim])


def _sizes_by_name(
    inputs: list[_Input], shapes: Mapping[str, Sequence[int]], dimensions: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the named dimensions, given or decided by given shapes; contradictions are errors."""
    by_name = {one.name: one for one in inputs}
    sizes = dict(dimensions)
    decided_by = dict.fromkeys(dimensions, "")
    for name, shape in shapes.items():
        if name not in by_name:
            raise UnknownInputError(name=name, inputs=", ".join(map(str, inputs)) or "none")
        one = by_name[name]
        given = f"{name}={','.join(map(str, shape)) or 'scalar'}"

        def conflict(why: str, one: _Input = one, given: str = given) -> ShapeConflictError:
            return ShapeConflictError(given=given, name=one.name, why=why, declared=str(one))

        for size in shape:
            _checked(given, size)
        if one.dims is None:
            continue
        if len(one.dims) != len(shape):
            raise conflict(f"it has {len(shape)} dimensions and the input has {len(one.dims)}")
        for axis, (dim, size) in enumerate(zip(one.dims, shape, strict=True)):
            if isinstance(dim, int):
                if dim != size:
                    raise conflict(f"dimension {axis} is {dim} in the model")
            elif dim:
                if sizes.setdefault(dim, size) != size:
                    where = f" in input {decided_by[dim]!r}" if decided_by[dim] else ""
                    raise conflict(f"dimension {dim!r} is {sizes[dim]}{where}")
                decided_by.setdefault(dim, name)
    return sizes


def _resolve(one: _Input, given: Sequence[int] | None, sizes: dict[str, int]) -> list[int | str] | None:
    """The input's dimensions with all that is known filled in; strings remain where nothing is."""
    if given is not None:
        return list(given)
    if one.dims is None:
        return None
    resolved: list[int | str] = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in one.dims]
    if resolved and resolved[0] == "":
        resolved[0] = 1
    return resolved


def _default_batches(inputs: list[_Input], sizes: dict[str, int]) -> dict[str, int]:
    """The sizes with 1 for every leading name that means a batch, wherever else it occurs."""
    leading = {one.dims[0] for one in inputs if one.dims and isinstance(one.dims[0], str)}
    return {**{dim: 1 for dim in leading if dim and _is_batch(dim, inputs)}, **sizes}


def _is_batch(dim: str, inputs: list[_Input]) -> bool:
    """Whether a leading dimension of this name is a batch: no other position or meaning speaks against."""
    if "batch" in dim.lower():
        return True
    elsewhere = any(dim in (one.dims or [])[1:] for one in inputs)
    return not elsewhere and not _NOT_A_BATCH.search(dim)


def _refuse_unresolved(
    inputs: list[_Input], resolved: dict[str, list[int | str] | None], path: str | Path
) -> None:
    flags, covered, dynamic = [], set(), []
    for one in inputs:
        dims = resolved[one.name]
        open_dims = [""] if dims is None else [dim for dim in dims if isinstance(dim, str)]
        if not open_dims:
            continue
        dynamic.append(str(one))
        if any(not dim or dim not in covered for dim in open_dims):
            sizes = ["SIZES"] if dims is None else [_placeholder(dim) for dim in dims]
            flags.append(f"--shape {one.name}={','.join(sizes)}")
        covered.update(open_dims)
    if dynamic:
        raise UnresolvedShapeError(path=path, inputs=", ".join(dynamic), flags=" ".join(flags))


def _placeholder(dim: int | str) -> str:
    return str(dim) if isinstance(dim, int) else re.sub(r"\W+", "_", dim.upper()).strip("_") or "N"


def _carry_over(graph: onnx.GraphProto, inputs: list[_Input], resolved: Mapping[str, Any]) -> None:
    """Forget shapes written for dynamic inputs; in the outputs, fill in the names that are now known."""
    del graph.value_info[:]
    sizes: dict[int | str, int] = {}
    for one in inputs:
        sizes.update(zip(one.dims or [], resolved[one.name], strict=False))
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            name = dim.dim_param
            if name or dim.dim_value <= 0:
                dim.Clear()
            if name and name in sizes:
                dim.dim_value = sizes[name]


# Inference -------------------------------------------------------------------------------------


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of all values that follow from its inputs."""
    inferred = _infer(model)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:], result.graph.output[:]
    result.graph.value_info.extend(inferred.value_info)
    result.graph.output.extend(inferred.output)
    return result


def _infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with inferred types but without its large weights, whose values inference never needs.

    For a model of several hundred megabytes that saves as many copies; above 2 GB it is the only way.
    Inferred output shapes replace declared ones, which exporters are known to get wrong.
    """
    skeleton = onnx.ModelProto(ir_version=model.ir_version, functions=model.functions)
    skeleton.opset_import.extend(model.opset_import)
    graph = skeleton.graph
    graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _MAX_SHAPE_SIZE:
            graph.initializer.append(tensor)
        else:
            graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True).graph
    for value, declared in zip(inferred.output, model.graph.output, strict=True):
        if not _is_static(value):
            value.CopyFrom(declared)
    return inferred


def _is_static(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def signature(
    model: onnx.ModelProto, path: str | Path = "the model"
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a model whose input shapes are fixed."""
    inputs = tuple(_spec(value, model, path) for value in _input_values(model))
    outputs = tuple(_spec(value, model, path) for value in _infer(model).output)
    return inputs, outputs


def _spec(value: onnx.ValueInfoProto, model: onnx.ModelProto, path: str | Path) -> TensorSpec:
    tensor = value.type.tensor_type
    if not _is_static(value) or tensor.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        producer = next((node for node in model.graph.node if value.name in node.output), onnx.NodeProto())
        raise UnsupportedModelError(
            path=path,
            operator=producer.op_type or "the",
            node=producer.name or value.name,
            why=f"the shape or type of output {value.name!r} is not known before the model runs",
        )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return TensorSpec(value.name, tuple(dim.dim_value for dim in tensor.shape.dim), dtype.name)
