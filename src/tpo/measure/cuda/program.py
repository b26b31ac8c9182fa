"""A scheduled function as TVM compiles it for CUDA: the source of its kernels, and what the host does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tpo.hardware import dtype_bytes

Extents = tuple[int, int, int]

# Without the first, sums of halves in single precision do not build (their buffer becomes one of halves).
PASSES: Mapping[str, Any] = {"tirx.disable_storage_rewrite": True, "tirx.use_async_copy": True}

_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"
_AXES = "xyz"
_SPLIT = "SplitHostDevice"  # the pass after which host and device are functions of their own


@dataclass(frozen=True)
class Launch:
    """A kernel with the buffers it is called with, by their numbers, and its threads."""

    kernel: str
    buffers: tuple[int, ...]
    grid: Extents
    block: Extents
    dynamic_shared: int  # bytes that threads of a block share, beside those the source has a size for

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)


@dataclass(frozen=True)
class Program:
    """Kernels in CUDA C, launched one after the other.

    `sizes` are the bytes of all buffers: the function's `parameters` first, then what the host allocates.
    """

    source: str
    sizes: tuple[int, ...]
    parameters: int
    launches: tuple[Launch, ...]


def program_of(module: Any, target: Any, config: Mapping[str, Any] | None = None) -> Program:
    """Compile `module["main"]`, scheduled for a target of kind cuda; TVM needs no GPU for that.

    Errors are TVM's, or a `ValueError` where the host does more than launch kernels.
    """
    watch = _Watch()
    with tvm.transform.PassContext(config={**PASSES, **(config or {})}, instruments=[watch]):
        built = tvm.compile(module, target=target.with_host(tvm.target.Target("llvm")))
    (device,) = built.mod.imports
    return _Host(watch.module).program(str(device.inspect_source("")))


@tvm.instrument.pass_instrument
class _Watch:
    """Keeps the module as it is when host and device have just been separated."""

    module: Any = None

    def run_after_pass(self, module: Any, info: Any) -> None:
        """Called by TVM after every pass."""
        if str(info.name).endswith(_SPLIT):
            self.module = module


class _Host:
    """Reads what the host side of a module does: allocate, and launch."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._numbers: list[tuple[Any, int]] = []  # which buffer of the program a buffer of TVM's is
        self._sizes: list[int] = []
        self._launches: list[Launch] = []

    def program(self, source: str) -> Program:
        """Everything together."""
        main = self._module["main"]
        for param in main.params:
            self._numbers.append((param, self._new(param)))
        body = main.body
        for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
            self._read(stmt)
        return Program(source, tuple(self._sizes), len(main.params), tuple(self._launches))

    def _read(self, stmt: Any) -> None:
        if isinstance(stmt, tirx.AllocBuffer):
            self._numbers.append((stmt.buffer, self._new(stmt.buffer)))
        elif isinstance(stmt, tirx.DeclBuffer):
            self._numbers.append((stmt.buffer, self._number(stmt.data)))
        elif isinstance(stmt, tirx.Evaluate) and _operation(stmt.value) == "tirx.call_ffi_kernel":
            self._launches.append(self._launch(stmt.value))
        else:
            raise ValueError(f"the host does more than launch kernels: {type(stmt).__name__}")

    def _new(self, buffer: Any) -> int:
        self._sizes.append(math.prod(int(dim) for dim in buffer.shape) * dtype_bytes(str(buffer.dtype)))
        return len(self._sizes) - 1

    def _number(self, data: Any) -> int:
        """The number of the buffer whose address an expression is."""
        if _operation(data) != "tirx.buffer_data":
            raise ValueError(f"a kernel gets something else than buffers: {data}")
        return next(number for known, number in self._numbers if known.same_as(data.args[0]))

    def _launch(self, call: Any) -> Launch:
        name = str(call.args[0].value)
        tags = [str(tag) for tag in self._module[name].attrs["tirx.kernel_launch_params"]]
        extents = dict(
            zip(tags, (int(extent) for extent in call.args[len(call.args) - len(tags) :]), strict=True)
        )
        buffers = call.args[1 : len(call.args) - len(tags)]
        grid, block = (_extents(extents, index) for index in ("blockIdx", "threadIdx"))
        return Launch(
            name, tuple(self._number(data) for data in buffers), grid, block, extents.get(_DYNAMIC_SHARED, 0)
        )


def _extents(extents: Mapping[str, int], index: str) -> Extents:
    x, y, z = (extents.get(f"{index}.{axis}", 1) for axis in _AXES)
    return x, y, z


def _operation(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))
