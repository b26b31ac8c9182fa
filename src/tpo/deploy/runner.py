"""A loaded library, worker pools of the right size, and a thread that has one whatever the caller has."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from tpo.deploy.inputs import Array
from tpo.deploy.manifest import Manifest, Tensor
from tpo.dtypes import numpy_dtype
from tpo.errors import ArtifactError

# What code compiled by TVM may assume of every buffer.
_ALIGNMENT = 64

# The function of a library that has only one.
ENTRY = "main"

_Result = TypeVar("_Result")


class _Request:
    """A piece of work, and the place its result or error is put."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        # A lock taken by the caller and released by the runner is the cheapest signal there is.
        self.done = threading.Lock()
        self.done.acquire()


class _Line:
    """Requests waiting for their turn, until it is closed."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[_Request | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = True

    def join(self, request: _Request) -> bool:
        """Queue up; False when closed: nobody would ever serve the request."""
        with self._lock:
            if self._open:
                self.waiting.put(request)
            return self._open

    def close(self) -> None:
        """Serve who is waiting, and nobody after them."""
        with self._lock:
            if self._open:
                self._open = False
                self.waiting.put(None)


class Runner:
    """A thread that does one piece of work after the other, in the order they were handed in.

    An executor of `concurrent.futures` would do, with more Python between a call and its answer.
    """

    def __init__(self, name: str) -> None:
        self._line = _Line()
        self._thread = threading.Thread(target=_serve, args=(self._line,), name=name, daemon=True)
        self._thread.start()
        # Also called when the runner is forgotten, and at interpreter exit.
        self._finish = weakref.finalize(self, _stop, self._line, self._thread, os.getpid())

    def do(self, work: Callable[[], _Result]) -> _Result:
        """Have `work` done on the runner's thread; return its result or raise its error."""
        request = _Request(work)
        if not self._line.join(request):
            raise RunnerStoppedError
        request.done.acquire()
        if request.error is not None:
            raise request.error
        result: _Result = request.result
        return result

    def stop(self) -> None:
        """Let work already handed in finish, then end the thread; stopping twice is harmless."""
        self._finish()


class RunnerStoppedError(Exception):
    """Work was handed to a runner that had been stopped."""


def _serve(line: _Line) -> None:
    while (request := line.waiting.get()) is not None:
        try:
            request.result = request.work()
        except BaseException as error:
            # It is the caller's, whatever it is; this thread must live to serve the next one.
            request.error = error
        request.done.release()
        # Holding on to it would keep the caller's arrays alive until the next call.
        del request


def _stop(line: _Line, thread: threading.Thread, owner: int) -> None:
    # In a forked child the thread does not exist, and joining it would never end.
    if os.getpid() == owner:
        line.close()
        if thread is not threading.current_thread():
            thread.join()


def load_programs(path: Path, manifest: Manifest) -> dict[str, Program]:
    """Every entry of a library by its name, all in one virtual machine."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    entries = {bucket.function: (bucket.inputs, bucket.outputs) for bucket in manifest.buckets}
    try:
        module = _load_module(path, manifest.library.sha256)
        machine = VirtualMachine(module, tvm.cpu())
        return {
            name: Program(module, machine, name, *specs)
            for name, specs in (entries or {ENTRY: (manifest.inputs, manifest.outputs)}).items()
        }
    except (OSError, RuntimeError, AttributeError, ValueError, TypeError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArtifactError(path=path, why=f"TVM cannot load it ({why})") from error


class Program:
    """An entry of a library in a virtual machine, and its input buffers; used by one thread at a time."""

    def __init__(
        self, module: Any, machine: Any, entry: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
    ) -> None:
        self.module, self.entry, self.outputs = module, entry, outputs
        self.main = machine[entry]
        self.buffers, self._views = _make_buffers(inputs)

    def __call__(self, arrays: list[Array], copy: bool = True) -> list[Array]:
        """Outputs for these inputs, both in the model's order; copies, or read-only views of TVM's memory."""
        self.set_inputs(arrays)
        return self.collect(self.compute(), copy)

    def set_inputs(self, arrays: list[Array]) -> None:
        """Copy the inputs into buffers as aligned as compiled code expects them."""
        for buffer, view, array in zip(self.buffers, self._views, arrays, strict=True):
            if view is None:
                buffer.copyfrom(array)
            else:
                np.copyto(view, array)

    def compute(self) -> Any:
        """Run on the inputs that were set last; the result is TVM's own."""
        return self.main(*self.buffers)

    def collect(self, result: Any, copy: bool = True) -> list[Array]:
        """A result of `compute` as numpy arrays that nothing else refers to, or as views that keep it."""
        tensors = [result] if hasattr(result, "numpy") else list(result)
        arrays = [_to_numpy(tensor, spec) for tensor, spec in zip(tensors, self.outputs, strict=True)]
        # An output may be an input, which the next call overwrites.
        return [array.copy() if copy or self._is_shared(array) else _locked(array) for array in arrays]

    def _is_shared(self, array: Array) -> bool:
        return any(view is not None and np.may_share_memory(array, view) for view in self._views)


# Content of every library file this process has loaded, by the identity of the file.
_loaded: dict[tuple[int, int], str] = {}


def _load_module(path: Path, sha256: str) -> Any:
    """Load a library under a name that was never used before.

    The dynamic linker takes a name it knows for the library it knows, even if the file was replaced:
    a model compiled again to the same path would silently run the old code. A file that was overwritten
    in place while loaded cannot be told apart by the linker at all, and is refused.
    """
    import tvm_ffi

    real = path.resolve()
    stat = real.stat()
    if _loaded.setdefault((stat.st_dev, stat.st_ino), sha256) != sha256:
        why = "it was overwritten while this process had it loaded; start a new process"
        raise ArtifactError(path=path, why=why)
    with tempfile.TemporaryDirectory(prefix="tpo-load-") as folder:
        alias = Path(folder) / real.name
        alias.symlink_to(real)
        # Not tvm.runtime.load_module, which would undo the alias by following the link first.
        return tvm_ffi.load_module(str(alias))


def _make_buffers(specs: tuple[Tensor, ...]) -> tuple[list[Any], list[Array | None]]:
    """A TVM tensor for every input, with a numpy view of the same memory where numpy knows the dtype."""
    import tvm

    tensors: list[Any] = []
    views: list[Array | None] = []
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        size = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
        if size == 0 or dtype.kind == "V" or dtype.isbuiltin != 1:
            tensors.append(tvm.runtime.empty(spec.shape, spec.dtype, tvm.cpu()))
            views.append(None)
            continue
        memory = np.zeros(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        view = memory[start : start + size].view(dtype).reshape(spec.shape)
        tensors.append(tvm.runtime.from_dlpack(view))
        views.append(view)
    return tensors, views


def _locked(array: Array) -> Array:
    """The array, read-only: it may be a constant of the model."""
    array.flags.writeable = False
    return array


def _to_numpy(tensor: Any, spec: Tensor) -> Array:
    dtype = numpy_dtype(spec.dtype)
    array: Array
    if dtype.isbuiltin == 1 and 0 not in tensor.shape:
        array = np.from_dlpack(tensor)
    else:
        array = tensor.numpy().astype(dtype, copy=False)
    return array
