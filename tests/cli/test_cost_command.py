"""`tpo cost` and `tpo simulate`: a model from a store of records, and searches without hardware."""

import json

import numpy as np
import pytest

from support.commands import assert_refused
from tpo import targets
from tpo.cost.features import NAMES
from tpo.lang import Choice
from tpo.measure.contract import Measurement
from tpo.records import Records, RunInfo, target_key
from tpo.search.landscape import Landscape, RecordedSketch
from tpo.space import build_space
from tpo.space.decisions import Domain, Site
from tpo.testing import corpus

TARGET = targets.resolve("native", 2)
WORKLOADS = ("conv 1x1", "matmul", "conv 3x3")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Made-up times of real candidates of three workloads."""
    path = tmp_path_factory.mktemp("cost") / "run.db"
    key = target_key(TARGET.tvm)
    rng = np.random.default_rng(0)
    with Records.open(path) as records:
        run = records.begin_run(RunInfo("model", "", "", key, 2, 0))
        for name in WORKLOADS:
            space = build_space(corpus.workload(name), TARGET)
            records.add_workload(space.workload, name)
            made = {}
            for sketch in space.sketches[:3]:
                found = (space.at(sketch, row) for row in sketch.domain.draw(8, rng))
                made.update({candidate.key: candidate for candidate in found if candidate is not None})
            for candidate in made.values():
                seconds = 1e-3 * float(rng.random() + 0.5)
                records.add(run, space.workload.key, key, candidate, Measurement(seconds))
        records.end_run(run, "done")
    return path


def test_a_model_is_trained_judged_and_looked_into(store, tmp_path, tpo_inside):
    model = tmp_path / "model.zip"
    done = tpo_inside("cost", "train", store, "-o", model)
    assert done.returncode == 0 and "of 3 workloads" in done.stdout and model.exists()
    shown = tpo_inside("cost", "show", model, "--json")
    assert shown.returncode == 0
    content = json.loads(shown.stdout)
    assert set(content["features"]) == set(NAMES) and content["about"]["groups"] == 3
    table = tpo_inside("cost", "eval", store)
    assert table.returncode == 0
    first = [line.split()[0] for line in table.stdout.splitlines()]
    assert first == ["model", "random", "regression", "ranking"]


def test_what_cannot_be_learnt_from_is_one_clear_line(tmp_path, tpo_inside):
    assert_refused(tpo_inside("cost", "train", tmp_path / "none.db", "-o", tmp_path / "m.zip"), "none.db")
    with Records.open(tmp_path / "empty.db"):
        pass
    assert_refused(
        tpo_inside("cost", "train", tmp_path / "empty.db", "-o", tmp_path / "m.zip"), "nothing to learn"
    )
    (tmp_path / "rubbish.zip").write_text("rubbish")
    assert_refused(tpo_inside("cost", "show", tmp_path / "rubbish.zip"), "rubbish.zip")
    assert not (tmp_path / "m.zip").exists()


@pytest.fixture
def landscape(tmp_path):
    sites = (Site("a", Choice(list(range(1, 17)))), Site("b", Choice([1, 2, 4, 8])))
    rows = Domain(sites).every()
    seconds = 1e-3 * (1 + np.abs(rows[:, 0] - 5) + rows[:, 1])
    sketch = RecordedSketch("only", sites, rows, seconds, rows.astype(np.float32), rows[:1])
    Landscape({"key": "00", "name": "made up"}, (sketch,)).save(tmp_path / "made_up.db")
    return tmp_path / "made_up.db"


def test_a_search_is_replayed_in_a_landscape(landscape, tpo_inside):
    words = ("simulate", landscape, "--cost", "ranking", "--seeds", 3, "--trials", 16)
    done = tpo_inside(*words)
    assert done.returncode == 0
    header, row = done.stdout.splitlines()
    assert header.split() == ["landscape", "1", "2", "4", "8", "16"] and row.startswith("made_up")
    content = json.loads(tpo_inside(*words, "--json").stdout)
    mean = content["made_up"]["mean"]
    assert len(mean) == 16 and mean == sorted(mean, reverse=True)


def test_bad_landscapes_and_names_are_one_clear_line(landscape, tmp_path, tpo_inside):
    assert_refused(tpo_inside("simulate", tmp_path / "none.db"), "none.db", "record_landscapes")
    assert_refused(tpo_inside("simulate", landscape, "--strategy", "guessing"), "guessing", "evolutionary")
    assert_refused(tpo_inside("simulate", landscape, "--cost", "guessing"), "guessing", "ranking")
