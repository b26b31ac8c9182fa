"""Packing constant weights at compile time: every function that does it is compiled once.

TVM's own constant folding compiles it again for every call, which for some models takes longer than all
the rest of compilation.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tpo import targets
from tpo.frontend.canonicalise.engine import Graph, operator, rewrite
from tpo.frontend.lower import find_calls
from tpo.threads import size_worker_pool


def fold_calls(mod: Any) -> Any:
    """The module with every call of a TensorIR function on constants replaced by what it returns."""
    names = {call.args[0].name_hint for call in find_calls(mod) if _is_constant(call)}
    if not names:
        return mod
    functions = {name: mod[name].with_attr("global_symbol", name) for name in sorted(names)}
    host = targets.resolve(targets.NATIVE)  # whatever the model is compiled for
    library = tvm.compile(tvm.IRModule(functions), targets.for_compiling(host.tvm))
    size_worker_pool(host.hardware.cores)  # else TVM makes this thread a pool of half the CPUs, for good
    return rewrite(mod, [functools.partial(_evaluated, library)])


def _evaluated(library: Any, call: Any, _graph: Graph) -> Any:
    if operator(call) != "call_tir" or not _is_constant(call):
        return None
    (result,) = call.ty_args
    several = isinstance(result, relax.TupleType)
    types = list(result.fields) if several else [result]
    outputs = [tvm.runtime.empty([int(dim) for dim in ty.shape.values], str(ty.dtype)) for ty in types]
    library[call.args[0].name_hint](*(argument.value for argument in call.args[1].fields), *outputs)
    constants = [relax.const(output) for output in outputs]
    return relax.Tuple(constants) if several else constants[0]


def _is_constant(call: Any) -> bool:
    """Whether all arguments are known; what takes no argument is no packing."""
    given = list(call.args[1].fields)
    return bool(given) and all(isinstance(argument, GenericConst) for argument in given)
