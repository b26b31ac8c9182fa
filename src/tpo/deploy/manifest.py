"""What is written beside a compiled library: where it came from, what it takes, where it may run.

The manifest of `m.so` is `m.so.json`. Loading needs it: names of inputs are not in the library.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpo.errors import ArtifactError, OutputError

SCHEMA_VERSION = 2


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tensor(_Part):
    """One input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(str, self.shape)) or 'scalar'}:{self.dtype}"


class ModelSource(_Part):
    """The ONNX file the library was compiled from."""

    name: str
    path: str
    sha256: str


class TargetInfo(_Part):
    """The CPU the library was compiled for."""

    name: str
    tvm: str
    arch: str
    features: tuple[str, ...] = ()


class Versions(_Part):
    """The tools that made the library."""

    tpo: str
    tvm: str
    llvm: str


class Function(_Part):
    """One compiled function: what it computes, how often a run calls it, who scheduled it."""

    name: str
    operators: tuple[str, ...]
    calls: int = Field(ge=0)
    flops: int = Field(ge=0, description="floating point operations of one call")
    bytes: int = Field(ge=0, description="bytes of inputs and outputs of one call")
    scheduled_by: str
    tuned: bool = Field(default=False, description="whether the schedule comes from a tuning record")


class NumericCheck(_Part):
    """How far the library's results were from the reference's when it was compiled."""

    reference: str
    max_abs_error: float
    max_rel_error: float
    tolerance: str
    seeds: tuple[int, ...]


class Library(_Part):
    """Identity of the shared library this manifest describes."""

    sha256: str
    bytes: int


class Bucket(_Part):
    """One of several functions of a library: for one size of a dimension."""

    function: str
    size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Memory(_Part):
    """What a standalone library needs, in bytes: instructions, weights, and room for what is in between."""

    code: int
    constants: int
    workspace: int


class Manifest(_Part):
    """Everything known about a compiled library.

    A library for several sizes of a `dimension` has `buckets`; inputs and outputs are then those of the
    largest. `padded` says that shorter inputs, filled up with zeros, were shown to give the same results. A
    standalone library, which needs no TVM, says how much `memory` it takes.
    """

    schema_version: Literal[1, 2] = 2
    model: ModelSource
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    target: TargetInfo
    versions: Versions
    threads: int = Field(ge=1)
    functions: tuple[Function, ...]
    numeric_check: NumericCheck | None = None
    library: Library
    created: datetime
    dimension: str = ""
    buckets: tuple[Bucket, ...] = ()
    padded: bool = False
    memory: Memory | None = None


def now() -> datetime:
    """The moment to write into `Manifest.created`."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def describe_library(path: Path) -> Library:
    """Digest and size of a library as it is on disk now."""
    return Library(sha256=sha256_of(path), bytes=path.stat().st_size)


def manifest_path(library: Path) -> Path:
    """Where the manifest of a library is.

    >>> manifest_path(Path("out/m.so")).name
    'm.so.json'
    """
    return library.with_name(library.name + ".json")


def write(manifest: Manifest, library: Path) -> Path:
    """Write the manifest beside its library, whole or not at all."""
    path = manifest_path(library)
    text = json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n"
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OutputError(path=path, why=error.strerror) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes private files; a manifest is as public as the library beside it.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise OutputError(path=path, why=error.strerror) from error
    return path


def read(library: Path) -> Manifest:
    """The manifest of a library, checked for form; `tpo.load` checks that it fits the library."""
    path = manifest_path(library)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(path=library, why=f"its manifest {path.name} is missing") from error
    except OSError as error:
        raise ArtifactError(path=library, why=f"cannot read {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise ArtifactError(path=library, why=f"its manifest {path.name} is not JSON") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise ArtifactError(path=library, why=f"{path.name} is not a manifest that tpo wrote")
    if version > SCHEMA_VERSION:
        why = f"its manifest has version {version} and this tpo reads up to {SCHEMA_VERSION}: use a newer tpo"
        raise ArtifactError(path=library, why=why)
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(path=library, why=f"its manifest {path.name} is broken at {where}") from error
