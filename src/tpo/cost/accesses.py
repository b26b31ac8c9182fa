"""What a block reads and writes, as indices in its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import tirx

from tpo.cost.blocks import Nest
from tpo.cost.loops import Index
from tpo.hardware import dtype_bytes


@dataclass(frozen=True)
class Access:
    """A part of a buffer that a block reads or writes: so many elements from each index on.

    An intermediate buffer that only nests inside the first `home` loops use is as small as these let it be.
    What is in between may have another `shape` for another candidate.
    """

    buffer: Any
    indices: tuple[Index, ...]
    sizes: tuple[float, ...]
    shape: tuple[float, ...]
    dtype: str
    written: bool
    in_registers: bool  # it is meant to never be in memory
    packed: bool = False  # its layout will be that of the loops
    home: int = 0
    in_between: bool = False

    @cached_property
    def bytes(self) -> float:
        """Of one element."""
        return float(dtype_bytes(self.dtype))

    @cached_property
    def elements(self) -> float:
        """That one visit of the block touches."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class _Dim:
    index: Index
    size: float
    shape: float

    @classmethod
    def of(cls, nest: Nest, region: Any, shape: Any) -> _Dim:
        if not isinstance(region.extent, tirx.IntImm):  # TVM knows no better than some expression
            return cls(Index("unknown"), 1.0, float(int(shape)))
        return cls(nest.block.index(region.min), float(int(region.extent)), float(int(shape)))


def accesses_of(nest: Nest, homes: Mapping[Any, int], packed: Sequence[Any]) -> list[Access]:
    """What a nest reads and writes, the first one being written; what it adds to is not read as well."""
    found: list[Access] = []
    for written, regions in ((True, nest.stmt.writes), (False, nest.stmt.reads)):
        for region in regions:
            buffer = region.source
            if not written and any(buffer.same_as(known.buffer) for known in found if known.written):
                continue
            dims = [_Dim.of(nest, at, size) for at, size in zip(region.region, buffer.shape, strict=True)]
            dims = [dim for dim in dims if dim.shape > 1 or not dim.index.is_constant]
            found.append(
                Access(
                    buffer,
                    tuple(dim.index for dim in dims),
                    tuple(dim.size for dim in dims),
                    tuple(dim.shape for dim in dims),
                    str(buffer.dtype),
                    written,
                    str(buffer.scope()) == "local",
                    any(buffer.same_as(other) for other in packed),
                    homes.get(buffer, 0),
                    buffer in homes,
                )
            )
    return found
