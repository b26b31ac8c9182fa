"""The model that comes with tpo fits this version, and knows slow programs of workloads it has never seen."""

import numpy as np
import pytest

from tpo.cost.features import NAMES
from tpo.cost.pretrained import pretrained_model
from tpo.cost.simulator import Simulator
from tpo.space import build_space
from tpo.targets import resolve
from tpo.testing.operators import workload


def test_it_is_for_the_features_of_this_version():
    model = pretrained_model()
    assert model is not None and model.ready and model.names == NAMES
    assert model.about["workloads"] > 50 and model.about["trials"] > 1000


@pytest.mark.parametrize("name", ["GMM", "C1D"])
def test_it_prefers_our_register_tiles_to_most_of_what_tvm_could_do(name):
    space = build_space(workload(name), resolve("x86-64-v4", threads=2))
    simulator, model = Simulator.of(space), pretrained_model()
    ours = [s for s in space.sketches if "contraction" in s.name]
    theirs = [s for s in space.sketches if s.name.startswith("tvm/")]
    best = max(model.predict(simulator.features(s, s.preferred_row)).score.max() for s in ours)
    rows = [(s, s.domain.draw(200, np.random.default_rng(0))) for s in theirs]
    others = np.concatenate([model.predict(simulator.features(*pair)).score for pair in rows])
    assert best > np.quantile(others, 0.9)
