"""Output buffers are filled with what no candidate computes by accident."""

import numpy as np
import pytest

from tpo.measure.worker import _garbage


@pytest.mark.parametrize("shape", [(), (1,), (3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_garbage_differs_from_the_result_everywhere(shape, dtype):
    like = np.ones(shape, dtype)
    made = _garbage(like)
    assert made.shape == shape and made.dtype == like.dtype
    assert (made != like).all()
