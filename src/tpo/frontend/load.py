"""`load_onnx`: the whole frontend in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from tpo.errors import BucketError
from tpo.frontend.buckets import checked_sizes, join
from tpo.frontend.model import Model
from tpo.frontend.pipeline import stages
from tpo.frontend.read import read
from tpo.frontend.shapes import signature


def load_onnx(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
) -> Model:
    """Read an ONNX file and bring it to the form that tuning and compilation work on.

    `shapes` fixes dynamic inputs: `load_onnx("m.onnx", shapes={"x": (1, 3, 224, 224)})`. `buckets` makes one
    model for several sizes of a dimension: `load_onnx("m.onnx", buckets={"sequence": (32, 64, 128)})`.
    """
    path = Path(path)
    source, digest = read(path)
    if not buckets:
        return _made(source, digest, path, shapes or {}, {})
    ((dimension, given),) = _single(buckets)
    sizes = checked_sizes(f"{dimension}={','.join(map(str, given))}", given)
    models = [_made(source, digest, path, shapes or {}, {dimension: size}) for size in sizes]
    return join(models, dimension, sizes)


def _single(buckets: Mapping[str, Sequence[int]]) -> list[tuple[str, Sequence[int]]]:
    if len(buckets) > 1:
        raise BucketError(text=", ".join(buckets), why="only one dimension may have several sizes")
    return list(buckets.items())


def _made(
    source: onnx.ModelProto,
    digest: str,
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dimensions: Mapping[str, int],
) -> Model:
    done: dict[str, Any] = {}
    for name, result in stages(source, str(path), shapes, dimensions):
        # Only these two outlive the next stage: intermediate copies of the weights should not.
        if name in ("shapes", "mark"):
            done[name] = result
    fixed: onnx.ModelProto = done["shapes"]
    inputs, outputs = signature(fixed)
    return Model(path.stem, path, digest, inputs, outputs, fixed, done["mark"])
