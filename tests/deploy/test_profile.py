import numpy as np
import pytest

from tpo.deploy.artifact import load
from tpo.deploy.profile import REST, profile
from tpo.errors import InputError, UsageError


def test_every_function_is_timed_and_joined_with_the_manifest(library):
    with load(library) as artifact:
        report = profile(artifact, runs=3)
    rows = {row.name: row for row in report.rows}
    assert set(rows) == {"matmul", "add", "relu", "sum", REST}
    assert report.rows[-1].name == REST
    assert rows["matmul"].operators == ("MatMul",)
    assert rows["matmul"].gflops > 0
    assert rows["relu"].gflops is None
    assert all(row.calls == 1 and row.milliseconds > 0 for row in report.rows[:-1])
    assert sum(row.share for row in report.rows) == pytest.approx(1)
    assert report.latency_ms > 0


def test_profiling_leaves_the_artifact_as_it_was(library):
    x, b = np.ones((4, 64), "float32"), np.zeros(32, "float32")
    with load(library) as artifact:
        before = artifact(x, b)[0]
        profile(artifact, runs=1, inputs={"x": x, "b": b})
        np.testing.assert_array_equal(artifact(x, b)[0], before)


def test_bad_arguments(library):
    with load(library) as artifact:
        with pytest.raises(UsageError, match="0 runs"):
            profile(artifact, runs=0)
        with pytest.raises(InputError, match="missing"):
            profile(artifact, inputs={})
