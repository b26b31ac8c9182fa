"""A model's kernels for a GPU run on the CPU, function by function: slow, but the numbers are the GPU's.

Nothing is written: the kernels are those that untuned functions get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import tvm

import tpo
from tpo.deploy import manifest as manifests
from tpo.deploy.inputs import Array, bind
from tpo.deploy.manifest import Library, Manifest, ModelSource, TargetInfo, Tensor, Versions
from tpo.deploy.standalone.plan import CONSTANT, INPUT, RESULT, Buffer, NotStandaloneError, plan
from tpo.dtypes import numpy_dtype
from tpo.errors import CompileError, UsageError
from tpo.frontend.model import Model, TensorSpec
from tpo.measure.cuda import ORDERS, EmulationError, Emulator, program_of
from tpo.measure.packing import written_parameters
from tpo.schedule import UNSCHEDULED, schedule_function
from tpo.targets import Target

Progress = Callable[[str], None]


class EmulatedGpu:
    """Runs a model as a GPU would, with the interface of a library that was loaded; a context manager."""

    def __init__(
        self, model: Model, target: Target, order: str = ORDERS[0], progress: Progress = lambda line: None
    ) -> None:
        if target.gpu is None:
            raise UsageError(why=f"{target.name} is no GPU", advice="give --target cuda")
        self.path, self.threads, self.order = model.path, 1, order
        self.manifest = _manifest(model, target)
        self._holders = ExitStack()
        self._emulators: dict[str, tuple[Emulator, tuple[int, ...]]] = {}
        try:
            self._plan = plan(model.module)
            for number, name in enumerate(self._plan.functions, 1):
                progress(f"compiling {name} for the emulator ({number} of {len(self._plan.functions)})")
                self._emulators[name] = self._compiled(name, model.module[name], target)
        except NotStandaloneError as error:
            self._holders.close()
            raise CompileError(name=model.name, why=str(error)) from error
        except BaseException:
            self._holders.close()
            raise

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the inputs, in order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and dtypes of the outputs, in order."""
        return self.manifest.outputs

    def tried_inputs(self) -> list[tuple[Tensor, ...]]:
        """Inputs that between them use every function."""
        return [self.inputs]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name; the outputs come back by name."""
        given, results = bind(self.inputs, (), inputs), [np.zeros(0)] * len(self.outputs)
        values: dict[int, Array] = {}

        def value(buffer: Buffer) -> Array:
            if buffer.place == INPUT:
                return given[buffer.at]
            if buffer.place == CONSTANT:
                content = memoryview(self._plan.constants)[buffer.at : buffer.at + buffer.bytes]
                return np.frombuffer(content, numpy_dtype(buffer.dtype)).reshape(buffer.shape)
            return values.get(id(buffer), np.zeros(buffer.shape, numpy_dtype(buffer.dtype)))

        for name, used in self._plan.steps:
            emulator, written = self._emulators[name]
            try:
                found = emulator.run([value(buffer) for buffer in used], written, self.order)
            except EmulationError as error:
                raise CompileError(name=name, why=str(error)) from error
            for k in written:
                values[id(used[k])] = found[k]
                if used[k].place == RESULT:
                    results[used[k].at] = found[k]
        for number, buffer in self._plan.copies:
            results[number] = value(buffer)
        return {spec.name: array for spec, array in zip(self.outputs, results, strict=True)}

    def __enter__(self) -> EmulatedGpu:
        return self

    def __exit__(self, *_: object) -> None:
        self._holders.close()

    def _compiled(self, name: str, func: Any, target: Target) -> tuple[Emulator, tuple[int, ...]]:
        scheduled, rule = schedule_function(func, target.device)
        if rule == UNSCHEDULED:
            raise CompileError(name=name, why="no rule for GPUs takes it")
        written = tuple(written_parameters(func))
        try:
            program = program_of(
                tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), target.tvm
            )
            return self._holders.enter_context(Emulator(program)), written
        except EmulationError as error:
            raise CompileError(name=name, why=str(error)) from error


def _manifest(model: Model, target: Target) -> Manifest:
    """What a library would say of itself."""
    return Manifest(
        model=ModelSource(name=model.name, path=str(Path(model.path).resolve()), sha256=model.sha256),
        inputs=tuple(map(_tensor, model.inputs)),
        outputs=tuple(map(_tensor, model.outputs)),
        target=TargetInfo(name=target.name, tvm=str(target.tvm), arch=target.arch),
        versions=Versions(tpo=tpo.__version__, tvm=tvm.__version__, llvm=""),
        threads=1,
        functions=(),
        library=Library(sha256="", bytes=0),
        created=manifests.now(),
    )


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, shape=spec.shape, dtype=spec.dtype)
