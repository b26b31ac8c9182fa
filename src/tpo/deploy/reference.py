"""ONNX Runtime as the independent reference, and inputs to try a model on."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpo.deploy.inputs import Array, Spec
from tpo.dtypes import numpy_dtype
from tpo.errors import ModelFileError, NotOnnxError

if TYPE_CHECKING:
    import onnx

Ranges = Mapping[str, tuple[float, float]]

NAME = "onnxruntime"
# A model may bound the values of an input: metadata_props["tpo.range.<input>"] = "low,high", high excluded.
RANGE_PREFIX = "tpo.range."
# Protobuf cannot hold more in one message.
PROTOBUF_LIMIT = 2**31 - 1


class Reference:
    """A model in ONNX Runtime, on a given number of threads.

    Unoptimised it computes the graph as it is written, for checking; optimised it is as fast as
    ONNX Runtime can be, for comparing speed.
    """

    def __init__(
        self, model: str | Path | onnx.ModelProto, threads: int = 1, optimised: bool = False
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
        self.version: str = onnxruntime.__version__
        with tempfile.TemporaryDirectory(prefix="tpo-reference-") as folder:
            source = _loadable(model, Path(folder))
            shown = "the model" if isinstance(source, bytes) else source
            try:
                self.session = _session(source, options)
            # onnxruntime's own exceptions share no base class but this one.
            except Exception as error:
                why = _last_line(error)
                raise NotOnnxError(path=shown, why=f"ONNX Runtime says {why}") from error
        self.inputs: list[str] = [item.name for item in self.session.get_inputs()]
        self.outputs: list[str] = [item.name for item in self.session.get_outputs()]

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Value ranges of inputs that the model's metadata declares."""
        return parse_ranges(self.session.get_modelmeta().custom_metadata_map)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name."""
        results = self.session.run(None, dict(inputs))
        return {name: np.asarray(result) for name, result in zip(self.outputs, results, strict=True)}


def _session(source: str | bytes, options: Any) -> Any:
    """A session of a model, also of one that only its IR version makes too new.

    The `onnx` package stamps models with the newest IR version it knows, before ONNX Runtime knows it.
    """
    import onnx
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(source, options, providers=providers)
    except Exception as error:
        newest = re.search(r"max supported IR version: (\d+)", str(error))
        if newest is None:
            raise
    model = onnx.load(source) if isinstance(source, str) else onnx.load_from_string(source)
    model.ir_version = int(newest[1])
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def parse_ranges(metadata: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Value ranges of inputs, from a model's metadata.

    >>> parse_ranges({"tpo.range.ids": "0,30522", "author": "me"})
    {'ids': (0.0, 30522.0)}
    """
    found = {}
    for key, value in metadata.items():
        if key.startswith(RANGE_PREFIX):
            low, _, high = value.partition(",")
            found[key.removeprefix(RANGE_PREFIX)] = (float(low), float(high))
    return found


def random_inputs(specs: Sequence[Spec], seed: int, ranges: Ranges | None = None) -> dict[str, Array]:
    """Reproducible inputs for a model nothing else is known about.

    Floats are normal. 32 and 64 bit integers are 0 or 1, because they are mostly indices, and small
    ones are valid everywhere; 8 and 16 bit ones, mostly pixels, use their whole range.
    """
    rng = np.random.default_rng(seed)
    ranges = ranges or {}
    made: dict[str, Array] = {}
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        given = ranges.get(spec.name)
        values: Any
        if dtype.kind == "b":
            values = rng.integers(0, 2, spec.shape)
        elif dtype.kind in "iu":
            whole = np.iinfo(dtype) if dtype.itemsize <= 2 else None
            low, high = given or ((whole.min, whole.max + 1) if whole else (0, 2))
            values = rng.integers(int(low), int(high), spec.shape)
        else:
            values = rng.uniform(*given, spec.shape) if given else rng.standard_normal(spec.shape)
        made[spec.name] = np.asarray(values).astype(dtype)
    return made


def _loadable(model: str | Path | onnx.ModelProto, folder: Path) -> str | bytes:
    """What a session can be made of: a path, or the bytes of a model that is only in memory."""
    if isinstance(model, (str, Path)):
        path = Path(model)
        if not path.is_file():
            raise ModelFileError(path=path, why="there is no such file")
        return str(path)
    if model.ByteSize() > PROTOBUF_LIMIT:
        return str(_save_with_weights_beside(model, folder))
    content: bytes = model.SerializeToString()
    return content


def _save_with_weights_beside(model: onnx.ModelProto, folder: Path) -> Path:
    import onnx

    # Saving moves the weights out of the message, so it must not be the caller's.
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    path = folder / "model.onnx"
    onnx.save_model(copy, str(path), save_as_external_data=True, location="weights", size_threshold=0)
    return path


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].rpartition(" : ")[2] if lines else type(error).__name__
