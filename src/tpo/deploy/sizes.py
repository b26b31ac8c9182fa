"""Which of an artifact's buckets takes given inputs, and inputs between two sizes filled up to the larger."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpo.deploy.inputs import Array, bind
from tpo.deploy.manifest import Bucket, Manifest, Tensor
from tpo.errors import InputError


@dataclass(frozen=True)
class Fitted:
    """Arrays as a bucket takes them; `length` is how much of its dimension they really have."""

    bucket: Bucket
    arrays: list[Array]
    length: int


class Sizes:
    """The buckets of a manifest that has some."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.buckets = manifest.buckets
        first, last = self.buckets[0], self.buckets[-1]
        self._axes = {one.name: _differing(one, other) for one, other in _pairs(first.inputs, last.inputs)}
        self._cut = [_differing(one, other) for one, other in _pairs(first.outputs, last.outputs)]

    def fit(self, args: Sequence[Any], named: Mapping[str, Any]) -> Fitted:
        """The inputs of a call, checked, for the smallest bucket that takes them."""
        length = self._length(args, named)
        bucket = next((one for one in self.buckets if one.size >= length), None)
        exact = bucket is not None and bucket.size == length
        if bucket is None or not (exact or self.manifest.padded):
            raise self._refused(length)
        if exact:
            return Fitted(bucket, bind(bucket.inputs, args, named), length)
        arrays = bind(self.inputs_of(length), args, named)
        filled = [self._filled(spec, array) for spec, array in zip(bucket.inputs, arrays, strict=True)]
        return Fitted(bucket, filled, length)

    def inputs_of(self, length: int) -> tuple[Tensor, ...]:
        """What inputs of a length look like."""
        return tuple(
            spec.model_copy(update={"shape": _resized(spec.shape, self._axes[spec.name], length)})
            for spec in self.buckets[-1].inputs
        )

    def cropped(self, fitted: Fitted, results: list[Array]) -> list[Array]:
        """Results without what belongs to nobody's input."""
        if fitted.length == fitted.bucket.size:
            return results
        return [
            result[tuple(slice(fitted.length if k in axes else None) for k in range(result.ndim))]
            for result, axes in zip(results, self._cut, strict=True)
        ]

    def tried(self) -> list[tuple[Tensor, ...]]:
        """Inputs that between them use every bucket, filled up and not."""
        found = [bucket.inputs for bucket in self.buckets]
        if self.manifest.padded:
            found += [self.inputs_of(length) for length in self.between()]
        return found

    def between(self) -> list[int]:
        """A length between every two sizes, and one below the smallest, where there is one."""
        sizes = [0, *(bucket.size for bucket in self.buckets)]
        middles = [(low + high + 1) // 2 for low, high in itertools.pairwise(sizes)]
        return [middle for middle in middles if middle not in sizes]

    def can_crop(self) -> bool:
        """Whether results grow with the inputs, element by element: else nobody knows what to leave out."""
        pairs = zip(*(bucket.outputs for bucket in self.buckets), strict=True)
        return all(
            specs[k].shape[axis] == bucket.size
            for specs, axes in zip(pairs, self._cut, strict=True)
            for axis in axes
            for k, bucket in enumerate(self.buckets)
        )

    def _length(self, args: Sequence[Any], named: Mapping[str, Any]) -> int:
        """How long the inputs are, by the first that tells; of wrong inputs `bind` says what is wrong."""
        names = [spec.name for spec in self.manifest.inputs]
        for name, value in (*zip(names, args, strict=False), *named.items()):
            axes, shape = self._axes.get(name, ()), np.shape(value)
            if axes and len(shape) > axes[0]:
                return int(shape[axes[0]])
        return self.buckets[-1].size

    def _filled(self, spec: Tensor, array: Array) -> Array:
        filled = np.zeros(spec.shape, array.dtype)
        filled[tuple(slice(size) for size in array.shape)] = array
        return filled

    def _refused(self, length: int) -> InputError:
        sizes = ", ".join(str(bucket.size) for bucket in self.buckets)
        which = f"up to {self.buckets[-1].size}" if self.manifest.padded else f"of {sizes}"
        name = next(name for name, axes in self._axes.items() if axes)
        why = f"its {self.manifest.dimension} is {length}, and the library takes those {which}"
        return InputError(name=name, why=why, inputs=", ".join(map(str, self.manifest.inputs)))


def _pairs(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(one, other, strict=True))


def _differing(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """Axes of different sizes."""
    return tuple(
        k for k, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if sizes[0] != sizes[1]
    )


def _resized(shape: tuple[int, ...], axes: tuple[int, ...], length: int) -> tuple[int, ...]:
    return tuple(length if k in axes else size for k, size in enumerate(shape))
