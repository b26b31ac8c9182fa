"""Random arguments of a workload, and how its result is told right from wrong."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpo.dtypes import numpy_dtype

Array = np.ndarray[Any, Any]

# Largest error of an element relative to the largest value of the reference. Schedules only reorder
# sums: float32 errors are of the order 1e-6, and a wrong index shows at 1e-2 and more.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_OTHER_FLOATS = 0.15


@dataclass(frozen=True)
class Signature:
    """Shapes and types of a function's parameters, and which of them it writes."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    outputs: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Parameters that are only read."""
        return tuple(k for k in range(len(self.shapes)) if k not in self.outputs)

    def to_json(self) -> str:
        """For other processes."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """The inverse of `to_json`."""
        raw = json.loads(text)
        shapes = tuple(tuple(shape) for shape in raw["shapes"])
        return cls(shapes, tuple(raw["dtypes"]), tuple(raw["outputs"]))


def signature(func: Any, outputs: Sequence[int]) -> Signature:
    """The signature of a function whose outputs are known."""
    shapes = tuple(tuple(int(dim) for dim in param.shape) for param in func.params)
    return Signature(shapes, tuple(str(param.dtype) for param in func.params), tuple(outputs))


def random_array(
    shape: tuple[int, ...], name: str, rng: np.random.Generator, positive: bool = False
) -> Array:
    """Numbers that make mistakes visible and keep functions defined.

    Integers are small and never zero: they may be indices, and they may be divided by. Floats lie in
    [-1, 1), or in [0.5, 1.5) where `positive` ones are asked for.
    """
    dtype = numpy_dtype(name)
    if dtype == np.bool_:
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return np.asarray(rng.integers(1, 8, shape)).astype(dtype)
    low = 0.5 if positive else -1.0
    # float32 halves the time and memory of what may be a hundred million weights.
    values = np.asarray(rng.random(shape, dtype=np.float32))  # numpy has no array of shape ()
    values *= 1.0 if positive else 2.0
    values += np.float32(low)
    return values.astype(dtype, copy=False)


def well_defined(results: list[Array]) -> bool:
    """Whether most of a function's results are numbers: logarithms of negative numbers test nothing."""
    floats = [array.astype(np.float64) for array in results if not np.issubdtype(array.dtype, np.integer)]
    return all(array.size == 0 or np.isfinite(array).mean() > 0.5 for array in floats)


def difference(result: Array, reference: Array) -> tuple[float, str]:
    """The largest error relative to the reference's largest value, and what is wrong ("" if nothing)."""
    if reference.dtype == np.bool_ or np.issubdtype(reference.dtype, np.integer):
        wrong = int(np.count_nonzero(result != reference))
        worst = float(np.abs(result.astype(np.float64) - reference.astype(np.float64)).max(initial=0.0))
        # Rounding a float that a reordered sum moved by one unit may move an 8 bit result by one step.
        allowed = 1.0 if reference.dtype.itemsize == 1 and reference.dtype != np.bool_ else 0.0
        return worst, f"{wrong} of {result.size} integers differ" if worst > allowed else ""
    # In place: the two arrays may be large, and this runs for every candidate.
    exact = reference.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity minus infinity, which is looked at below
        errors = np.asarray(np.subtract(result, exact, dtype=np.float64))  # a scalar otherwise, for shape ()
    defined = np.isfinite(exact)
    strange = int(np.count_nonzero(~defined & ~_same_special(result, exact)))
    if strange:
        return float("inf"), f"{strange} of {result.size} elements are not the reference's NaN or infinity"
    scale = float(np.abs(exact, where=defined, out=np.zeros_like(exact)).max(initial=0.0)) or 1.0
    np.abs(errors, out=errors)
    worst = float(errors.max(initial=0.0, where=defined)) / scale
    limit = _TOLERANCE.get(reference.dtype.name, _OTHER_FLOATS)
    if worst <= limit:  # False for NaN as well
        return worst, ""
    wrong = int(np.count_nonzero(~(errors <= limit * scale) & defined))
    return worst, f"{wrong} of {result.size} elements differ, by up to {worst:.2g} of the largest value"


def _same_special(result: Array, reference: Array) -> Array:
    same: Array = (np.isnan(result) & np.isnan(reference)) | (result == reference)
    return same


def store(folder: Path, known: Signature, arrays: Sequence[Array]) -> None:
    """Write a workload's inputs and reference results for other processes; all or nothing."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    for position, array in enumerate(arrays):
        array.tofile(temporary / f"{position}.bin")
    (temporary / "signature.json").write_text(known.to_json(), encoding="utf-8")
    temporary.rename(folder)


def load(folder: Path) -> tuple[Signature, list[Array]]:
    """What `store` wrote."""
    known = Signature.from_json((folder / "signature.json").read_text(encoding="utf-8"))
    arrays = [
        np.fromfile(folder / f"{position}.bin", numpy_dtype(dtype)).reshape(shape)
        for position, (shape, dtype) in enumerate(zip(known.shapes, known.dtypes, strict=True))
    ]
    return known, arrays
