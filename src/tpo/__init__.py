"""tpo, the tensor program optimizer: ONNX models to fast, verified libraries, on Apache TVM.

>>> import tpo
>>> model = tpo.load_onnx("model.onnx")                    # doctest: +SKIP
>>> records = tpo.tune(model, minutes=10)                  # doctest: +SKIP
>>> tpo.compile(model, "model.so", records=records)        # doctest: +SKIP
>>> y = tpo.load("model.so")(x)                            # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpo.deploy.artifact import Artifact as Artifact
    from tpo.deploy.artifact import load as load
    from tpo.deploy.bench import bench as bench
    from tpo.deploy.compile import compile as compile  # noqa: A004
    from tpo.deploy.profile import profile as profile
    from tpo.deploy.verify import verify as verify
    from tpo.frontend.load import load_onnx as load_onnx
    from tpo.frontend.model import Model as Model
    from tpo.lang import Choice as Choice
    from tpo.lang import ComputeLocation as ComputeLocation
    from tpo.lang import IntRange as IntRange
    from tpo.lang import PartitionedTile as PartitionedTile
    from tpo.lang import PerfectTile as PerfectTile
    from tpo.lang import PowerOfTwo as PowerOfTwo
    from tpo.lang import condition as condition
    from tpo.lang import constrain as constrain
    from tpo.lang import decline as decline
    from tpo.lang import fork as fork
    from tpo.lang import prior as prior
    from tpo.lang import rule as rule
    from tpo.lang import sample as sample
    from tpo.lang import scope as scope
    from tpo.lang import seed as seed
    from tpo.lang import trace as trace
    from tpo.lang.library import register as register
    from tpo.records import Records as Records
    from tpo.tasks import extract_tasks as extract_tasks
    from tpo.tuning import tune as tune

__version__ = "0.1.0"

# Otherwise TVM pins the first thread that runs a kernel to half of the CPUs, and its children with it,
# and the workers of two artifacts to the same CPUs.
os.environ.setdefault("TVM_BIND_THREADS", "0")

_LANGUAGE = (
    "Choice",
    "ComputeLocation",
    "IntRange",
    "PartitionedTile",
    "PerfectTile",
    "PowerOfTwo",
    "condition",
    "constrain",
    "decline",
    "fork",
    "prior",
    "rule",
    "sample",
    "scope",
    "seed",
    "trace",
)
# Imported on first use: `tpo.load` must not pull in the compiler's frontend, nor `tpo --help` TVM.
_HOMES = {
    "Artifact": "tpo.deploy.artifact",
    "Model": "tpo.frontend.model",
    "Records": "tpo.records",
    "bench": "tpo.deploy.bench",
    "compile": "tpo.deploy.compile",
    "extract_tasks": "tpo.tasks",
    "load": "tpo.deploy.artifact",
    "load_onnx": "tpo.frontend.load",
    "profile": "tpo.deploy.profile",
    "tune": "tpo.tuning",
    "verify": "tpo.deploy.verify",
    "register": "tpo.lang.library",
    **dict.fromkeys(_LANGUAGE, "tpo.lang"),
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tpo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
