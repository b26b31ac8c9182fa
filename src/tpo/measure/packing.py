"""Weights in the layout a schedule wants: what deployment does once, at compile time, is not timed here.

A schedule may mark blocks that only rearrange constant weights. They are taken out of the function,
which then expects packed weights, and done once before the first run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlock

from tpo.dtypes import numpy_dtype

KERNEL = "kernel"
PREPACK = f"{KERNEL}_weight_prepack"
_PACKED_KERNEL = f"{KERNEL}_prepacked"
_MARK = "meta_schedule.layout_rewrite_preproc"
# Rearranging more elements than this through index arrays takes longer than compiling the loops.
_MOST_INDEXED = 4_000_000

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SplitKernel:
    """The function to time, and which of its arguments arrive packed by `prepack`, if any do."""

    kernel: Any
    prepack: Any | None = None
    packed: tuple[int, ...] = ()


def written_parameters(func: Any) -> list[int]:
    """Positions of the parameters a function writes: its outputs."""
    written: list[Any] = []

    def note(block: Any) -> None:
        written.extend(region.source for region in block.writes)

    tvm_ffi.structural_walk(func.body, (SBlock, note))
    return [k for k, param in enumerate(func.params) if any(param.same_as(buffer) for buffer in written)]


def split_kernel(func: Any, outputs: list[int]) -> SplitKernel:
    """Take the packing of weights out of a scheduled function, by the pass that deployment uses."""
    if not _marks_packing(func):
        return SplitKernel(func)
    inputs = [k for k in range(len(func.params)) if k not in outputs]
    builder = relax.BlockBuilder()
    callee = builder.add_func(func.with_attr("global_symbol", KERNEL), KERNEL)
    variables = [relax.Var(f"p{k}", _tensor_type(func.params[k])) for k in inputs]
    types = [_tensor_type(func.params[k]) for k in outputs]
    call = relax.call_tir(callee, variables, types[0] if len(types) == 1 else types)
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(call))
    module = relax.transform.SplitLayoutRewritePreproc()(builder.get())
    return SplitKernel(module[_PACKED_KERNEL], module[PREPACK], _packed_positions(func))


def pack(split: SplitKernel, weights: list[Array], compile_prepack: Callable[[Any], Any]) -> list[Array]:
    """The packed weights; `compile_prepack` is only asked for what index arithmetic cannot do."""
    prepack: Any = split.prepack
    results = [
        np.zeros([int(dim) for dim in param.shape], numpy_dtype(str(param.dtype)))
        for param in prepack.params[len(weights) :]
    ]
    try:
        if sum(weight.size for weight in weights) > _MOST_INDEXED:
            raise _NotIndexableError
        for block in _blocks(prepack):
            _copy(block, prepack.params, [*weights, *results])
    except _NotIndexableError:
        tensors = [tvm.runtime.tensor(array) for array in (*weights, *results)]
        compile_prepack(prepack)(*tensors)
        results = [tensor.numpy() for tensor in tensors[len(weights) :]]
    return results


class _NotIndexableError(Exception):
    """A packing block is more than a copy at computed indices."""


def _copy(block: Any, params: Any, arrays: list[Array]) -> None:
    """Run `out[f(axes)] = in[g(axes)]` over all axes at once."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tvm.ir.TensorLoad):
        raise _NotIndexableError
    axes: dict[Any, Array] = {}
    for position, axis in enumerate(block.iter_vars):
        shape = [1] * len(block.iter_vars)
        shape[position] = int(axis.dom.extent)
        axes[axis.var] = np.arange(int(axis.dom.extent)).reshape(shape)
    destination = arrays[_position(params, store.buffer)]
    source = arrays[_position(params, store.value.source)]
    read = np.broadcast_arrays(*(_evaluate(index, axes) for index in store.value.indices))
    write = np.broadcast_arrays(*(_evaluate(index, axes) for index in store.indices))
    destination[tuple(write)] = source[tuple(read)]


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
}


def _evaluate(expr: Any, axes: dict[Any, Array]) -> Any:
    if isinstance(expr, tirx.Var):
        found = next((values for var, values in axes.items() if var.same_as(expr)), None)
        if found is not None:
            return found
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    operation = _ARITHMETIC.get(type(expr))
    if operation is None:
        raise _NotIndexableError
    return operation(_evaluate(expr.a, axes), _evaluate(expr.b, axes))


def _blocks(func: Any) -> list[Any]:
    """All blocks of a function but the root."""
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (SBlock, lambda block: found.append(block)))
    return [block for block in found if block.name_hint != "root"]


def _marks_packing(func: Any) -> bool:
    return any(_MARK in block.annotations for block in _blocks(func))


def _packed_positions(func: Any) -> tuple[int, ...]:
    """Parameters that packing blocks read, in program order: the order of the prepack function's own."""
    marked = [block for block in _blocks(func) if _MARK in block.annotations]
    return tuple(_position(func.params, block.reads[0].source) for block in marked)


def _position(params: Any, buffer: Any) -> int:
    return next(k for k, param in enumerate(params) if param.same_as(buffer))


def _tensor_type(param: Any) -> Any:
    return relax.TensorType([int(dim) for dim in param.shape], str(param.dtype))
