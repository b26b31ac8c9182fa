"""Landscapes are stored whole, and searches in them show what a strategy is worth."""

import numpy as np
import pytest

from tpo.cost.online import OnlineModel
from tpo.cost.ranking import RankingModel
from tpo.errors import LandscapeError, UsageError
from tpo.lang import Choice, PerfectTile
from tpo.search.evolve import Evolve
from tpo.search.landscape import Landscape, RecordedSketch, shipped
from tpo.search.simulation import Regret, make_strategy, search
from tpo.space.decisions import Domain, Site
from tpo.testing.strategies import check_strategy

TRIALS = 32


def sketch(name: str, slowness: float, seed: int) -> RecordedSketch:
    """Times that grow with the distance of the decisions from one place; features that tell about it."""
    sites = (Site("tile", PerfectTile(64, 3)), Site("unroll", Choice([1, 2, 4, 8, 16])))
    rows = Domain(sites).every()
    tiles = np.log2(sites[0].values[rows[:, 0]])
    unroll = np.log2(sites[1].values[rows[:, 1], 0])
    distance = np.abs(tiles[:, 1] - 2) + np.abs(tiles[:, 2] - 3) + np.abs(unroll - 2)
    rng = np.random.default_rng(seed)
    seconds = slowness * 1e-3 * (1 + 0.3 * distance) * (1 + 0.01 * rng.random(len(rows)))
    seconds[::17] = np.inf
    features = np.column_stack([tiles, unroll, np.full(len(rows), slowness)]).astype(np.float32)
    return RecordedSketch(name, sites, rows, seconds, features, rows[:1])


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    about = {"name": "made up", "key": "0123", "cpu": "none", "threads": 2}
    return Landscape(about, (sketch("good", 1.0, 0), sketch("bad", 2.5, 1)))


def test_it_is_stored_whole(landscape, tmp_path):
    landscape.save(tmp_path / "made_up.db")
    again = Landscape.load(tmp_path / "made_up.db")
    assert again.about == landscape.about and len(again) == len(landscape) and again.best == landscape.best
    for mine, other in zip(landscape.sketches, again.sketches, strict=True):
        assert mine.name == other.name and mine.sites == other.sites
        np.testing.assert_array_equal(mine.rows, other.rows)
        np.testing.assert_array_equal(mine.seconds, other.seconds)
        np.testing.assert_allclose(mine.features, other.features, rtol=1e-3)
        np.testing.assert_array_equal(mine.preferred_row, other.preferred_row)


@pytest.mark.parametrize("content", [None, b"", b"rubbish"])
def test_rubbish_is_no_landscape(tmp_path, content):
    path = tmp_path / "rubbish.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LandscapeError, match=r"rubbish\.db") as caught:
        Landscape.load(path)
    assert caught.value.exit_code == 2


def final(landscape: Landscape, strategy: str, cost: str, seeds: int = 5, after: int = TRIALS) -> float:
    curves = [
        search(make_strategy(strategy, cost, landscape, seed), landscape, TRIALS) for seed in range(seeds)
    ]
    for curve in curves:
        finite = curve[np.isfinite(curve)]
        assert len(curve) == TRIALS and np.all(np.diff(finite) <= 0) and finite[-1] >= 0
    return float(Regret.of(curves).mean[after - 1])


def test_searching_with_a_model_finds_better_candidates_than_chance(landscape):
    assert final(landscape, "evolutionary", "ranking") < 0.5 * final(landscape, "random", "ranking")


def test_strategies_keep_their_contract_in_a_landscape(landscape):
    for strategy in ("evolutionary", "random"):
        check_strategy(lambda rng, s=strategy: make_strategy(s, "ranking", landscape, int(rng.integers(99))))


def test_only_what_was_measured_is_proposed(landscape):
    strategy = make_strategy("evolutionary", "ranking", landscape, 0)
    for candidate in strategy.propose(40, set()):
        assert landscape.row(candidate) is not None
        assert candidate.row.tobytes() in landscape.sketch(candidate.sketch).places


@pytest.mark.parametrize("strategy, cost", [("guessing", "ranking"), ("evolutionary", "guessing")])
def test_an_unknown_name_is_one_clear_line(landscape, strategy, cost):
    with pytest.raises(UsageError, match="guessing"):
        make_strategy(strategy, cost, landscape, 0)


def test_bands_hold_the_mean():
    curves = [np.array([np.inf, 1.0, 0.5]), np.array([2.0, 1.5, 0.1])]
    regret = Regret.of(curves)
    assert regret.mean.tolist() == [2.0, 1.25, 0.3]
    assert np.all(regret.low[1:] <= regret.mean[1:]) and np.all(regret.mean[1:] <= regret.high[1:])


def test_a_few_of_a_large_sketch_are_all_there_is():
    """As of TVM's sketches, of which no landscape has everything: chains go from one row to another."""
    sites = tuple(Site(f"tile{k}", PerfectTile(720, 4)) for k in range(3))
    rng = np.random.default_rng(0)
    rows = np.unique(Domain(sites).draw(60, rng), axis=0)
    few = RecordedSketch("few", sites, rows, rng.random(60) + 1, rng.random((60, 4), np.float32), rows[:0])
    domain = few.domain
    assert domain.support == len(domain.spread(80, rng)) == 60 and domain.draw(80, rng).shape == (80, 3)
    for found in (domain.draw(9, rng), domain.mutate(rows[:9], rng), domain.cross(rows[:9], rows[9:18], rng)):
        assert domain.allowed(found).all()
    assert (domain.mutate(rows, rng) != rows).any(axis=1).all()
    assert not domain.allowed(Domain(sites).draw(20, rng)).all()
    whole = Landscape({"key": "few"}, (few,))
    strategy = Evolve(whole, OnlineModel(RankingModel(names="abcd")), rng, 1, whole, chains=4)
    assert search(strategy, whole, 60)[-1] == 0, "so many trials find the best of so few"


def test_what_is_preferred_need_not_have_been_measured():
    good = sketch("good", 1.0, 0)
    rows, kept = good.rows, np.arange(1, len(good.rows))
    partly = RecordedSketch("good", good.sites, rows[kept], good.seconds[kept], good.features[kept], rows[:1])
    whole = Landscape({"key": "partly"}, (partly,))
    strategy = make_strategy("evolutionary", "ranking", whole, 0)
    known = [candidate for _ in range(3) for candidate in strategy.propose(8, set())]
    assert len({candidate.key for candidate in known}) == 24
    assert all(candidate.row.tobytes() in partly.places for candidate in known)
    assert not whole.features(partly, rows[:1]).any()


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_in_shipped_landscapes_a_model_that_knows_others_beats_chance(path):
    """None of their workloads was among those the model was trained with."""
    recorded = Landscape.load(path)
    assert len(recorded) >= 200 and recorded.about["cpu"]
    assert final(recorded, "evolutionary", "pretrained") < 0.1
    early = [final(recorded, s, "pretrained", after=8) for s in ("evolutionary", "random")]
    assert early[0] < early[1]


def test_landscapes_are_shipped():
    assert len(shipped()) >= 3 and sum(path.stat().st_size for path in shipped()) < 3_000_000


def test_a_landscape_with_other_features_is_refused_by_the_pretrained_model(landscape):
    with pytest.raises(UsageError, match="other features"):
        make_strategy("evolutionary", "pretrained", landscape, 0)
