"""What the frontend hands on: a model with fixed shapes, as ONNX and as Relax."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and numpy dtype name of one model input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(str, self.shape)) or 'scalar'}:{self.dtype}"


@dataclass(frozen=True)
class Entry:
    """One of several functions of a model, for one size of a dimension."""

    function: str
    size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Model:
    """An imported model: everything later stages need, nothing of the file's history.

    `source` is the ONNX model as read (functions and all), with its input shapes fixed: the
    independent reference that every artifact is compared with. `module` is the Relax module
    whose functions are the tuning tasks. Its entry is `main`; a model for several sizes of a `dimension` has
    `entries` instead, and its own inputs, outputs and source are those of the largest.
    """

    name: str
    path: Path
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: onnx.ModelProto
    module: Any
    entries: tuple[Entry, ...] = ()
    dimension: str = ""
