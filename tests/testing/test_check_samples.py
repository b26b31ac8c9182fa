"""scripts/check_samples.py: what it draws, and that a wrong candidate is counted."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpo import targets
from tpo.measure import Failure, Measurement
from tpo.space import build_space
from tpo.testing import corpus

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_samples.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_samples", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_samples"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def subject(script):
    space = build_space(corpus.workload("elementwise"), targets.resolve("native", 1))
    return script.Subject("elementwise", space, [s for s in space.sketches if not s.name.startswith("tvm/")])


def test_no_program_is_drawn_twice_and_small_spaces_end(script, subject):
    found = [candidate.key for _, candidate in script.samples(subject, 0) if candidate is not None]
    assert found
    assert len(set(found)) == len(found)


def test_outcomes_are_counted_by_rule(script, subject):
    sketch, candidate = next(script.samples(subject, 0))
    failed = Measurement.failed
    results = [
        Measurement(1.0),
        failed(Failure.WRONG_RESULT, "9 of 9 elements differ"),
        failed(Failure.CRASH, "died"),
    ]
    runner = SimpleNamespace(measure=lambda inputs, best: enumerate(results))
    tally = script.Tally()
    script.check_some(runner, subject, [(sketch, candidate)] * 3 + [(sketch, None)], tally)
    assert tally.total == {"drawn": 4, "built": 2, "wrong": 1, "failed": 1, "refused": 1}
    assert tally.rules == {script.rules_of(sketch)[0]: tally.total}
    assert any("9 of 9 elements differ" in text for text in tally.problems)
