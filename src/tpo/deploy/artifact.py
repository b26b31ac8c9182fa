"""Load a compiled library and run it: needs the TVM runtime and numpy, no compiler and no ONNX.

TVM keeps a pool of workers per calling thread, sized when that thread first uses it. The thread that
first calls an artifact becomes its home: its pool gets exactly the wanted number of workers, and its
calls run right there, without waking anybody. Calls from other threads, and from a home whose pool was
made smaller by something else, go to a runner thread that the artifact owns, which has such a pool
whatever TVM_NUM_THREADS says. One call runs at a time: they never share buffers, and never oversubscribe
the CPU.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tpo.deploy import manifest as manifests
from tpo.deploy.inputs import Array, bind
from tpo.deploy.manifest import Manifest, Tensor
from tpo.deploy.runner import Program, Runner, RunnerStoppedError, load_programs
from tpo.deploy.sizes import Sizes
from tpo.errors import ArtifactError, UsageError, WrongMachineError
from tpo.hardware import available_cores, host_features
from tpo.threads import size_worker_pool

# Hashing 256 MB takes about half a second; above that only the size is compared at load, and
# `tpo verify` still compares the hash.
HASH_AT_LOAD_BYTES = 256 * 1024 * 1024
MAX_THREADS = 1024

_Result = TypeVar("_Result")


def load(path: str | os.PathLike[str], threads: int | None = None, pin: bool = False) -> Artifact:
    """Load a library that `tpo compile` wrote, to run on `threads` threads.

    Without `threads` it takes as many as it was compiled for, but no more than this process has CPUs. With
    `pin` every thread stays on a CPU of its own, and calls run on a thread of the artifact's.
    """
    library = Path(path)
    manifest, threads = check(library, threads)
    if pin and threads > available_cores():
        why = f"cannot pin {threads} threads on {available_cores()} CPUs"
        raise UsageError(why=why, advice="give fewer threads, or do not pin them")
    return Artifact(library, manifest, threads, pin)


def check(library: Path, threads: int | None = None) -> tuple[Manifest, int]:
    """The manifest of a library that this machine can run, and the threads it would run on."""
    manifest = checked_manifest(library)
    _check_machine(library, manifest)
    if threads is None:
        threads = min(manifest.threads, available_cores())
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise UsageError(
            why=f"cannot run on {threads} threads", advice=f"give a number from 1 to {MAX_THREADS}"
        )
    return manifest, threads


def checked_manifest(library: Path, always_hash: bool = False) -> Manifest:
    """The manifest of a library, after making sure that the two belong together."""
    if not library.is_file():
        raise ArtifactError(
            path=library, why="it is not a file" if library.exists() else "there is no such file"
        )
    if library.suffix != ".so":
        # TVM chooses how to load a file by its ending.
        raise ArtifactError(path=library, why="the name of a library must end in .so")
    manifest = manifests.read(library)
    try:
        size = library.stat().st_size
        fits = size == manifest.library.bytes
        if fits and (always_hash or size <= HASH_AT_LOAD_BYTES):
            fits = manifests.sha256_of(library) == manifest.library.sha256
    except OSError as error:
        raise ArtifactError(path=library, why=error.strerror) from error
    if not fits:
        name = manifests.manifest_path(library).name
        raise ArtifactError(path=library, why=f"its manifest {name} describes another or a damaged library")
    return manifest


def _check_machine(library: Path, manifest: Manifest) -> None:
    here, target = platform.machine(), manifest.target
    features = host_features()
    if target.arch != here:
        missing = [f"the {target.arch} instruction set"]
    else:
        missing = [feature for feature in target.features if feature not in features]
    if missing:
        suggestion = {"x86_64": "x86-64-v3" if "avx2" in features else "x86-64-v2"}.get(here, here)
        raise WrongMachineError(
            path=library, target=target.name, missing=", ".join(missing), suggestion=suggestion
        )


class Artifact:
    """A loaded library. Call it with numpy arrays; close it, or use it in a `with` block, when done.

    `artifact(x)`, `artifact(x, mask=m)` and `artifact.run({"x": x})` are the same computation. The
    first two return one array, or a tuple of arrays when the model has several outputs.
    """

    def __init__(self, path: Path, manifest: Manifest, threads: int, pin: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self.threads = threads
        self.pinned = pin
        self._sizes = Sizes(manifest) if manifest.buckets else None
        self._owner = os.getpid()
        self._home: threading.Thread | None = None
        self._turn = threading.Lock()
        self._runner = Runner(f"tpo-{path.stem}")
        self._programs: dict[str, Program] | None = self._runner.do(self._load)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the inputs, in order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the outputs, in order."""
        return self.manifest.outputs

    def __call__(self, /, *args: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run on positional and/or named inputs."""
        results = self._execute(args, named)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any], copy: bool = True) -> dict[str, Array]:
        """Run on inputs by name; the outputs come back by name.

        Without `copy` they are read-only views of the memory they were computed in, which they keep.
        """
        results = self._execute((), inputs, copy)
        return {spec.name: result for spec, result in zip(self.outputs, results, strict=True)}

    def tried_inputs(self) -> list[tuple[Tensor, ...]]:
        """Inputs that between them use every function of the library."""
        return [self.inputs] if self._sizes is None else self._sizes.tried()

    def with_program(self, work: Callable[[Program], _Result], entry: str = "") -> _Result:
        """Call `work(program)` where a pool of the right size is, alone: for timing and profiling too.

        The program is that of an entry, by default the only one, or that of the largest size.
        """
        if self._owner != os.getpid():
            # Threads did not survive the fork, and waiting for them would never end.
            why = "this process was forked after it was loaded; load it in each process"
            raise ArtifactError(path=self.path, why=why)
        if not self.pinned and self._is_home() and size_worker_pool(self.threads):
            return self._alone(work, entry)
        try:
            return self._runner.do(lambda: self._alone(work, entry))
        except RunnerStoppedError:
            raise self._closed() from None

    def close(self) -> None:
        """Finish the calls under way and release threads and memory; closing twice is harmless."""
        self._runner.stop()
        if self._owner == os.getpid():
            with self._turn:
                self._programs = None

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"Artifact({str(self.path)!r}, {takes} -> {gives}, threads={self.threads})"

    def _load(self) -> dict[str, Program]:
        if not size_worker_pool(self.threads, self.pinned):
            raise ArtifactError(path=self.path, why=f"TVM gives it no pool of {self.threads} workers")
        return load_programs(self.path, self.manifest)

    def _is_home(self) -> bool:
        """Whether the calling thread is the artifact's home, which it becomes if there is none."""
        me = threading.current_thread()
        if self._home is None or not self._home.is_alive():
            self._home = me
        return self._home is me

    def _alone(self, work: Callable[[Program], _Result], entry: str) -> _Result:
        with self._turn:
            if self._programs is None:
                raise self._closed()
            return work(self._programs[entry] if entry else list(self._programs.values())[-1])

    def _closed(self) -> ArtifactError:
        return ArtifactError(path=self.path, why="it was closed; load it again")

    def _execute(self, args: Sequence[Any], named: Mapping[str, Any], copy: bool = True) -> list[Array]:
        if self._sizes is None:
            arrays = bind(self.inputs, args, named)
            return self.with_program(lambda program: program(arrays, copy))
        fitted = self._sizes.fit(args, named)
        results = self.with_program(lambda program: program(fitted.arrays, copy), fitted.bucket.function)
        return self._sizes.cropped(fitted, results)
