"""Names of element types, as TVM and ONNX write them, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name, ml_dtypes' ones (bfloat16, float8, int4) included."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return made
