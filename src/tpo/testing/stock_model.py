"""A whole model as stock TVM makes it, by its own importer, passes, tuner and compiler, for `tpo bench`.

    python -m tpo.testing.stock_model MODEL.onnx LIBRARY.so TRIALS THREADS SEED [NAME=SHAPE ...]

Beforehand its shapes are fixed and its shape arithmetic is folded, without which TVM's importer refuses most
exports, and the tuner's start-up fault is removed (see `tpo.testing.stock`). Weights are constants, so what
MetaSchedule wants packed is packed at compile time. Everything else is TVM's, with its defaults.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms

from tpo import targets
from tpo.deploy import manifest as manifests
from tpo.deploy.compile import build, make_manifest
from tpo.frontend.load import load_onnx
from tpo.frontend.pipeline import stages
from tpo.frontend.shapes import parse_shapes
from tpo.targets import Target
from tpo.testing import stock

T = relax.transform


def main(arguments: list[str]) -> int:
    """Import, tune, compile, and write the manifest."""
    path, library, trials, threads, seed, *shapes = arguments
    model = load_onnx(path, parse_shapes(shapes))
    target = targets.resolve("native", int(threads))
    simple = next(made for name, made in stages(model.source, path, {}) if name == "simplify")
    module = tuned(from_onnx(simple), target, int(trials), int(seed))
    build(module, target, Path(library), model.name)
    manifests.write(make_manifest(model, target, (), Path(library), int(threads)), Path(library))
    return 0


def tuned(module: Any, target: Target, trials: int, seed: int) -> Any:
    """The module after TVM's passes, with the schedules that so many trials have found."""
    stock.prepare(target.arch)
    before = [
        *(T.DecomposeOpsForInference(), T.CanonicalizeBindings(), T.LegalizeOps()),
        *(T.AnnotateTIROpPattern(), T.FoldConstant(), T.FuseOps(), T.FuseTIR()),
        T.AttachAttrLayoutFreeBuffers(),
    ]
    after = [T.SplitLayoutRewritePreproc(), T.FoldConstant(), T.DeadCodeElimination()]
    cores = target.hardware.cores
    with tempfile.TemporaryDirectory(prefix="tpo-stock-") as folder, target.tvm:
        module = tvm.transform.Sequential(before)(module)
        if trials:
            runner = ms.runner.LocalRunner()
            ms.relax_integration.tune_relax(
                module,
                {},
                target.tvm,
                folder,
                max_trials_global=trials,
                num_trials_per_iter=stock.PER_ITERATION,
                builder=ms.builder.LocalBuilder(max_workers=cores, initializer=stock.initializer()),
                runner=runner,
                seed=seed,
            )
            runner.pool.shutdown()
            module = T.MetaScheduleApplyDatabase(folder)(module)
        return tvm.transform.Sequential(after)(module)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
