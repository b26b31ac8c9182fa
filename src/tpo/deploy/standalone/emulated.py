"""A standalone library in an emulator, with the interface of one that was loaded."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tpo.deploy.artifact import Artifact, checked_manifest, load
from tpo.deploy.inputs import Array, bind
from tpo.deploy.manifest import Manifest, Tensor
from tpo.deploy.standalone import build
from tpo.errors import ArtifactError
from tpo.hardware import Hardware
from tpo.measure.cross.places import Qemu, Ran

_TIMEOUT = 3600.0


def load_or_emulate(library: Path, threads: int | None = None) -> Artifact | Emulated:
    """A library that runs here, or one for boards in an emulator."""
    manifest = checked_manifest(library)
    if manifest.memory is not None and manifest.target.arch != platform.machine():
        return Emulated(library, manifest)
    return load(library, threads)


class Emulated:
    """Runs a library as a board would, slowly; `ran` is what was counted during the last run."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest, self.threads = path, manifest, 1
        self.emulator = Qemu(Hardware.from_target(tvm.target.Target(manifest.target.tvm)).vlen)
        self.ran = Ran()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the inputs, in order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the outputs, in order."""
        return self.manifest.outputs

    def tried_inputs(self) -> list[tuple[Tensor, ...]]:
        """Inputs that between them use every function of the library."""
        return [self.inputs]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name; the outputs come back by name."""
        arrays = bind(self.inputs, (), inputs)
        with tempfile.TemporaryDirectory(prefix="tpo-emulate-") as folder:
            names = []
            for number, array in enumerate(arrays):
                names.append(f"{folder}/input{number}.npy")
                np.save(names[-1], np.ascontiguousarray(array))
            program = [str(build.runner()), str(self.path.resolve()), "-o", folder, *names]
            self.ran = self.emulator.run_program(program, _TIMEOUT)
            if self.ran.failure is not None:
                raise ArtifactError(path=self.path, why=f"{self.ran.failure} in QEMU: {self.ran.message}")
            return {spec.name: np.load(f"{folder}/{k}.npy") for k, spec in enumerate(self.outputs)}

    def __enter__(self) -> Emulated:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""
