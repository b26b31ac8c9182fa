"""The simulator gives the loops of really applied schedules, and features that tell candidates apart."""

import functools
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tvm import s_tir, tirx

from tpo.cost.columns import example
from tpo.cost.features import NAMES, models_of
from tpo.cost.simulator import Simulator
from tpo.cost.watch import Simulated, extents, simulate
from tpo.lang import ComputeLocation, analysis
from tpo.space import Sketch, build_space
from tpo.space.space import decided
from tpo.targets import resolve
from tpo.testing import corpus
from tpo.workload import Workload, schedule_of

AVX2 = resolve("x86-64-v3", threads=2)
VNNI = resolve(str(Path(__file__).parents[1] / "support" / "vnni.toml"), threads=2)  # AVX-512, bytes too
ROWS, ROWS_OF_PLACES = 16, 6  # candidates of a sketch; of one whose every place is another program


@functools.cache
def space(name: str, target=AVX2):
    return build_space(corpus.workload(name), target)


def loops_of(module) -> list[tuple[str, list[int]]]:
    """Every block of a program with the extents of the loops around it; -1 for one that is no number."""
    found = []

    def walk(stmt, path):
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                walk(part, path)
        elif isinstance(stmt, tirx.For):
            known = isinstance(stmt.extent, tirx.IntImm)
            walk(stmt.body, [*path, int(stmt.extent) if known else -1])
        elif isinstance(stmt, s_tir.SBlockRealize):
            if analysis.find(s_tir.SBlockRealize, stmt.block.body):
                walk(stmt.block.body, path)
            else:
                found.append((str(stmt.block.name_hint), path))

    walk(module["main"].body.block.body, [])
    return found


def applied(sketch: Sketch, workload: Workload, row) -> list[tuple[str, list[int]]] | None:
    """The loops of a candidate that TVM has made; None if it refuses it.

    Excluded are loops whose extent is no number but depends on an outer loop: TVM's own postprocessors refuse
    them later (DisallowDynamicLoop). Nothing else is.
    """
    sch = schedule_of((sketch.program or workload).module)
    try:
        decided(sketch.trace, sketch.domain.decisions(row)).apply_to_schedule(sch, remove_postproc=True)
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return None
    found = loops_of(sch.mod)
    return None if any(-1 in loops for _, loops in found) else found


def belongs(simulated: Simulated, values) -> bool:
    columns, wanted = [c for c, _ in simulated.conditions], [w for _, w in simulated.conditions]
    return simulated.tape.program(columns).run(values, 1)[0].tolist() == wanted


def check(sketch: Sketch, workload: Workload, rows) -> int:
    """Assert that all rows have the loops TVM makes; how many TVM has made."""
    structures: list[Simulated] = []
    count = 0
    for row in rows:
        want = applied(sketch, workload, row)
        if want is None:
            continue
        count += 1
        values = sketch.domain.values(row[None])
        found = next((known for known in structures if belongs(known, values)), None)
        if found is None:
            found = simulate(sketch, workload, row)
            assert belongs(found, values), "a structure leaves out the candidate it was made from"
            assert not found.surprises
            structures.append(found)
        got = [(name, line[0].tolist()) for name, line in extents(found, values, 1)]
        assert got == want, (sketch.name, sketch.domain.decisions(row))
    return count


@pytest.mark.parametrize("target", [AVX2, VNNI], ids=lambda target: target.name)
@pytest.mark.parametrize("name", corpus.NAMES)
def test_loops_are_those_of_applied_schedules(name, target):
    rng = np.random.default_rng(len(name))
    for sketch in space(name, target).sketches:
        places = any(isinstance(site.distribution, ComputeLocation) for site in sketch.sites)
        drawn = sketch.domain.draw(ROWS_OF_PLACES if places else ROWS, rng)
        rows = np.unique(np.concatenate([sketch.preferred_row, drawn]), axis=0)
        assert check(sketch, space(name, target).workload, rows) >= len(rows) / 2


# Instructions that rules may use, though none of ours does in this way ---------------------------------


def made_by(schedule) -> tuple[Sketch, Workload]:
    """A sketch of a product of matrices and what follows it, by a function that schedules it."""
    work = corpus.workload("matmul")
    sch = schedule_of(work.module, seed=3)
    schedule(sch, *(sch.get_sblock(name) for name in ("matmul", "add", "compute")))
    return Sketch.of("made up", sch.trace.simplified(remove_postproc=True)), work


def tile(sch, block, parts=2):
    loops = sch.get_loops(block)
    split = [sch.split(loop, sch.sample_perfect_tile(loop, parts, 64)) for loop in loops]
    return [part for level in zip(*split, strict=True) for part in level]


def unit_loops_left_out(sch, matmul, add, compute):
    sch.compute_inline(add)
    loops = tile(sch, compute)
    sch.reorder(*loops)
    sch.compute_at(matmul, loops[1], preserve_unit_loops=False)


def fused_and_split_again(sch, matmul, add, compute):
    sch.compute_inline(add)
    loops = sch.get_loops(compute)
    fused = sch.fuse(*loops)
    outer, _ = sch.split(fused, [None, sch.sample_categorical([4, 16, 64], [0.4, 0.3, 0.3])])
    sch.split(outer, [None, sch.sample_categorical([2, 3, 5], [0.4, 0.3, 0.3])])


def caches_below_loops(sch, matmul, add, compute):
    sch.compute_inline(add)
    i0, j0, k0, i1, j1, k1 = tile(sch, matmul)
    sch.reorder(i0, j0, k0, i1, k1, j1)
    for operand in (0, 1):
        copy = sch.cache_read(matmul, operand, "global")
        sch.compute_at(copy, k0, preserve_unit_loops=True)
    sch.reverse_compute_at(compute, j0, preserve_unit_loops=True)


def partial_sums_at_a_loop(sch, matmul, add, compute):
    sch.compute_inline(add)
    *_, k = sch.get_loops(matmul)
    _, inner = sch.split(k, sch.sample_perfect_tile(k, 2, 64))
    partial = sch.rfactor(inner, 0)
    outer, _ = sch.get_loops(compute)[:2]
    outer, _ = sch.split(outer, sch.sample_perfect_tile(outer, 2, 64))
    sch.compute_at(matmul, outer, preserve_unit_loops=True)
    sch.compute_at(partial, outer, preserve_unit_loops=True)


def blocks_of_tiles(sch, matmul, add, compute):
    sch.compute_inline(add)
    i, j, k = sch.get_loops(matmul)
    i0, i1 = sch.split(i, sch.sample_perfect_tile(i, 2, 64))
    j0, j1 = sch.split(j, [None, 8])
    sch.reorder(i0, i1, j0, k, j1)
    sch.blockize(j1)


@pytest.mark.parametrize(
    "schedule",
    [
        unit_loops_left_out,
        fused_and_split_again,
        caches_below_loops,
        partial_sums_at_a_loop,
        blocks_of_tiles,
    ],
    ids=lambda schedule: schedule.__name__,
)
def test_loops_of_other_instructions(schedule):
    sketch, work = made_by(schedule)
    rows = sketch.domain.draw(40, np.random.default_rng(0))
    assert check(sketch, work, np.unique(rows, axis=0)) >= 9


# Constraints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmul", "conv 3x3", "batch matmul", "conv 1x1"])
def test_constraints_hold_where_their_text_does(name):
    """Evaluated one candidate at a time, in Python, for all rows of small sketches."""
    checked = 0
    for sketch in space(name).sketches:
        if not sketch.constraints or sketch.domain.support > 3000:
            continue
        short = [site.name.rsplit("/", 1)[-1] for site in sketch.sites]
        rows = np.array(list(itertools.product(*(range(size) for size in sketch.domain.sizes))))
        tables = [site.values.tolist() for site in sketch.sites]
        want = []
        for row in rows.tolist():
            seen = {name: table[k] for name, table, k in zip(short, tables, row, strict=True)}
            want.append(all(eval(c.text, {"min": min, "max": max}, seen) for c in sketch.constraints))
        assert sketch.domain.allowed(rows).tolist() == want
        assert len(sketch.domain.every()) == sum(want) == sketch.size.allowed
        checked += 1
    assert checked >= 2


# Features -------------------------------------------------------------------------------------------


def exact(simulator, sketch, rows):
    simulator.watch(sketch, rows)
    return simulator.features(sketch, rows)


@pytest.mark.parametrize("target", [AVX2, VNNI], ids=lambda target: target.name)
@pytest.mark.parametrize("name", corpus.NAMES)
def test_features_are_finite_and_of_nothing_but_the_row(name, target):
    simulator, rng = Simulator.of(space(name, target)), np.random.default_rng(0)
    for sketch in space(name, target).sketches:
        rows = sketch.domain.draw(3, rng)
        found = exact(simulator, sketch, rows)
        assert found.shape == (len(rows), len(NAMES)) and found.dtype == np.float32
        assert np.isfinite(found).all()
        assert found.any(axis=1).all(), f"{sketch.name} cannot be simulated"
        np.testing.assert_array_equal(found[1:2], exact(simulator, sketch, rows[1:2]))
        again = exact(Simulator.of(space(name, target)), sketch, rows[::-1])
        np.testing.assert_array_equal(found, again[::-1])


def named(sketch_name: str, workload_name: str, **wanted) -> dict[str, float]:
    """Features by name of the preferred candidate of a sketch, with some decisions changed."""
    whole = space(workload_name)
    sketch = next(s for s in whole.sketches if s.name.startswith(sketch_name))
    (row,) = sketch.preferred_row
    for k, site in enumerate(sketch.sites):
        value = wanted.get(site.name.rsplit("/", 1)[-1])
        if value is not None:
            row[k] = site.values[:, 0].tolist().index(value)
    return dict(zip(NAMES, simulator_of(workload_name).features(sketch, row[None])[0].tolist(), strict=True))


@functools.cache
def simulator_of(name: str) -> Simulator:
    return Simulator.of(space(name))


def test_features_of_a_register_tile_are_what_one_counts_by_hand():
    """A tile of 6 rows x 16 columns of a 48 x 64 x 32 product, for AVX2's 16 registers of 8 lanes."""
    avx2 = build_space(corpus.workload("matmul"), resolve("x86-64-v3"))
    sketch = next(s for s in avx2.sketches if s.name == "contraction/columns=8x2")
    decisions = {"rows": 6, "row_tiles": 2, "column_tiles": 4, "unroll": 4}
    row = [site.values[:, 0].tolist().index(decisions[site.name.rsplit("/", 1)[-1]]) for site in sketch.sites]
    found = dict(zip(NAMES, Simulator.of(avx2).features(sketch, np.array([row]))[0].tolist(), strict=True))
    assert found["main.accumulators"] == 12  # 6 rows x 2 vectors
    assert found["main.vector_loads"] == 2 and found["main.scalar_loads"] == 6
    assert found["main.pressure"] == pytest.approx(15 / 16) and found["main.spilled"] == 0
    assert found["main.loads"] == pytest.approx((2 + 6) / 12)
    assert found["main.code"] == pytest.approx(np.log2(4 * 12 + 1))  # 4 steps of the sum are straight code
    assert found["main.summed"] == 5 and found["main.held"] == 1
    assert (found["loop1.extent"], found["loop2.extent"], found["loop4.extent"]) == (3, 1, 2)
    # Both operands stay in the L1 cache: they are read once, and nothing else is.
    bytes_in = 4 * (48 * 32 + 32 * 64) / (2 * 48 * 64 * 32 + 2 * 48 * 64 + 1)
    assert found["main.into_l1"] == pytest.approx(np.log2(bytes_in), abs=0.01)
    assert found["main.waste"] == pytest.approx(0, abs=0.06)


def test_a_tile_that_does_not_fit_spills():
    found = [named("contraction/columns=8x4", "conv 3x3"), named("contraction/columns=8x1", "conv 3x3")]
    assert all(features["main.held"] == 1 for features in found)
    assert found[0]["main.accumulators"] >= found[1]["main.accumulators"] / 2


def test_imperfect_chunks_waste_arithmetic():
    """12 row tiles in chunks of 8 are computed as 16."""
    even = named("contraction/columns=8x2", "matmul", rows=4, row_tiles=4)
    odd = named("contraction/columns=8x2", "matmul", rows=4, row_tiles=8)
    assert odd["main.waste"] - even["main.waste"] == pytest.approx(np.log2(16 / 12), abs=0.01)


def test_tvms_marks_become_threads_vectors_and_straight_code():
    whole = space("matmul")
    sketch = whole.sketch("tvm/1")
    row = sketch.domain.row([(1, 12, 2, 2), (2, 2, 1, 16), (8, 4), 1])
    found = dict(zip(NAMES, simulator_of("matmul").features(sketch, row[None])[0].tolist(), strict=True))
    lanes = whole.target.hardware.lanes("float32")
    assert found["main.lanes"] == 4 and found["main.vector_fit"] == 1  # the 16 innermost columns
    assert found["main.accumulators"] == 2 * 16 / lanes
    assert found["main.parallel"] == pytest.approx(np.log2(1 * 2 * 12 * 2))
    # 16 steps may be unrolled: both rows and the vectors, and the 4 innermost of the sum if these fit.
    tile = 2 * 16 / lanes
    assert found["main.code"] == pytest.approx(np.log2((4 * tile if 4 * tile <= 16 else tile) + 1))


@pytest.mark.parametrize("name", ["matmul", "conv 1x1", "softmax", "global mean", "argmax"])
def test_threads_and_vectors_are_those_that_tvms_postprocessors_make(name):
    whole, rng = space(name), np.random.default_rng(2)
    for sketch in (sketch for sketch in whole.sketches if sketch.name.startswith("tvm/")):
        for row in sketch.domain.draw(3, rng):
            candidate = whole.at(sketch, row)
            if candidate is None:
                continue
            real = dict(kinds_of(candidate.module))
            simulated = simulate(sketch, whole.workload, row)
            for model in models_of(simulated, AVX2.hardware):
                block = model.nest.block.name
                kinds = real.get(block) or real[f"{block}_update"]  # TVM has decomposed it
                assert (example(model.parallel), example(model.lanes)) == kinds, (sketch.name, block)


def kinds_of(module):
    """For every block the iterations of its parallel and of its vectorised loops."""

    def walk(stmt, parallel, vector):
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                yield from walk(part, parallel, vector)
        elif isinstance(stmt, tirx.For):
            extent, kind = int(stmt.extent), int(stmt.kind)
            parallel *= extent if kind == tirx.ForKind.PARALLEL else 1
            vector *= extent if kind == tirx.ForKind.VECTORIZED else 1
            yield from walk(stmt.body, parallel, vector)
        elif isinstance(stmt, s_tir.SBlockRealize):
            yield str(stmt.block.name_hint), (parallel, vector)

    yield from walk(module["main"].body.block.body, 1, 1)


def test_different_decisions_have_different_features():
    """In sketches of contractions every site matters."""
    for name in ("matmul", "conv 3x3"):
        for sketch in space(name).sketches:
            rows = np.unique(sketch.domain.draw(100, np.random.default_rng(1)), axis=0)
            if "contraction" in sketch.name:
                distinct = np.unique(simulator_of(name).features(sketch, rows), axis=0)
                assert len(distinct) == len(rows), sketch.name


def test_a_sketch_that_cannot_be_replayed_has_no_features():
    sketch = space("matmul").sketches[0]
    broken = Sketch(
        "broken", sketch.trace, sketch.preferred, sketch.sites, (), (), corpus.workload("softmax")
    )
    rows = broken.domain.draw(50, np.random.default_rng(0))
    assert not simulator_of("matmul").features(broken, rows).any()


def test_structures_beyond_the_limit_are_the_nearest(monkeypatch):
    monkeypatch.setattr("tpo.cost.simulator.MAX_STRUCTURES", 3)
    whole = space("softmax")
    sketch = whole.sketch("tvm/0")
    simulator = Simulator.of(whole)
    rows = sketch.domain.draw(40, np.random.default_rng(0))
    simulator.watch(sketch, rows, len(rows))
    found = simulator.features(sketch, rows)
    assert np.isfinite(found).all() and found.any(axis=1).all()
    shares = Counter(len(chosen) for _, chosen in simulator.structures(sketch, rows))
    assert sum(size * times for size, times in shares.items()) == len(rows)


def test_a_population_is_described_better_the_more_of_it_is_watched():
    whole = space("softmax")
    sketch = whole.sketch("tvm/1")
    simulator = Simulator.of(whole)
    rows = sketch.domain.draw(12, np.random.default_rng(0))
    expected = exact(Simulator.of(whole), sketch, rows)
    assert (simulator.features(sketch, rows) != expected).any(), "these rows have several structures"
    watched = 0
    while simulator.watch(sketch, rows, 1):
        watched += 1
    assert watched > 1
    np.testing.assert_array_equal(simulator.features(sketch, rows), expected)
