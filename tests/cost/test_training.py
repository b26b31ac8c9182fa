"""What models are trained with is what was measured, not a guess of it."""

from types import SimpleNamespace

import numpy as np

from tpo.cost.simulator import Simulator
from tpo.cost.training import learnable
from tpo.space import build_space
from tpo.targets import resolve
from tpo.testing import corpus


def test_trials_are_described_by_their_own_structures():
    space = build_space(corpus.workload("softmax"), resolve("x86-64-v3"))
    sketch = space.sketch("tvm/1")
    made = [space.at(sketch, row) for row in sketch.domain.draw(12, np.random.default_rng(0))]
    candidates = [candidate for candidate in made if candidate is not None]
    trials = [SimpleNamespace(sketch=sketch.name, trace=c.trace_json, seconds=1.0) for c in candidates]
    found = learnable(space, trials).features
    rows = np.stack([space.row(candidate)[1] for candidate in candidates])
    alone = Simulator.of(space)
    assert (alone.features(sketch, rows) != found).any(), "they have several structures"
    alone.watch(sketch, rows)
    np.testing.assert_array_equal(alone.features(sketch, rows), found)
