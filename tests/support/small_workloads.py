"""Small functions as a model has them: constant weights marked, an epilogue fused; and how to run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tpo import vector_math
from tpo.frontend import lower
from tpo.workload import Workload


def const(*shape: int) -> Any:
    """A constant whose values depend on nothing but its shape."""
    return relax.const(np.random.default_rng(shape).standard_normal(shape).astype("float32"))


def conv(cin: int, cout: int, k: int = 3, padding: int = 1, strides: int = 1) -> Any:
    def build(x: Any) -> Any:
        weight, layout = const(k, k, cin, cout), {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        y = relax.op.nn.conv2d(x, weight, strides=strides, padding=padding, **layout)
        return relax.op.nn.relu(relax.op.add(y, const(1, 1, 1, cout)))

    return build


def pool(x: Any) -> Any:
    return relax.op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1], layout="NHWC")


# name -> (input shape, what is computed)
WORKLOADS = {
    "conv3x3": ((1, 9, 9, 8), conv(8, 64)),
    "conv strided": ((1, 15, 15, 3), conv(3, 32, strides=2)),
    "conv to 40 classes": ((1, 5, 5, 24), conv(24, 40, k=1, padding=0)),
    "conv to 17 columns": ((1, 5, 5, 8), conv(8, 17)),
    "dense": ((1, 64), lambda x: relax.op.add(relax.op.matmul(x, const(64, 50)), const(1, 50))),
    "matmul": ((29, 32), lambda x: relax.op.nn.relu(relax.op.matmul(x, const(32, 72)))),
    "batch matmul": ((2, 8, 16), lambda x: relax.op.matmul(x, relax.op.permute_dims(x, [0, 2, 1]))),
    "max pool": ((1, 15, 15, 32), pool),
    "softmax": ((6, 64), lambda x: relax.op.nn.softmax(x)),
    "mean": ((1, 7, 7, 64), lambda x: relax.op.mean(x, [1, 2])),
    "concat": ((1, 5, 5, 32), lambda x: relax.op.concat([x, x], 3)),
    "transpose": ((1, 3, 12, 16), lambda x: relax.op.permute_dims(x, [0, 2, 3, 1])),
    "elementwise": ((64, 512), lambda x: relax.op.exp(x)),
}


def relax_module(name: str) -> Any:
    """A workload as the frontend leaves it: `main(x)` and its functions."""
    return _lowered(*WORKLOADS[name])


def _lowered(shape: tuple[int, ...], build: Any) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.normalize(build(x)))
        builder.emit_func_output(y)
    module = builder.get()
    with tvm.target.Target("llvm"):
        for stage in (lower.legalise, lower.fuse, lower.mark_layout_free):
            module = stage(module)
    return module


def workload(name: str) -> Workload:
    """The largest function of a workload."""
    return made(*WORKLOADS[name])


def made(shape: tuple[int, ...], build: Any) -> Workload:
    """The largest function of what `build` makes of an input of a shape."""
    module = _lowered(shape, build)
    functions = [func for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
    return Workload.of(max(functions, key=lambda func: len(func.script())))


def inputs(work: Workload) -> list[Any]:
    """Random arguments, the output last."""
    rng = np.random.default_rng(17)
    arrays = [
        rng.standard_normal([int(dim) for dim in p.shape]).astype(str(p.dtype)) for p in work.func.params
    ]
    return [tvm.runtime.tensor(array) for array in arrays]


def run(work: Workload, module: Any) -> np.ndarray:
    """What a module computes for `inputs`; blocks that pack weights simply run as part of it."""
    vector_math.register()
    arguments = inputs(work)
    # Unoptimised code is ready much sooner, and these functions run once.
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    tvm.tirx.build(module, target)["main"](*arguments)
    return arguments[-1].numpy()
