"""What is said of a candidate without building it: a row of numbers, the same for every sketch and workload.

The loops of a sketch, as columns, become what decides about time on a CPU (`tpo.cost.nests`). The nest with
the most arithmetic is described in detail, all others together. All sizes are logarithms, so that trees can
compare workloads of different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpo.cost.accesses import accesses_of
from tpo.cost.blocks import Nest
from tpo.cost.columns import Number, at_most, ceil_div, log2, maximum, product, where
from tpo.cost.nests import PARALLEL, NestModel
from tpo.cost.watch import Simulated
from tpo.hardware import Hardware
from tpo.lang import analysis
from tpo.schedule.moves import AT_COMPILE_TIME

DEPTH = 8  # innermost loops that are described one by one
REGION_CYCLES = 4000.0  # to wake the threads and to wait for them
KINDS = ("serial", "unrolled", "vectorized", "parallel")
CACHES = ("l1", "l2", "l3")

Named = dict[str, Number]


def describe(simulated: Simulated, hw: Hardware, flops: float, size: float) -> Named:
    """Every feature of a sketch by name; its workload has so many `flops`, and parameters of a `size`."""
    found: Named = {
        "workload.flops": math.log2(flops + 1.0),
        "workload.bytes": math.log2(size + 1.0),
        "workload.intensity": math.log2((flops + 1.0) / (size + 1.0)),
        "hw.lanes": float(hw.lanes("float32")),
        "hw.registers": float(hw.vector_registers),
        "hw.cores": float(hw.cores),
        "hw.l1": math.log2(hw.l1_bytes),
        "hw.l2": math.log2(hw.l2_bytes),
        "hw.l3": math.log2(max(hw.l3_bytes, 1)),
    }
    models = models_of(simulated, hw)
    if not models:
        return found
    main, *others = sorted(models, key=lambda model: -model.weight)
    scale = 1.0 / (flops + 1.0)
    found |= _total(models, hw, scale) | _others(others, scale) | _main(main, hw, scale) | _loops(main)
    return found | (_second(others[0], scale) if others else {})


def rough_cycles(lines: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of lines of features the guess of all cycles, as a logarithm; not a number where there is none."""
    if lines.shape[1] != len(NAMES):  # features of another kind
        return np.full(len(lines), np.nan)
    found = lines[:, NAMES.index("total.cycles")].astype(np.float64)
    return np.where(found > 0, found, np.nan)


def models_of(simulated: Simulated, hw: Hardware) -> list[NestModel]:
    """The nests of a program that run when it does, without those that pack constants."""
    marks = {**simulated.asked, **simulated.marks} if PARALLEL in simulated.asked else {}
    done = [nest for nest in simulated.nests if AT_COMPILE_TIME in nest.stmt.annotations]
    nests = [nest for nest in simulated.nests if AT_COMPILE_TIME not in nest.stmt.annotations]
    packed = analysis.layout_free(simulated.func) if marks else []
    given = [*simulated.func.params, *(region.source for nest in done for region in nest.stmt.writes)]
    homes = _homes(nests, given)
    loops = [
        (id(loop), summed) for nest in nests for loop, summed in zip(nest.loops, nest.summed, strict=True)
    ]
    summed = {loop for loop, is_summed in loops if is_summed}
    return [
        NestModel(nest, accesses_of(nest, homes, packed), hw, marks, [id(k) in summed for k in nest.loops])
        for nest in nests
        if nest.stmt.writes
    ]


def _homes(nests: list[Nest], given: list[Any]) -> dict[Any, int]:
    """How many loops all nests that use a buffer have in common; of buffers that exist only in between."""
    users: dict[Any, list[Nest]] = {}
    for nest in nests:
        for region in (*nest.stmt.writes, *nest.stmt.reads):
            users.setdefault(region.source, []).append(nest)
    return {
        buffer: min(_common(several[0], other) for other in several)
        for buffer, several in users.items()
        if len(several) > 1 and not any(buffer.same_as(other) for other in given)
    }


def _common(left: Nest, right: Nest) -> int:
    pairs = zip(left.loops, right.loops, strict=False)
    same = [one is other for one, other in pairs]
    return same.index(False) if False in same else len(same)


def _total(models: list[NestModel], hw: Hardware, scale: float) -> Named:
    """Of all nests together."""
    regions = _sum({id(m.nest.loops[0]): at_most(2.0, m.parallel) for m in models if m.depth}.values())
    cycles = _sum(model.time for model in models) + regions * REGION_CYCLES
    peak = 4.0 * hw.lanes("float32") * hw.cores
    found: Named = {
        "total.nests": float(len(models)),
        "total.cycles": log2(cycles + 1.0),
        "total.slowdown": log2(cycles * (peak * scale) + 0.1),
        "total.arithmetic": log2(_sum(m.points * m.flops_per_point for m in models) * scale + 0.01),
        "total.regions": regions,
    }
    for k, cache in enumerate(CACHES):
        found[f"total.into_{cache}"] = _share(_sum(model.moved[k] for model in models), scale)
    return found


def _others(models: list[NestModel], scale: float) -> Named:
    """Of the nests beside the main one: padding, packing, what follows."""
    return {
        "others.cycles": _share(_sum(m.time for m in models), scale),
        "others.scalar": _share(_sum(where(at_most(m.lanes, 1.0), m.points, 0.0) for m in models), scale),
        "others.serial": _share(_sum(where(at_most(m.parallel, 1.0), m.cycles, 0.0) for m in models), scale),
        "others.points": _share(_sum(m.points * m.flops_per_point for m in models), scale),
        "others.code": _sum(log2(m.steps + 1.0) for m in models),
    }


def _second(model: NestModel, scale: float) -> Named:
    """Of the nest with the most arithmetic beside the main one."""
    return {
        "second.cycles": _share(model.time, scale),
        "second.code": log2(model.steps + 1.0),
        "second.tile": log2(maximum(model.tile_vectors, 1.0)),
        "second.parallel": log2(maximum(model.parallel, 1.0)),
        "second.tile_bytes": log2(model.footprints[max(0, model.tile - 1)] / float(model.hw.l1_bytes) + 1e-4),
        "second.into_l1": _share(model.moved[0], scale),
    }


def _main(model: NestModel, hw: Hardware, scale: float) -> Named:
    """Of the nest with the most arithmetic."""
    kinds = [model.kind(access) for access in model.accesses]
    pieces = maximum(model.parallel, 1.0)
    summed = [e for e, is_summed in zip(model.extents, model.nest.summed, strict=True) if is_summed]
    vectors = maximum(model.tile_vectors, 1.0)
    best = model.points * (model.operations / (2.0 * model.hw_lanes))
    found: Named = {
        "main.lanes": log2(maximum(model.lanes, 1.0)),
        "main.vector_fit": model.useful_lanes / model.hw_lanes,
        "main.contiguous": float(kinds.count("contiguous")),
        "main.strided": float(kinds.count("strided")),
        "main.broadcast": float(kinds.count("broadcast")),
        "main.accumulators": model.accumulators,
        "main.vector_loads": model.vector_loads,
        "main.scalar_loads": model.scalar_loads,
        "main.pressure": model.pressure / float(hw.vector_registers),
        "main.spilled": model.spilled,
        "main.held": model.is_held,
        "main.loads": (model.vector_loads + model.scalar_loads) / vectors,
        "main.code": log2(model.steps + 1.0),
        "main.tile": log2(vectors),
        "main.summed": log2(product(summed)),
        "main.conflicts": model.conflicts,
        "main.parallel": log2(pieces),
        "main.balance": pieces / (ceil_div(pieces, float(hw.cores)) * float(hw.cores)),
        "main.piece_flops": log2(model.points * model.flops_per_point / pieces + 1.0),
        "main.piece_bytes": log2(model.piece_bytes / float(hw.l2_bytes) + 1e-3),
        "main.tile_bytes": log2(model.footprints[max(0, model.tile - 1)] / float(hw.l1_bytes) + 1e-4),
        "main.cycles": log2(model.time * scale + 1e-4),
        "main.arithmetic": log2(model.arithmetic / best),
        "main.loading": log2(model.loading / best + 0.01),
        "main.waste": log2(model.points * model.flops_per_point * scale + 0.01),
    }
    for k, cache in enumerate(CACHES):
        found[f"main.into_{cache}"] = _share(model.moved[k], scale)
    return found


def _loops(model: NestModel) -> Named:
    """Of the innermost loops of a nest one by one, the innermost being the first."""
    found: Named = {}
    for back in range(1, DEPTH + 1):
        at = model.depth - back
        if at < 0:
            found |= {f"loop{back}.{what}": -1.0 for what in LOOP}
            continue
        found[f"loop{back}.extent"] = log2(model.extents[at])
        found[f"loop{back}.kind"] = float(KINDS.index(model.nest.kinds[at]))
        found[f"loop{back}.summed"] = float(model.nest.summed[at])
        found[f"loop{back}.bytes"] = log2(model.footprints[at] / float(model.hw.l1_bytes) + 1e-4)
    return found


def _sum(numbers: Iterable[Number]) -> Number:
    return sum(numbers, start=0.0)


def _share(number: Number, scale: float) -> Number:
    """A number beside the arithmetic of the workload, as a logarithm."""
    return log2(number * scale + 1e-4)


LOOP = ("extent", "kind", "summed", "bytes")
NAMES: tuple[str, ...] = (
    *("workload.flops", "workload.bytes", "workload.intensity"),
    *("hw.lanes", "hw.registers", "hw.cores", "hw.l1", "hw.l2", "hw.l3"),
    *("total.nests", "total.cycles", "total.slowdown", "total.arithmetic", "total.regions"),
    *("total.into_l1", "total.into_l2", "total.into_l3"),
    *("others.cycles", "others.scalar", "others.serial", "others.points", "others.code"),
    *(
        "second.cycles",
        "second.code",
        "second.tile",
        "second.parallel",
        "second.tile_bytes",
        "second.into_l1",
    ),
    *("main.lanes", "main.vector_fit", "main.contiguous", "main.strided", "main.broadcast"),
    *("main.accumulators", "main.vector_loads", "main.scalar_loads", "main.pressure", "main.spilled"),
    *("main.held", "main.loads", "main.code", "main.tile", "main.summed", "main.conflicts"),
    *("main.parallel", "main.balance", "main.piece_flops", "main.piece_bytes", "main.tile_bytes"),
    *("main.cycles", "main.arithmetic", "main.loading", "main.waste"),
    *("main.into_l1", "main.into_l2", "main.into_l3"),
    *(f"loop{back}.{what}" for back in range(1, DEPTH + 1) for what in LOOP),
)
