"""Checking arrays against what a model declares, with errors that say how to fix them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tpo.dtypes import numpy_dtype
from tpo.errors import InputError

Array = npt.NDArray[Any]


class Spec(Protocol):
    """What is known of an input: satisfied by `manifest.Tensor` and `frontend.model.TensorSpec`."""

    @property
    def name(self) -> str:
        """Name in the ONNX model."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Fixed dimensions, () for a scalar."""

    @property
    def dtype(self) -> str:
        """Name as numpy or ml_dtypes spell it."""


def bind(specs: Sequence[Spec], args: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """Positional and named values as checked, contiguous arrays in the model's order."""
    if len(args) > len(specs):
        raise _wrong(
            specs, specs[-1].name if specs else "", f"{len(args)} inputs were given, {len(specs)} expected"
        )
    known = {spec.name for spec in specs}
    for name in named:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f", did you mean {close[0]!r}?" if close else ""
            raise _wrong(specs, name, f"the model has no such input{meant}")
    values = dict(zip((spec.name for spec in specs), args, strict=False))
    for name in named:
        if name in values:
            raise _wrong(specs, name, "it was given twice, by position and by name")
    values.update(named)
    for spec in specs:
        if spec.name not in values:
            raise _wrong(specs, spec.name, "it is missing")
    return [as_array(specs, spec, values[spec.name]) for spec in specs]


def as_array(specs: Sequence[Spec], spec: Spec, value: Any) -> Array:
    """One value as a contiguous array of exactly the declared shape and dtype.

    Arrays are never converted, since that would hide a mistake. Plain Python numbers and lists have
    no dtype of their own and take the declared one, as long as no integer or boolean changes its value.
    """
    wanted = numpy_dtype(spec.dtype)
    has_dtype = hasattr(value, "dtype") or hasattr(value, "__array__")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _wrong(specs, spec.name, f"it is not a rectangular array ({error})") from error
    if not has_dtype:
        array = _from_python(specs, spec, array, wanted)
    if array.dtype != wanted:
        why = f"it has dtype {array.dtype}, expected {spec.dtype}: convert it with .astype({spec.dtype!r})"
        raise _wrong(specs, spec.name, why)
    if array.shape != tuple(spec.shape):
        raise _wrong(specs, spec.name, f"it has shape {_show(array.shape)}, expected {_show(spec.shape)}")
    # ascontiguousarray would turn a scalar into an array of one dimension.
    return array if array.flags.c_contiguous else array.copy(order="C")


def _from_python(specs: Sequence[Spec], spec: Spec, array: Array, wanted: np.dtype[Any]) -> Array:
    if array.size == 0 and 0 in spec.shape:
        return array.astype(wanted)
    # ml_dtypes are of kind "V" for numpy; those that can be inputs of a model are all floats or integers.
    order = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2}
    source, goal = order.get(array.dtype.kind), order.get(wanted.kind)
    if source is None or goal is None or source > goal or (goal > 0 and source == 0):
        why = f"a list or number of kind {array.dtype} cannot become {spec.dtype}: give a numpy array"
        raise _wrong(specs, spec.name, why)
    with np.errstate(over="ignore"):
        converted = array.astype(wanted)
    if source < 2 and not np.array_equal(converted.astype(array.dtype), array):
        raise _wrong(specs, spec.name, f"a value does not fit {spec.dtype}")
    return converted


def _show(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _wrong(specs: Sequence[Spec], name: str, why: str) -> InputError:
    return InputError(name=name, why=why, inputs=", ".join(map(str, specs)) or "no inputs")
