"""What follows from one nest of loops, for all candidates at once: vectors, registers, caches and threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.ir import Call

from tpo.cost.accesses import Access
from tpo.cost.blocks import Nest
from tpo.cost.columns import Number, at_most, both, ceil_div, equal, maximum, minimum, product, where
from tpo.cost.loops import Loop
from tpo.hardware import Hardware
from tpo.lang import analysis

MATH_FLOPS = 16.0  # arithmetic that an exp or an erf is worth
UNITS, LATENCY = 2.0, 4.0  # arithmetic units of a core, and cycles until a result can be used
LOADS = 2.0  # of vectors, in a cycle
BYTES_PER_CYCLE = (32.0, 12.0, 6.0)  # from L2, from L3, from memory
USABLE = 0.8  # of a cache: the rest holds what nobody has counted
PARALLEL, VECTORIZE, UNROLL = (f"meta_schedule.{k}" for k in ("parallel", "vectorize", "unroll_explicit"))

Marks = Mapping[str, Number]


@dataclass
class NestModel:
    """One nest and what follows from it.

    `marks` are what TVM's postprocessors are asked to do, if at all; `in_turn` says of each loop whether some
    nest inside sums over it.
    """

    nest: Nest
    accesses: list[Access]
    hw: Hardware
    marks: Marks
    in_turn: Sequence[bool]

    def __post_init__(self) -> None:
        self._widths: dict[tuple[int, int], Number] = {}
        self._kinds: dict[int, str] = {}

    # Loops ----------------------------------------------------------------------------------------

    @cached_property
    def depth(self) -> int:
        """Loops around the block."""
        return len(self.nest.loops)

    @cached_property
    def extents(self) -> list[Number]:
        """Of its loops."""
        return [loop.extent for loop in self.nest.loops]

    @cached_property
    def points(self) -> Number:
        """Visits of the block."""
        return product(self.extents)

    @cached_property
    def is_marked(self) -> bool:
        """Whether TVM's postprocessors decide about threads, vectors and unrolling."""
        return PARALLEL in self.marks

    @cached_property
    def parallel(self) -> Number:
        """Pieces that threads take."""
        return self._pieces[0]

    @cached_property
    def piece_bytes(self) -> Number:
        """What one of them touches."""
        return self._pieces[1]

    @cached_property
    def _pieces(self) -> tuple[Number, Number]:
        if not self.is_marked:
            several = [k for k, kind in enumerate(self.nest.kinds) if kind == "parallel"]
            inside = several[-1] + 1 if several else 0
            return product([self.extents[k] for k in several]), self.footprints[inside]
        if self._is_flat:
            pieces = ceil_div(self.points, self.lanes)
            return pieces, self.footprints[0] / pieces
        pieces = 1.0
        size: Number = self.footprints[0]
        more: Number = 1.0
        for k, extent in enumerate(self.extents):
            if self.in_turn[k]:
                break
            if k == self.depth - 1:  # unless it is for vectors
                extent = extent / self.lanes
            pieces = where(more, pieces * extent, pieces)
            size = where(more, self.footprints[k + 1], size)
            if not self.nest.single[k]:
                break
            more = both(more, at_most(pieces, self.marks[PARALLEL]))
        return pieces, size

    @cached_property
    def lanes(self) -> Number:
        """Elements that one visit handles side by side, as far as the program says."""
        if not self.is_marked:
            vectors = [e for e, k in zip(self.extents, self.nest.kinds, strict=True) if k == "vectorized"]
            return product([*vectors, *([] if vectors else self.accesses[0].sizes)])
        if not self.depth or self.nest.summed[-1] or not self.nest.single[-1]:
            return 1.0
        most = self.marks.get(VECTORIZE, 1.0)
        if self._is_flat:
            return most
        return where(at_most(self.extents[-1], most), self.extents[-1], 1.0)

    @cached_property
    def _is_flat(self) -> bool:
        """Whether all loops are one over contiguous memory: TVM then cuts it for vectors and threads."""
        axes = [value.value for value in self.nest.block.values if value.kind == "Var"]
        if len(axes) != self.depth or any(self.nest.summed) or not all(self.nest.single):
            return False
        pairs = zip(axes, self.nest.loops, strict=True)
        if not all(axis in loop.along or loop.extent == 1.0 for axis, loop in pairs):
            return False
        for access in self.accesses:
            used = [index.value for index in access.indices if index.kind == "Var"]
            plain = all(index.kind in ("Var", "IntImm") for index in access.indices)
            if not plain or used != sorted(used):
                return False
        return True

    @cached_property
    def tile(self) -> int:
        """The depth from which on nothing is summed: the loops whose results are wanted in registers."""
        summed = [k for k, is_summed in enumerate(self.nest.summed) if is_summed]
        return summed[-1] + 1 if summed else self._straight

    @cached_property
    def _straight(self) -> int:
        """The depth from which on all loops were made straight code."""
        start = self.depth
        while start and self.nest.kinds[start - 1] in ("vectorized", "unrolled"):
            start -= 1
        return min(start, max(0, self.depth - 1)) if self.is_marked else start

    @cached_property
    def steps(self) -> Number:
        """Vectors of the innermost piece of straight code."""
        if not self.is_marked:
            return product(self.extents[self._straight :]) * self._elements_per_visit / self.useful_lanes
        steps: Number = ceil_div(self.lanes, self.hw_lanes)
        if not any(self.nest.summed):  # TVM does not unroll these
            return steps
        limit = self.marks.get(UNROLL, 0.0)
        fits: Number = 1.0
        for extent in (self.extents[-1] / self.lanes, *reversed(self.extents[:-1])):
            fits = both(fits, at_most(steps * extent, limit))
            steps = where(fits, steps * extent, steps)
        return steps

    # Vectors and registers ------------------------------------------------------------------------

    @cached_property
    def hw_lanes(self) -> float:
        """Elements of what it writes in one vector register."""
        return float(self.hw.lanes(self.accesses[0].dtype))

    @cached_property
    def useful_lanes(self) -> Number:
        """Elements that one instruction handles."""
        if self.kind(self.accesses[0]) == "strided":
            return 1.0
        return minimum(maximum(self.lanes, 1.0), self.hw_lanes)

    def kind(self, access: Access) -> str:
        """What a step of the innermost loop does to an access."""
        if id(access) not in self._kinds:
            self._kinds[id(access)] = self._find_kind(access)
        return self._kinds[id(access)]

    def _find_kind(self, access: Access) -> str:
        if self._elements_per_visit > 1:
            return "contiguous" if access.elements >= self._elements_per_visit else "broadcast"
        if not self.depth:
            return "broadcast"
        axes = self._axes_of(self.nest.loops[-1:])
        # Dimensions that stand still inside the buffer's home are not there: it is made to fit.
        inside = self._axes_of(self.nest.loops[access.home :])
        indices = [index for index in access.indices if not access.home or index.keys() & inside]
        if not any(index.keys() & axes for index in indices):
            return "broadcast"
        last = indices[-1]
        return "contiguous" if last.keys() & axes and not last.steps_over(axes) else "strided"

    def _axes_of(self, loops: Sequence[Loop]) -> set[int]:
        """The axes that some loops move along."""
        roots = {root for loop in loops for root in loop.along}
        return {axis for axis, value in enumerate(self.nest.block.values) if value.keys() & roots}

    def registers(self, access: Access) -> Number:
        """Vector registers, or loads, for what the tile touches of a buffer."""
        elements = self.elements(access, self.tile)
        if self._elements_per_visit > 1:
            return elements / access.elements
        if self.kind(access) != "contiguous":
            return elements
        return ceil_div(elements, minimum(maximum(self.lanes, 1.0), float(self.hw.lanes(access.dtype))))

    @cached_property
    def accumulators(self) -> Number:
        """Registers for the results of the tile."""
        return sum((self.registers(access) for access in self.accesses if access.written), start=0.0)

    @cached_property
    def vector_loads(self) -> Number:
        """Registers that are loaded for one visit of the tile."""
        found = [self.registers(a) for a in self.accesses if not a.written and self.kind(a) == "contiguous"]
        return sum(found, start=0.0)

    @cached_property
    def scalar_loads(self) -> Number:
        """Elements that are loaded one by one for one visit of the tile."""
        found = [self.registers(a) for a in self.accesses if not a.written and self.kind(a) != "contiguous"]
        return sum(found, start=0.0)

    @cached_property
    def tile_vectors(self) -> Number:
        """Vector instructions of one visit of the tile, for each operation of the block."""
        return product(self.extents[self.tile :]) * self._elements_per_visit / self.useful_lanes

    @cached_property
    def _elements_per_visit(self) -> float:
        """More than one where the block is an instruction of the target."""
        return self.accesses[0].elements

    @cached_property
    def is_held(self) -> Number:
        """Whether the results of the tile stay in registers while it is summed up."""
        if not any(self.nest.summed):
            return 1.0
        if not self.is_marked:
            return float(self._straight <= self.tile)
        return at_most(self.tile_vectors, maximum(self.marks.get(UNROLL, 0.0), 1.0))

    @cached_property
    def flops_per_point(self) -> float:
        """Arithmetic of one visit of the block."""
        stores = analysis.find(tirx.BufferStore, self.nest.stmt.body)
        if self._elements_per_visit > 1:
            return 2.0 * max(access.elements for access in self.accesses)
        kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
        values = [store.value for store in stores]
        calls = analysis.find(Call, values)
        indices = [load.indices for load in analysis.loads(values)]
        conditions = [call.args[0] for call in calls if _name(call) == "if_then_else"]
        aside = [*indices, *conditions]
        plain = sum(len(analysis.find(kind, values)) - len(analysis.find(kind, aside)) for kind in kinds)
        return max(1.0, float(plain)) + MATH_FLOPS * sum(_name(call) not in _CHEAP for call in calls)

    @cached_property
    def operations(self) -> float:
        """Instructions of one visit of the block, of which a product and a sum are one."""
        return self.flops_per_point / 2.0 if any(self.nest.summed) and self.hw.fma else self.flops_per_point

    @cached_property
    def arithmetic(self) -> Number:
        """Cycles of one core, if nothing had to be waited for."""
        hidden: Number = 1.0
        if any(self.nest.summed):
            hidden = minimum(maximum(self.accumulators, 1.0) / (UNITS * LATENCY), 1.0)
        width = max(access.elements for access in self.accesses) if self._elements_per_visit > 1 else 1.0
        lanes = maximum(self.useful_lanes, width)
        return self.points * self.operations / (UNITS * lanes * hidden)

    @cached_property
    def pressure(self) -> Number:
        """Registers that the tile would like to have: its results, a row of vectors, and one broadcast."""
        return self.accumulators + self.vector_loads + minimum(self.scalar_loads, 1.0)

    @cached_property
    def spilled(self) -> Number:
        """Registers that it does not get: only sums have to stay where they are."""
        if not any(self.nest.summed):
            return 0.0
        return maximum(self.pressure - float(self.hw.vector_registers), 0.0)

    @cached_property
    def loading(self) -> Number:
        """Cycles of one core for moving operands and results between registers and the L1 cache."""
        stored = where(self.is_held, self.spilled, self.accumulators)
        moved = self.vector_loads + self.scalar_loads + 2.0 * stored
        visits = product(self.extents[: self.tile])
        return visits * moved / LOADS

    # Caches ---------------------------------------------------------------------------------------

    def _width(self, axis: int, depth: int) -> Number:
        key = (axis, depth)
        if key not in self._widths:
            self._widths[key] = self.nest.block.width(axis, depth)
        return self._widths[key]

    def _reach(self, access: Access, dim: int, depth: int) -> Number:
        reach = access.indices[dim].width(lambda axis: self._width(axis, depth))
        if reach is None:
            return access.shape[dim]
        return reach + (access.sizes[dim] - 1.0)

    def elements(self, access: Access, depth: int) -> Number:
        """Elements of a buffer that the loops from `depth` on touch."""
        at = max(depth, access.home)
        return product([self._reach(access, dim, at) for dim in range(len(access.indices))])

    def footprint(self, access: Access, depth: int) -> Number:
        """Bytes of cache lines for them."""
        line = float(self.hw.line_bytes)
        if not access.indices:
            return line
        at = max(depth, access.home)
        *outer, last = (self._reach(access, dim, at) for dim in range(len(access.indices)))
        packed = product(outer) * last * access.bytes
        if access.packed or access.home:
            return packed
        row = self._reach(access, len(outer), 0) if access.in_between else access.shape[-1]
        share_lines = at_most(row * access.bytes, line - 1.0)
        return where(share_lines, packed, product(outer) * ceil_div(last * access.bytes, line) * line)

    @cached_property
    def _in_memory(self) -> list[list[Number]]:
        """For every access that is not in registers its bytes from every depth on."""
        kept = [access for access in self.accesses if not access.in_registers]
        return [[self.footprint(access, depth) for depth in range(self.depth + 1)] for access in kept]

    @cached_property
    def footprints(self) -> list[Number]:
        """Bytes touched by the loops from every depth on."""
        return [
            sum((sizes[depth] for sizes in self._in_memory), start=0.0) for depth in range(self.depth + 1)
        ]

    @cached_property
    def traffic(self) -> list[Number]:
        """Bytes that come into a cache which holds what the loops from every depth on touch.

        What a loop right outside does not change stays there.
        """
        total: list[Number] = [0.0] * (self.depth + 1)
        for sizes in self._in_memory:
            runs: Number = 1.0
            fetched: Number = 1.0
            total[0] = total[0] + sizes[0]
            for depth in range(1, self.depth + 1):
                runs = runs * self.extents[depth - 1]
                fetched = where(equal(sizes[depth - 1], sizes[depth]), fetched, runs)
                total[depth] = total[depth] + sizes[depth] * fetched
        return total

    @cached_property
    def _most_bytes(self) -> float:
        """More than it touches in all."""
        kept = [access for access in self.accesses if not access.in_registers]
        return sum(2.0 * math.prod(access.shape) * access.bytes + self.hw.line_bytes for access in kept)

    def into(self, capacity: float) -> Number:
        """Bytes that come into a cache of a size."""
        if self._most_bytes <= USABLE * capacity:
            return self.traffic[0]
        chosen: Number = self.traffic[-1]
        for depth in range(self.depth, -1, -1):
            chosen = where(at_most(self.footprints[depth], USABLE * capacity), self.traffic[depth], chosen)
        return chosen

    @cached_property
    def moved(self) -> list[Number]:
        """Bytes that come into L1, L2 and L3."""
        return [self.into(float(size)) for size in (self.hw.l1_bytes, self.hw.l2_bytes, self.hw.l3_bytes)]

    @cached_property
    def conflicts(self) -> Number:
        """How many rows of an operand that the tile reads side by side fall into one set of the L1 cache."""
        way = self.hw.l1_bytes // self.hw.l1_ways
        worst: Number = 1.0
        for access in self.accesses:
            if (
                access.written
                or access.packed
                or len(access.indices) < 2
                or self.kind(access) == "contiguous"
            ):
                continue
            apart = math.gcd(int(access.shape[-1] * access.bytes), way)
            rows = self._reach(access, len(access.indices) - 2, self.tile)
            worst = maximum(worst, ceil_div(rows, float(way // apart)))
        return worst

    # Time -----------------------------------------------------------------------------------------

    @cached_property
    def cycles(self) -> Number:
        """A rough guess of the time of one core for all of it, by what takes longest."""
        slowest = maximum(self.arithmetic, self.loading)
        for moved, rate in zip(self.moved, BYTES_PER_CYCLE, strict=True):
            slowest = maximum(slowest, moved / rate)
        return slowest

    @cached_property
    def turns(self) -> Number:
        """The share of the work that the busiest thread does."""
        pieces = maximum(self.parallel, 1.0)
        return ceil_div(pieces, float(self.hw.cores)) / pieces

    @cached_property
    def time(self) -> Number:
        """Cycles until all threads are done."""
        return self.cycles * self.turns

    @cached_property
    def weight(self) -> float:
        """The arithmetic that every candidate has to do, to compare nests by."""
        return math.prod(int(axis.dom.extent) for axis in self.nest.stmt.iter_vars) * self.flops_per_point


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "")).split(".")[-1]


_CHEAP = {"if_then_else", "likely", "reinterpret"}
