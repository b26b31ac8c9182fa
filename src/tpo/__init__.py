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
    from tpo.records import Records as Records
    from tpo.tasks import extract_tasks as extract_tasks
    from tpo.tuning import tune as tune

__version__ = "0.1.0"

# Otherwise TVM pins the first thread that runs a kernel to half of the CPUs, and its children with it,
# and the workers of two artifacts to the same CPUs.
os.environ.setdefault("TVM_BIND_THREADS", "0")

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
