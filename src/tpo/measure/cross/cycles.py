"""Modelled cycles: what an emulator has counted, each count with its weight.

They are a guess of how long an in-order core would take, to rank candidates by, and never seconds. The
weights are in configs/riscv/cycles.toml; `tpo riscv calibrate` fits them to the times of a board.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from tpo.errors import UsageError
from tpo.resources import folder

# The standard library has it since 3.11; tomli is the same module for 3.10.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# The plugin's counters, in its order; the work of vector instructions in eighths of a register.
COUNTERS = (
    *("scalar", "load", "store", "branch", "multiply", "divide", "fp", "fp_divide", "vset", "vector"),
    *("vector_memory", "vector_simple", "vector_multiply", "vector_divide", "vector_permute"),
    *("vector_reduction", "vector_elements", "l1_miss", "l2_miss"),
)
FEWEST = len(COUNTERS)  # records to fit weights to


class Weights(dict[str, float]):
    """Cycles for each count, by the counter's name."""

    def cycles(self, counters: Mapping[str, int]) -> float:
        """What some counts add up to.

        >>> Weights(vector=1.0, l1_miss=10.0).cycles({"vector": 3, "l1_miss": 2, "branch": 7})
        23.0
        """
        return sum(weight * counters.get(name, 0) for name, weight in self.items())


def shipped() -> Path:
    """The file of the weights that are used unless others are given."""
    return folder("configs") / "riscv" / "cycles.toml"


def load(path: Path | None = None) -> Weights:
    """The weights of a file: a number of cycles, zero or more, for every counter."""
    path = path or shipped()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))["cycles"]
    except OSError as error:
        raise _refused(path, f"it cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(path, f"it is not valid TOML ({error})") from error
    except (KeyError, TypeError) as error:
        raise _refused(path, "it has no section [cycles]") from error
    unknown = sorted(set(content) - set(COUNTERS)) if isinstance(content, dict) else ["cycles"]
    if unknown:
        raise _refused(path, f"there is no counter {unknown[0]!r}")
    missing = [name for name in COUNTERS if name not in content]
    if missing:
        raise _refused(path, f"the weight of {missing[0]} is missing")
    for name, value in content.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < np.inf:
            raise _refused(path, f"the weight of {name} should be a number of cycles, not {value!r}")
    return Weights({name: float(content[name]) for name in COUNTERS})


def fit(counters: Sequence[Mapping[str, int]], seconds: Sequence[float], hertz: float) -> Weights:
    """The weights that explain times on a board best, none negative; every record counts the same."""
    table = np.array([[row.get(name, 0) for name in COUNTERS] for row in counters], np.float64)
    cycles = np.asarray(seconds, np.float64) * hertz
    # Relative errors: a kernel of a microsecond says as much as one of a millisecond. Columns in the same
    # order of magnitude, or the solver stops too early.
    scaled = table / cycles[:, None]
    sizes = np.where(scaled.any(axis=0), np.abs(scaled).max(axis=0), 1.0)
    found, _ = nnls(scaled / sizes, np.ones(len(cycles)))
    return Weights(dict(zip(COUNTERS, (found / sizes).tolist(), strict=True)))


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(why=f"cannot use {path} as weights: {why}", advice=f"start from a copy of {shipped()}")
