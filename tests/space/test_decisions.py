"""Rows of decisions: whatever is drawn, changed or crossed keeps the constraints, and says what it means."""

import itertools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tpo.lang import Choice, ComputeLocation, Constraint, PartitionedTile, PerfectTile
from tpo.space.decisions import MAX_CHANGED, Domain, Site

seeds = st.integers(0, 2**31)
choices = st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True)
weighted = choices.flatmap(
    lambda options: st.lists(st.integers(0, 3), min_size=len(options), max_size=len(options)).map(
        lambda weights: Choice(options, weights if sum(weights) else None)
    )
)
distributions = (
    weighted
    | st.builds(PerfectTile, st.sampled_from([1, 7, 12, 48, 56]), st.integers(1, 3), st.sampled_from([-1, 8]))
    | st.builds(lambda n: PartitionedTile(8 * n, 2, -1, partition=1, inner_multiple=4), st.integers(1, 6))
    | st.builds(ComputeLocation, st.integers(0, 5))
    | st.none()
)


def at_most(limit: int, names) -> Constraint:
    """The sum of the first values of all sites is limited."""
    keys = tuple((name, 0) for name in names)
    return Constraint(
        "a limit", "sum <= limit", keys, lambda values: np.sum([values[key] for key in keys], axis=0) <= limit
    )


@st.composite
def domains(draw) -> Domain:
    sites = tuple(
        Site(f"site{k}", found) for k, found in enumerate(draw(st.lists(distributions, max_size=5)))
    )
    bounded = [site.name for site in sites if site.distribution is not None]
    limit = draw(st.none() | st.integers(0, 150))
    return Domain(sites, () if limit is None or not bounded else (at_most(limit, bounded),))


@given(domains(), seeds)
@settings(max_examples=150, deadline=None)
def test_whatever_is_done_to_rows_keeps_the_constraints(domain, seed):
    rng = np.random.default_rng(seed)
    rows = domain.draw(12, rng)
    assume(len(rows))
    spread = domain.spread(12, rng)
    mutated = domain.mutate(rows, rng)
    crossed = domain.cross(rows, rows[::-1], rng)
    for found in (rows, spread, mutated, crossed):
        assert found.dtype == np.int64 and found.shape[1] == len(domain.sites)
        assert np.all(found >= 0) and np.all(found < domain.sizes)
        assert domain.allowed(found).all()
    assert mutated.shape == crossed.shape == rows.shape
    changed = (mutated != rows).sum(axis=1)
    assert np.all(changed <= MAX_CHANGED)
    assert np.all((crossed == rows) | (crossed == rows[::-1]))


@given(domains(), seeds)
@settings(max_examples=100, deadline=None)
def test_without_constraints_every_mutation_changes_something(domain, seed):
    free = Domain(domain.sites)
    rows = free.draw(8, np.random.default_rng(seed))
    changed = (free.mutate(rows, np.random.default_rng(seed)) != rows).sum(axis=1)
    assert np.all(changed >= 1) == (free.support > 1 or not len(rows))


@given(domains(), seeds)
@settings(max_examples=100, deadline=None)
def test_rows_are_decisions_and_back(domain, seed):
    for row in domain.draw(5, np.random.default_rng(seed)):
        decisions = domain.decisions(row)
        np.testing.assert_array_equal(domain.row(decisions), row)
        for site, decision, k in zip(domain.sites, decisions, row, strict=True):
            if site.distribution is not None:
                values = domain.values(row[None])
                found = tuple(int(values[site.name, j][0]) for j in range(site.values.shape[1]))
                assert found == site.distribution.values(decision) == tuple(site.values[k])


@given(domains())
@settings(max_examples=60, deadline=None)
def test_all_rows_are_those_that_keep_the_constraints(domain):
    assume(domain.support <= 2000)
    grid = [tuple(row) for row in itertools.product(*(range(size) for size in domain.sizes))]
    kept = [row for row in grid if domain.allowed(np.array([row], np.int64).reshape(1, -1))[0]]
    assert [tuple(row) for row in domain.every()] == kept
    assert domain.support == len(grid)
    assert (domain.size.allowed, domain.size.exact) == (len(kept), True)


def test_what_is_no_decision_of_a_site_has_no_row():
    domain = Domain((Site("tile", PerfectTile(12, 2)), Site("unroll", Choice([1, 2, 4]))))
    assert domain.row([(3, 4), 2]) is not None
    assert (
        domain.row([(3, 5), 2]) is None and domain.row([(3, 4), 3]) is None and domain.row([(3, 4)]) is None
    )


def test_what_only_tvm_can_draw_is_left_to_it():
    domain = Domain((Site("site0", None), Site("unroll", Choice([1, 2]))))
    assert domain.decisions(np.array([0, 1])) == [None, 1]
    assert domain.row([(3, 4), 1]).tolist() == [0, 1]


def test_draws_follow_the_weights_and_spread_rows_do_not():
    domain = Domain((Site("a", Choice([1, 2], [0.9, 0.1])), Site("b", PerfectTile(64, 2, -1))))
    rng = np.random.default_rng(0)
    assert 0.85 < (domain.draw(2000, rng)[:, 0] == 0).mean() < 0.95
    spread = domain.spread(280, rng)
    counts = np.bincount(spread[:, 0] * 7 + spread[:, 1], minlength=14)
    assert len(spread) == 280 and counts.min() >= 14, "every pair about 20 times"


def test_the_same_seed_gives_the_same_rows():
    domain = Domain((Site("a", Choice([1, 2, 3])), Site("b", PerfectTile(48, 3))))
    found = []
    for _ in range(2):
        rng = np.random.default_rng(5)
        rows = domain.draw(20, rng)
        found.append((rows, domain.spread(20, rng), domain.mutate(rows, rng)))
    for left, right in zip(*found, strict=True):
        np.testing.assert_array_equal(left, right)


def test_constraints_that_nothing_keeps_give_no_rows():
    domain = Domain((Site("a", Choice([5, 6])),), (at_most(1, ["a"]),))
    rng = np.random.default_rng(0)
    assert domain.draw(3, rng).shape == domain.spread(3, rng).shape == domain.every().shape == (0, 1)
    assert domain.size.allowed == 0


def test_a_site_with_a_rare_neighbour_reaches_it():
    site = Site("a", Choice([1, 2, 3], [1.0, 0.01, 0.99]))
    assert [site.mutate(0, luck) for luck in (0.0, 0.005, 0.5, 0.999999)] == [1, 1, 2, 2]


@given(domains(), seeds)
@settings(max_examples=80, deadline=None)
def test_the_row_nearest_to_its_own_values_is_itself(domain, seed):
    (row,) = domain.draw(1, np.random.default_rng(seed))[:1] if len(domain.every()) else (None,)
    assume(row is not None)
    values = {site.name: tuple(site.values[k].tolist()) for site, k in zip(domain.sites, row, strict=True)}
    (found,) = domain.nearest(values, row[None])
    again = [tuple(site.values[k].tolist()) for site, k in zip(domain.sites, found, strict=True)]
    assert again == list(values.values())


def test_values_of_another_workload_find_the_closest_row_that_is_allowed():
    sites = (Site("tile", PerfectTile(48, 2)), Site("unroll", Choice([1, 4, 16])))
    free = Domain(sites)
    prefers = free.row([(1, 48), 2])[None]
    (row,) = free.nearest({"tile": (7, 9), "unroll": (5,)}, prefers)
    assert free.decisions(row) == [(6, 8), 1]
    (row,) = free.nearest({"tile": (7, 9), "another": (5,)}, prefers)
    assert free.decisions(row) == [(6, 8), 2]
    assert len(free.nearest({"tile": (7, 9, 1)}, prefers)) == 0
    assert len(free.nearest({"tile": (7, 9)}, prefers[:0])) == 0
    bounded = Domain(sites, (at_most(7, ["tile", "unroll"]),))
    (row,) = bounded.nearest({"tile": (7, 9), "unroll": (5,)}, prefers)
    assert bounded.allowed(row[None])[0]
