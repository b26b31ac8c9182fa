"""Model in, shared library and manifest out: schedule, pack weights, build, check, put in place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

import tpo
from tpo import targets, vector_math
from tpo.deploy import manifest as manifests
from tpo.deploy.artifact import load
from tpo.deploy.folding import fold_calls
from tpo.deploy.manifest import Bucket, Function, Manifest, Memory, ModelSource, TargetInfo, Tensor, Versions
from tpo.deploy.sizes import Sizes
from tpo.deploy.standalone import build as standalone
from tpo.deploy.standalone.emulated import Emulated
from tpo.deploy.tuned import Tuned, tuned_functions
from tpo.deploy.verify import verify as verify_artifact
from tpo.errors import CompileError, GpuLibraryError, OutputError, ToolMissingError, UsageError
from tpo.frontend.model import Model, TensorSpec
from tpo.hardware import Hardware
from tpo.records import Records
from tpo.schedule import schedule_module
from tpo.targets import Target, for_compiling
from tpo.tasks import count_calls, describe, operators_of

T = relax.transform
# TVM's name for a function whose weights now arrive in the layout its schedule wants.
PACKED = "_prepacked"
EMULATED_SEEDS = (0,)  # of inputs that are tried in an emulator, which takes its time

Progress = Callable[[str], None]


def compile(  # noqa: A001 (tpo.compile is the name users look for)
    model: Model | str | Path,
    output: str | Path,
    target: str = targets.NATIVE,
    threads: int | None = None,
    verify: bool = True,
    records: Records | str | Path | None = None,
    vlen: int | None = None,
) -> Manifest:
    """Compile a model, or an ONNX file, into a shared library with a manifest beside it.

    Functions that were tuned for the target, in the store `records`, get their best schedule, all
    others a default one. The library is compared with ONNX Runtime before it is put in place, unless
    `verify` is False or it is for another machine.
    """
    if not isinstance(model, Model):
        from tpo.frontend.load import load_onnx

        model = load_onnx(model)
    resolved = targets.resolve(target, threads, vlen)
    if isinstance(records, (str, Path)):
        with Records.open(records, create=False) as opened:
            return compile_model(model, Path(output), resolved, threads, verify, opened)
    return compile_model(model, Path(output), resolved, threads, verify, records)


def compile_model(
    model: Model,
    output: Path,
    target: Target,
    threads: int | None = None,
    verify: bool = True,
    records: Records | None = None,
    progress: Progress = lambda line: None,
    schedule: bool = True,
) -> Manifest:
    """`compile` for a resolved target; `progress` is told what is being done.

    Without `schedule` functions are left to LLVM alone, to see what schedules gain.
    """
    check_output(output)
    if target.gpu is not None:
        raise GpuLibraryError(target=target.name)
    check_compiler(target)
    if target.standalone and model.entries:
        why = "a standalone library has one size"
        raise UsageError(why=why, advice="compile one for every size, with --shape")
    tuned = Tuned()
    if records is not None:
        tuned = tuned_functions(model.module, records, target, threads or target.hardware.cores, progress)
    for note in tuned.notes:
        progress(note)
    progress(f"scheduling for {target.name}")
    plain = {} if schedule else {f: model.module[f] for f in count_calls(model.module)}
    module, rules = schedule_and_pack(model.module, target.hardware, target.tvm, {**tuned.functions, **plain})
    functions = _functions(model, module, rules, tuned.sketches)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        library = Path(folder) / output.name
        progress(f"building {len(functions)} functions")
        memory = None
        if target.standalone:
            interface = (tuple(map(_tensor, model.inputs)), tuple(map(_tensor, model.outputs)))
            memory = standalone.build(module, target, library, model.name, *interface)
        else:
            build(module, target, library, model.name)
        manifest = make_manifest(model, target, functions, library, threads or target.hardware.cores, memory)
        manifests.write(manifest, library)
        if verify and target.standalone:
            manifest = _emulated(manifest, library, model, output, progress)
            manifests.write(manifest, library)
        elif verify and target.native:
            progress("comparing with ONNX Runtime")
            manifest = _checked(manifest, library, model, output)
            if model.entries:
                manifest = _with_padding(manifest, library, model, progress)
            manifests.write(manifest, library)
        try:
            for path in (library, manifests.manifest_path(library)):
                path.replace(output.with_name(path.name))
            if target.standalone:
                shutil.copy2(standalone.runner(), output.with_name(standalone.RUNNER))
        except OSError as error:
            raise OutputError(path=output, why=error.strerror) from error
    return manifest


def schedule_and_pack(
    module: Any, hw: Hardware, target: Any, tuned: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, str]]:
    """Tuned functions as they are, default schedules for all others, constant weights already packed."""
    module, rules = schedule_module(module.clone(), hw, tuned or {})
    with target:
        packed = fold_calls(T.SplitLayoutRewritePreproc()(module))
        return tvm.transform.Sequential([T.FoldConstant(), T.DeadCodeElimination()])(packed), rules


def build(module: Any, target: Target, library: Path, name: str) -> None:
    """Generate code for the scheduled module and link it into a shared library."""
    vector_math.register()
    try:
        executable = tvm.compile(module, for_compiling(target.tvm))
    except Exception as error:  # TVM raises many kinds; none of them is the user's doing
        raise CompileError(name=name, why=str(error).strip().splitlines()[-1]) from error
    try:
        executable.export_library(str(library), cc=target.compiler)
    except RuntimeError as error:
        raise CompileError(name=name, why=f"linking: {str(error).strip().splitlines()[-1]}") from error


def check_output(output: Path) -> None:
    """Refuse an output that cannot be written before any work is done."""
    why = None
    if output.suffix != ".so":
        why = "the name of a library ends in .so"
    elif output.is_dir():
        why = "it is a folder"
    elif output.exists() and not output.is_file():
        why = "it is not a regular file"
    elif not output.parent.is_dir():
        why = f"there is no folder {output.parent}"
    elif output.exists() and not os.access(output, os.W_OK):
        why = "permission denied"
    if why is not None:
        raise OutputError(path=output, why=why)
    try:
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise OutputError(path=output, why=error.strerror) from error


def check_compiler(target: Target) -> None:
    """Refuse a target whose linker is not installed before any work is done."""
    if shutil.which(target.compiler) is None:
        triple, _, name = target.compiler.rpartition("-")
        package = f"{name}-{triple}" if triple else "g++"
        raise ToolMissingError(
            tool=target.compiler, purpose="link the library", command=f"apt-get install {package}"
        )


def _functions(
    model: Model, module: Any, rules: dict[str, str], sketches: Mapping[str, str]
) -> tuple[Function, ...]:
    found = []
    for name, calls in count_calls(module).items():
        plain = name.removesuffix(PACKED)
        task = describe(plain, model.module[plain], calls, operators_of(model.module, plain))
        found.append(
            Function(
                name=name,
                operators=task.operators,
                calls=calls,
                flops=task.flops,
                bytes=task.bytes,
                scheduled_by=sketches.get(plain) or rules[plain],
                tuned=plain in sketches,
            )
        )
    return tuple(found)


def make_manifest(
    model: Model,
    target: Target,
    functions: tuple[Function, ...],
    library: Path,
    threads: int,
    memory: Memory | None = None,
) -> Manifest:
    """What is known of a library that was built."""
    return Manifest(
        model=ModelSource(name=model.name, path=str(model.path.resolve()), sha256=model.sha256),
        inputs=tuple(map(_tensor, model.inputs)),
        outputs=tuple(map(_tensor, model.outputs)),
        target=TargetInfo(
            name=target.name,
            tvm=str(target.tvm),
            arch=target.arch,
            features=tuple(targets.required_features(target)),
        ),
        versions=Versions(
            tpo=tpo.__version__, tvm=tvm.__version__, llvm=str(tvm.target.codegen.llvm_version_major())
        ),
        threads=threads,
        functions=functions,
        library=manifests.describe_library(library),
        created=manifests.now(),
        dimension=model.dimension,
        buckets=tuple(
            Bucket(
                function=entry.function,
                size=entry.size,
                inputs=tuple(map(_tensor, entry.inputs)),
                outputs=tuple(map(_tensor, entry.outputs)),
            )
            for entry in model.entries
        ),
        memory=memory,
    )


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor(name=spec.name, shape=spec.shape, dtype=spec.dtype)


def _checked(manifest: Manifest, library: Path, model: Model, output: Path) -> Manifest:
    """The manifest with what was found by comparing; an error if the numbers are wrong."""
    with load(library) as artifact:
        # A model for several sizes is compared with the file, which takes them all.
        report = verify_artifact(artifact, model.path if model.entries else model.source)
    replace(report, library=str(output)).require()
    return manifest.model_copy(update={"numeric_check": report.numeric_check()})


def _emulated(manifest: Manifest, library: Path, model: Model, output: Path, progress: Progress) -> Manifest:
    """The manifest with what was found by comparing in an emulator, if there is one."""
    try:
        artifact = Emulated(library, manifest)
    except ToolMissingError as error:
        progress(f"not compared with ONNX Runtime: {error}")
        return manifest
    progress("comparing with ONNX Runtime, in QEMU")
    report = verify_artifact(artifact, model.source, seeds=EMULATED_SEEDS)
    replace(report, library=str(output)).require()
    return manifest.model_copy(update={"numeric_check": report.numeric_check()})


def _with_padding(manifest: Manifest, library: Path, model: Model, progress: Progress) -> Manifest:
    """The manifest of a library that takes what is shorter than a size, too, if zeros behind it do no harm.

    With a mask, or where nothing looks ahead, they do none; nobody can tell from outside, so it is tried.
    """
    padded = manifest.model_copy(update={"padded": True})
    if Sizes(padded).can_crop():
        manifests.write(padded, library)
        with load(library) as artifact:
            report = verify_artifact(artifact, model.path)
        if report.passed:
            progress(f"inputs between two sizes of {model.dimension} are filled up with zeros: same results")
            return padded.model_copy(update={"numeric_check": report.numeric_check()})
    sizes = ", ".join(str(entry.size) for entry in model.entries)
    progress(f"filling inputs up with zeros changes the results: {model.dimension} must be one of {sizes}")
    return manifest
