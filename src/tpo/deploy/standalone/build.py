"""A library from a scheduled model: functions compiled by TVM, a plan in C, joined by the cross compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import tvm

from tpo import vector_math
from tpo.conversions import without_truncation
from tpo.deploy.manifest import Memory, Tensor
from tpo.deploy.standalone import plan as plans
from tpo.deploy.standalone.plan import Buffer, NotStandaloneError, Plan
from tpo.dtypes import numpy_dtype
from tpo.errors import CompileError
from tpo.measure.cross import toolchain
from tpo.measure.cross.files import type_of_name
from tpo.targets import Target, for_compiling

RUNNER, HEADER = "tpo-run", "tpo_model.h"
_SOURCES = Path(__file__).parent


def build(
    module: Any,
    target: Target,
    library: Path,
    name: str,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
) -> Memory:
    """Write the library of a scheduled module; how much memory it needs."""
    vector_math.register()
    try:
        plan = plans.plan(module)
        folder = library.resolve().with_suffix(".build")
        folder.mkdir()
        functions = {f: without_truncation(module[f].with_attr("global_symbol", f)) for f in plan.functions}
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):  # the arguments are ours
            compiled = tvm.tirx.build(tvm.IRModule(functions), for_compiling(target.tvm))
        compiled.write_to_file(str(folder / "functions.o"), "o")
        (folder / "constants.bin").write_bytes(bytes(plan.constants) or b"\0")
        (folder / "tables.h").write_text(tables(plan, inputs, outputs))
        _compile(folder, library)
    except NotStandaloneError as error:
        raise CompileError(name=name, why=str(error)) from error
    except RuntimeError as error:  # TVM's errors are, and so are ours
        raise CompileError(name=name, why=str(error).strip().splitlines()[-1]) from error
    shutil.rmtree(folder)
    return Memory(code=_code_bytes(library), constants=len(plan.constants), workspace=plan.workspace)


def runner() -> Path:
    """The program that runs standalone libraries on a board."""
    options = ["-O2", "-std=gnu11", f"-I{_SOURCES}", "-ldl", "-Wl,--no-as-needed", "-lm"]
    return toolchain.built(toolchain.tool(toolchain.COMPILER), _SOURCES / "runner.c", options, RUNNER)


def tables(plan: Plan, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> str:
    """A plan as the C that model.c includes."""
    buffers = plan.buffers
    numbers = {id(buffer): k for k, buffer in enumerate(buffers)}
    shapes: list[int] = []

    def shape_at(shape: tuple[int, ...]) -> int:
        shapes.extend(shape)
        return len(shapes) - len(shape)

    specs = [
        f"{{{code}, {bits}, {len(b.shape)}, {shape_at(b.shape)}, {_home(b)}}}"
        for b in buffers
        for code, bits in [type_of_name(b.dtype)]
    ]
    calls: list[str] = []
    arguments: list[str] = []
    for function, used in plan.steps:
        calls.append(f"{{__tvm_ffi_{function}, {len(arguments)}, {len(used)}}}")
        arguments += [str(numbers[id(buffer)]) for buffer in used]
    copies = [f"{{{number}, {_home(buffer)}, {buffer.bytes}}}" for number, buffer in plan.copies]
    tensors = {
        title: [
            f'{{"{_escaped(t.name)}", "{numpy_dtype(t.dtype).str}", {len(t.shape)}, '
            f"shapes + {shape_at(t.shape)}, {_bytes_of(t)}}}"
            for t in described
        ]
        for title, described in (("input", inputs), ("result", outputs))
    }
    most = max((len(used) for _, used in plan.steps), default=1)
    lines = [
        f"enum {{ STEP_COUNT = {len(calls)}, COPY_COUNT = {len(copies)}, MOST_ARGUMENTS = {most} }};",
        f"#define WORKSPACE_BYTES {max(plan.workspace, 1)}",
        *(f"int __tvm_ffi_{f}(void *, const Any *, int32_t, Any *);" for f in plan.functions),
        _array("static const int64_t", "shapes", list(map(str, shapes))),
        _array("static const struct spec", "specs", specs),
        _array("static const int32_t", "step_arguments", arguments),
        _array("static const struct step", "steps", calls),
        _array("static const struct copy", "copies", copies),
    ]
    for title, rows in tensors.items():
        lines.append(_array("const struct tpo_tensor", f"tpo_{title}s", rows))
        lines.append(f"const int32_t tpo_{title}_count = {len(rows)};")
    return "\n".join(lines) + "\n"


def _home(buffer: Buffer) -> str:
    return f"{{{buffer.place}, {buffer.at}}}"


def _array(kind: str, name: str, rows: list[str]) -> str:
    # C has no empty arrays.
    return f"{kind} {name}[] = {{{', '.join(rows) or '0'}}};"


def _bytes_of(tensor: Tensor) -> int:
    return Buffer(tensor.shape, tensor.dtype, plans.INPUT).bytes


def _escaped(name: str) -> str:
    return re.sub(r'[\\"\x00-\x1f]', "_", name)


def _compile(folder: Path, library: Path) -> None:
    command = [
        *(toolchain.tool(toolchain.COMPILER), "-shared", "-fPIC", "-O2", "-std=gnu11"),
        *(f"-I{_SOURCES}", f"-I{folder}", "-o", str(library.resolve())),
        *(str(_SOURCES / "model.c"), str(folder / "functions.o"), "-lm"),
    ]
    # In the folder: that is where the assembler looks for the constants.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"linking: {toolchain.complaint(done.stderr)}")


def _code_bytes(library: Path) -> int:
    """Bytes of instructions, as the linker has laid them out."""
    tool = toolchain.tool(toolchain.SIZES)
    done = subprocess.run([tool, "-A", str(library)], capture_output=True, text=True, check=False)
    found = re.search(r"^\.text\s+(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0
