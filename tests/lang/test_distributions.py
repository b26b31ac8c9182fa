"""Distributions count, draw, mutate and encode what TVM's instructions sample."""

import math

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import s_tir, te

from tpo.lang import Choice, ComputeLocation, IntRange, PartitionedTile, PerfectTile, PowerOfTwo

seeds = st.integers(0, 2**31)


def schedule(extent: int):
    x = te.placeholder((extent, 4), name="x")
    y = te.compute((extent, 4), lambda i, j: x[i, j] + 1.0, name="y")
    z = te.compute((extent, 4), lambda i, j: y[i, j] * 2.0, name="z")
    return s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, z])}), seed=3)


tiles = st.builds(
    PerfectTile, st.integers(1, 720), st.integers(1, 4), st.sampled_from([-1, 1, 4, 16, 64])
) | st.builds(
    lambda inner, outer, parts, multiple: PartitionedTile(
        inner * outer * multiple, parts, -1, partition=1, inner_multiple=multiple
    ),
    *(st.integers(1, 12), st.integers(1, 12), st.integers(2, 4), st.sampled_from([1, 2, 8])),
)
choices = st.lists(st.integers(0, 999), min_size=1, max_size=9, unique=True).map(Choice)
distributions = tiles | choices | st.builds(ComputeLocation, st.integers(0, 9))


@given(distributions, seeds)
@settings(max_examples=150, deadline=None)
def test_draws_and_mutations_stay_in_the_support(distribution, seed):
    rng = np.random.default_rng(seed)
    decision = distribution.draw(rng)
    mutated = distribution.mutate(decision, rng)
    assert (mutated != decision) == (distribution.support() > 1)
    for found in (decision, mutated):
        assert len(distribution.encode(found)) == len(distribution.encode(decision))
        assert all(math.isfinite(number) for number in distribution.encode(found))
        if isinstance(distribution, PerfectTile):
            assert found in distribution.all()
            assert math.prod(distribution.values(found)) == distribution.extent


@given(distributions, seeds)
@settings(max_examples=100, deadline=None)
def test_neighbours_are_other_decisions_with_as_many_values(distribution, seed):
    everything = distribution.all()
    decision = distribution.draw(np.random.default_rng(seed))
    others = distribution.neighbours(decision)
    assert decision in everything and decision not in others
    assert set(others) <= set(everything) and len(set(others)) == len(others)
    assert len({len(distribution.values(other)) for other in (decision, *others)}) == 1
    if others:
        probabilities = distribution.probabilities(others)
        assert len(probabilities) == len(others) and math.isclose(sum(probabilities), 1)
    # Who is close to one has it among those close to itself.
    assert all(decision in distribution.neighbours(other) for other in others)


@given(tiles)
@settings(max_examples=50, deadline=None)
def test_every_tile_is_counted_once(tile):
    found = tile.all()
    assert len(set(found)) == len(found) == tile.support() >= 1


@given(tiles, seeds)
@settings(max_examples=40, deadline=None)
def test_mutations_reach_the_whole_support(tile, seed):
    if tile.support() > 30:
        return
    rng = np.random.default_rng(seed)
    seen, current = set(), tile.draw(rng)
    for _ in range(60 * tile.support()):
        seen.add(current)
        current = tile.mutate(current, rng)
    assert seen == set(tile.all())


@pytest.mark.parametrize("extent", [12, 30, 64])
def test_tvm_draws_only_what_is_counted(extent):
    sch = schedule(extent)
    loop = sch.get_loops(sch.get_sblock("z"))[0]
    tile = PerfectTile.of(sch, loop, parts=3, max_inner=8)
    drawn = set()
    for _ in range(200):
        drawn.add(tuple(int(sch.get(factor)) for factor in tile.emit(sch)))
    assert drawn <= set(tile.all())
    assert len(drawn) > 3


def test_a_decision_is_what_tvm_takes():
    sch = schedule(24)
    loop = sch.get_loops(sch.get_sblock("z"))[0]
    tile = PerfectTile.of(sch, loop, parts=2)
    assert [int(sch.get(f)) for f in tile.emit(sch, (4, 6))] == [4, 6]
    assert int(sch.get(Choice([3, 5, 7]).emit(sch, 1))) == 5
    assert int(sch.get(Choice([3, 5, 7], preferred=7).emit(sch))) == 7
    loop = ComputeLocation.of(sch, sch.get_sblock("y")).emit(sch, 0)
    assert int(sch.get(loop).extent) == 24


def test_weights_are_kept():
    rng = np.random.default_rng(0)
    choice = Choice([1, 2, 3], [0.0, 3.0, 1.0])
    drawn = [choice.draw(rng) for _ in range(400)]
    assert choice.support() == 2 and set(drawn) == {1, 2}
    assert 0.65 < drawn.count(1) / 400 < 0.85


@pytest.mark.parametrize(
    "make",
    [lambda: Choice([]), lambda: Choice([1, 1]), lambda: Choice([1, 2], [1.0]), lambda: Choice([1], [0.0])],
)
def test_a_choice_that_is_none_is_refused(make):
    with pytest.raises(ValueError, match=r"options|weights"):
        make()


def test_ranges():
    assert IntRange(1, 3).options == [1, 2, 3]
    assert PowerOfTwo(1, 8).options == [1, 2, 4, 8]


@pytest.mark.parametrize("value, factors", [(4, [3, 4]), ([None, 6], [2, 6]), ((3, 4), [3, 4])])
def test_constants_of_a_tile(value, factors):
    assert PerfectTile(12, 2).constant(value) == factors


@pytest.mark.parametrize("value", [5, [3, 3], [1, 2, 6], [None, None]])
def test_what_is_no_tile_is_refused(value):
    with pytest.raises(ValueError, match="no tile of 12"):
        PerfectTile(12, 2).constant(value)
