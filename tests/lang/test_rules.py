"""Rules as programs: effects, forks, names, constraints, and handlers that adapt them."""

import json

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te
from tvm.s_tir.schedule import Trace

import tpo
from tpo.lang import (
    Choice,
    ComputeLocation,
    Declined,
    PerfectTile,
    RuleUsageError,
    analysis,
    apply_rule,
    condition,
    constrain,
    decline,
    fork,
    prior,
    rule,
    sample,
    scope,
    seed,
    sites,
    trace,
)
from tpo.space.candidate import plain
from tpo.space.compose import compose
from tpo.space.space import sketch_of
from tpo.targets import resolve

HW = resolve("x86-64-v3", threads=2).hardware


def module(rows: int = 16, columns: int = 24):
    x = te.placeholder((rows, columns), name="x")
    y = te.compute((rows, columns), lambda i, j: x[i, j] + 1.0, name="y")
    z = te.compute((rows, columns), lambda i, j: y[i, j] * 2.0, name="z")
    return tvm.IRModule({"main": te.create_prim_func([x, z])})


def schedule(**sizes):
    sch = s_tir.Schedule(module(**sizes), seed=3)
    return sch, sch.get_sblock("z")


SITES = ["tiled/z/rows", "tiled/z/cols"]


@rule(target="cpu")
def tiled(sch, block, hw):
    """Split both loops."""
    i, j = sch.get_loops(block)
    rows = sample("rows", PerfectTile.of(sch, i, parts=2))
    cols = sample("cols", Choice([4, 8, 12]))
    constrain(rows[1] * cols <= 48, "a tile fits")
    i0, i1 = sch.split(i, rows)
    j0, j1 = sch.split(j, [None, cols])
    if fork("inner", ["columns", "rows"]) == "rows":
        sch.reorder(i0, j0, j1, i1)


def test_every_fork_is_a_way_and_the_schedule_itself_stays_as_it_is():
    sch, block = schedule()
    before = len(sch.trace.insts)
    ways = apply_rule(tiled, sch, block, HW)
    assert [way.label for way in ways] == ["tiled/inner=columns", "tiled/inner=rows"]
    assert [list(way.sites) for way in ways] == [SITES] * 2
    assert len(sch.trace.insts) == before
    assert len(apply_rule(tiled, sch, block, HW, first_only=True)) == 1


def test_forks_inside_forks_are_all_taken():
    @rule()
    def nested(sch, block, hw):
        first = fork("first", [1, 2])
        if first == 2:
            second = fork("second", "abc")
            if second == "b":
                decline("not b")

    sch, block = schedule()
    assert [way.forks for way in apply_rule(nested, sch, block, HW)] == [
        {"first": 1},
        {"first": 2, "second": "a"},
        {"first": 2, "second": "c"},
    ]


def test_names_survive_simplification_json_and_stock_replay():
    @rule()
    def named(sch, block, hw):
        sample("unused", Choice([1, 2]))
        i, _ = sch.get_loops(block)
        sch.split(i, sample("rows", PerfectTile.of(sch, i, parts=2)))
        producer = sch.get_producers(block)[0]
        sch.compute_at(producer, sample("place", ComputeLocation.of(sch, producer)))

    sch, block = schedule()
    (way,) = apply_rule(named, sch, block, HW)
    wanted = ["named/z/unused", "named/z/rows", "named/z/place"]
    simple = way.sch.trace.simplified(remove_postproc=True)
    assert sites.names(way.sch.trace) == sites.names(simple) == wanted
    text = json.dumps(plain(simple.as_json()))
    again = s_tir.Schedule(module())
    Trace.apply_json_to_schedule(json.loads(text), again)
    assert sites.names(again.trace) == wanted
    assert tvm_ffi.structural_equal(again.mod, way.sch.mod)
    assert "tpo.site" not in again.mod.script()


def test_two_sites_of_one_name_are_refused():
    @rule()
    def twice(sch, block, hw):
        sample("x", Choice([1, 2]))
        sample("x", Choice([3, 4]))

    with pytest.raises(RuleUsageError, match="'twice/z/x' occurs twice"):
        apply_rule(twice, *schedule(), HW)


def test_effects_only_work_inside_a_rule():
    with pytest.raises(RuleUsageError, match="only works inside a rule"):
        sample("rows", Choice([1, 2]))


def test_a_declined_rule_says_why():
    @rule()
    def no(sch, block, hw):
        decline("not today")

    with pytest.raises(Declined, match="not today"):
        apply_rule(no, *schedule(), HW)


# Constraints --------------------------------------------------------------------------------------


def sketches(*rules, **sizes):
    problems = []
    found = [sketch_of(draft) for draft in compose(module(**sizes), rules, HW, problems.append)]
    assert not problems
    return found


def test_constraints_prune_before_anything_is_built():
    (first, _) = [s for s in sketches(tiled) if [site.name for site in s.sites] == SITES]
    assert first.constraints[0].reason == "a tile fits"
    assert first.constraints[0].text == "rows[1] * cols[0] <= 48"
    allowed_pairs = [(r, c) for r in (1, 2, 4, 8, 16) for c in (4, 8, 12) if r * c <= 48]
    size = first.size
    assert (size.support, size.allowed, size.exact) == (15, len(allowed_pairs), True)
    rng = np.random.default_rng(0)
    drawn = {tuple(first.domain.decisions(row)) for row in first.domain.draw(300, rng)}
    values = {(rows[1], (4, 8, 12)[cols]) for rows, cols in drawn}
    assert values == set(allowed_pairs)


def test_a_large_support_is_estimated():
    found = _large().size
    assert not found.exact and 0.2 < found.share < 0.8


def _large():
    @rule()
    def large(sch, block, hw):
        tiles = [
            sample(f"t{k}", PerfectTile(720, 3, -1, loop)) for k, loop in enumerate(sch.get_loops(block))
        ]
        constrain(tiles[0][2] <= tiles[1][2])

    return next(
        s for s in sketches(large, rows=720, columns=720) if "z" in s.sites[0].name and len(s.sites) == 2
    )


def test_many_operators_can_be_used_in_constraints():
    @rule()
    def limits(sch, block, hw):
        a, b = sample("a", Choice([2, 3, 4, 6])), sample("b", Choice([1, 2, 3]))
        constrain(a % b == 0)
        constrain(tvm.tirx.any(a // b > 1, tvm.tirx.max(a, b) == 2))
        constrain(tvm.tirx.Not(a + b > 8))

    sketch = next(s for s in sketches(limits) if len(s.sites) == 2 and "/z/" in s.sites[0].name)
    population = np.array([(i, j) for i in range(4) for j in range(3)])
    keeps = sketch.domain.allowed(population)
    for (i, j), kept in zip(population, keeps, strict=True):
        a, b = (2, 3, 4, 6)[i], (1, 2, 3)[j]
        assert kept == (a % b == 0 and (a // b > 1 or max(a, b) == 2) and a + b <= 8)


def test_a_constraint_that_can_never_hold_declines():
    @rule()
    def impossible(sch, block, hw):
        constrain(3 > 4, "too large")

    with pytest.raises(Declined, match="too large"):
        apply_rule(impossible, *schedule(), HW)


# Handlers -----------------------------------------------------------------------------------------


def test_condition_fixes_sites_and_forks():
    fixed = condition(tiled, rows=4, inner="rows")
    (way,) = apply_rule(fixed, *schedule(), HW)
    assert list(way.sites) == ["tiled/z/cols"]
    assert way.forks == {"inner": "rows"}
    loops = [int(way.sch.get(loop).extent) for loop in way.sch.get_loops(way.sch.get_sblock("z"))]
    assert loops[0] == 4 and loops[-1] == 4
    (way,) = apply_rule(condition(fixed, cols=8), *schedule(), HW)
    assert not sites.sampling(way.sch.trace)


@pytest.mark.parametrize("values", [{"rows": 5}, {"cols": 5}, {"inner": "nothing"}])
def test_a_condition_outside_the_support_is_refused(values):
    with pytest.raises(RuleUsageError, match=f"condition on '{next(iter(values))}'"):
        apply_rule(condition(tiled, values), *schedule(), HW)


def test_prior_changes_a_distribution():
    (way, _) = apply_rule(prior(tiled, cols=Choice([6])), *schedule(), HW)
    assert way.sites["tiled/z/cols"].options == [6]
    assert apply_rule(tiled, *schedule(), HW)[0].sites["tiled/z/cols"].options == [4, 8, 12]


def test_scope_renames_and_handlers_nest():
    scoped = scope(tiled, "mine")
    (way, _) = apply_rule(scoped, *schedule(), HW)
    assert list(way.sites) == ["tiled/z/mine.rows", "tiled/z/mine.cols"]
    (way, _) = apply_rule(condition(scoped, {"mine.rows": 2}), *schedule(), HW)
    assert list(way.sites) == ["tiled/z/mine.cols"]
    (way, _) = apply_rule(scope(condition(tiled, rows=2), "mine"), *schedule(), HW)
    assert list(way.sites) == ["tiled/z/mine.cols"]


def test_trace_tells_what_a_rule_does():
    seen = []

    @rule()
    def outer(sch, block, hw):
        seen.append(trace(tiled)(sch, block, hw))

    apply_rule(outer, *schedule(), HW, first_only=True)
    assert [effect.kind for effect in seen[0].effects] == ["sample", "sample", "constrain", "fork"]
    assert list(seen[0].sites) == ["rows", "cols"]


def test_seed_decides_what_is_drawn():
    def drawn(number):
        (way, _) = apply_rule(seed(tiled, number), *schedule(), HW)
        return way.sch.mod.script()

    assert drawn(1) == drawn(1)
    assert len({drawn(number) for number in range(1, 9)}) > 1


# Composition --------------------------------------------------------------------------------------


def test_rules_compose_and_every_instruction_has_an_author():
    @rule(always=True, when=analysis.is_injective)
    def inline(sch, block, hw):
        if not sch.get_consumers(block):
            decline("nobody reads it")
        sch.compute_inline(block)

    found = sketches(inline, condition(tiled, inner="rows"))
    names = [sketch.name for sketch in found]
    assert names == ["inline+tiled/inner=rows", "inline"]
    assert set(found[0].authors) <= {"", "inline @ y", "tiled @ z"}
    split = [a for a, i in zip(found[0].authors, found[0].trace.insts, strict=True) if i.kind.name == "Split"]
    assert split == ["tiled @ z", "tiled @ z"]


def test_registered_rules_are_in_every_space():
    from support.small_workloads import workload
    from tpo.lang.library import unregister
    from tpo.space import build_space

    @tpo.register
    @tpo.rule(on="function", when=analysis.is_fresh)
    def registered(sch, root, hw):
        sch.annotate(root, "registered", tpo.sample("number", tpo.Choice([1, 2])))

    try:
        names = [sketch.name for sketch in build_space(workload("elementwise"), resolve("native")).sketches]
    finally:
        unregister("registered")
    assert "registered" in names


def test_rules_of_tvm_join_by_name():
    from pathlib import Path

    from support.small_workloads import workload
    from tpo.errors import RuleFileError
    from tpo.space import build_space

    native = resolve("native")
    made = build_space(workload("mean"), native, [Path("tvm:AddRFactor")])
    names = [sketch.name for sketch in made.sketches]
    assert any(name.startswith("tvm:AddRFactor/way=0") for name in names), names
    with pytest.raises(RuleFileError, match="TVM has tvm:InlineConstantScalars"):
        build_space(workload("mean"), native, [Path("tvm:Nothing")])
