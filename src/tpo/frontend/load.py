"""`load_onnx`: the whole frontend in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from tpo.frontend.model import Model
from tpo.frontend.pipeline import stages
from tpo.frontend.read import read
from tpo.frontend.shapes import signature


def load_onnx(path: str | Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Model:
    """Read an ONNX file and bring it to the form that tuning and compilation work on.

    `shapes` fixes dynamic inputs: `load_onnx("m.onnx", shapes={"x": (1, 3, 224, 224)})`.
    """
    path = Path(path)
    source, digest = read(path)
    done: dict[str, Any] = {}
    for name, result in stages(source, str(path), shapes or {}):
        # Only these two outlive the next stage: intermediate copies of the weights should not.
        if name in ("shapes", "mark"):
            done[name] = result
    fixed: onnx.ModelProto = done["shapes"]
    inputs, outputs = signature(fixed)
    return Model(path.stem, path, digest, inputs, outputs, fixed, done["mark"])
