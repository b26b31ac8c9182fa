"""From operators to loop nests: legalise, fuse, and mark the buffers whose layout is ours to choose."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import GenericConst, GlobalVar, Op

from tpo.frontend.attention import FUNCTION_OPERATORS
from tpo.frontend.canonicalise.engine import operator

T = relax.transform

# Module attribute: name of a function -> the operators it computes, in order.
OPERATORS = "tpo.operators"
VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_to"})
MAX_OPERATORS_IN_NAME = 6


def legalise(mod: Any) -> Any:
    """Every operator becomes a call of a TensorIR function."""
    # max(a, b) compiles to `a > b ? a : b`: only with the bound first does a NaN stay one, as ONNX has it.
    own = {"relax.nn.relu": _legal_relu, "relax.clip": _legal_clip, "relax.nn.softmax": _legal_softmax}
    return tvm.transform.Sequential([T.LegalizeOps(own), T.AnnotateTIROpPattern(), T.FoldConstant()])(mod)


def _legal_relu(builder: Any, call: Any) -> Any:
    def relu(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: tirx.max(tirx.const(0, x.dtype), x(*i)))

    return builder.call_te(relu, call.args[0], primfunc_name_hint="relu")


def _legal_clip(builder: Any, call: Any) -> Any:
    low, high = (bound.value for bound in call.args[1:3])

    def clip(x: Any) -> Any:
        bounds = [tirx.const(bound, x.dtype) for bound in (low, high)]
        return te.compute(x.shape, lambda *i: tirx.min(bounds[1], tirx.max(bounds[0], x(*i))))

    return builder.call_te(clip, call.args[0], primfunc_name_hint="clip")


def _legal_softmax(builder: Any, call: Any) -> Any:
    """TVM's softmax, but with one division per row instead of one per element."""
    axis = int(call.attrs.axis)

    def softmax(x: Any) -> Any:
        at = axis % len(x.shape)
        kept = [size for k, size in enumerate(x.shape) if k != at]

        def row(index: tuple[Any, ...]) -> list[Any]:
            return [i for k, i in enumerate(index) if k != at]

        def along(operand: Any, index: tuple[Any, ...], k: Any) -> Any:
            return operand(*index[:at], k, *index[at:])

        k = te.reduce_axis((0, x.shape[at]), name="k")
        largest = te.compute(kept, lambda *i: te.max(along(x, i, k), axis=k), name="softmax_max")
        power = te.compute(x.shape, lambda *i: tirx.exp(x(*i) - largest(*row(i))), name="softmax_exp")
        k = te.reduce_axis((0, x.shape[at]), name="k")
        total = te.compute(kept, lambda *i: te.sum(along(power, i, k), axis=k), name="softmax_sum")
        factor = te.compute(kept, lambda *i: tirx.const(1, x.dtype) / total(*i), name="softmax_factor")
        return te.compute(x.shape, lambda *i: power(*i) * factor(*row(i)), name="softmax")

    if not str(call.args[0].ty.dtype).startswith("float"):
        return call
    return builder.call_te(softmax, call.args[0], primfunc_name_hint="softmax")


def fuse(mod: Any) -> Any:
    """Operators that belong together become one function, named after them: conv2d_add_relu_2."""
    mod = tvm.transform.Sequential([T.FuseOps(), T.DeadCodeElimination()])(mod)
    operators = {
        var.name_hint: _operators(mod, var)
        for var in mod.get_global_vars()
        if isinstance(mod[var], tirx.PrimFunc) or "Primitive" in (mod[var].attrs or {})
    }
    fused = tvm.transform.Sequential([T.FuseTIR(), T.DeadCodeElimination()])(mod)
    return _rename(fused, operators)


def mark_layout_free(mod: Any) -> Any:
    """Record which parameters of each function are constants in every call: schedules may pack those.

    TVM's AttachAttrLayoutFreeBuffers does the same but renames every function it touches.
    """
    constant: dict[str, set[int]] = {}
    for call in find_calls(mod):
        found = {k for k, arg in enumerate(call.args[1].fields) if isinstance(arg, GenericConst)}
        name = call.args[0].name_hint
        constant[name] = constant.get(name, found) & found
    marked = mod.clone()
    for name, positions in constant.items():
        var = mod.get_global_var(name)
        marked.update_func(var, mod[var].with_attr("layout_free_buffers", sorted(positions)))
    return marked


def find_calls(mod: Any) -> list[Any]:
    """All calls of TensorIR functions by a model's entries."""
    calls: list[Any] = []
    for var in mod.get_global_vars():
        if isinstance(mod[var], relax.Function):
            tvm_ffi.structural_walk(mod[var].body, (relax.Call, lambda call: calls.append(call)))
    return [call for call in calls if operator(call) == "call_tir"]


def _operators(mod: Any, var: Any) -> list[str]:
    """Operators of a function: what it was grouped as, those it calls, or the one it was made for."""
    func = mod[var]
    if FUNCTION_OPERATORS in (func.attrs or {}):
        return [str(name) for name in func.attrs[FUNCTION_OPERATORS]]
    if isinstance(func, tirx.PrimFunc):
        return [_operator_name(var.name_hint)]
    called: list[str] = []
    tvm_ffi.structural_walk(func.body, (GlobalVar, lambda callee: called.append(callee.name_hint)))
    return [_operator_name(name) for name in called]


def _operator_name(function: str) -> str:
    """Legalisation numbers functions of the same operator, and prefixes some: conv2d17 -> conv2d.

    >>> _operator_name("conv2d17"), _operator_name("max_pool2d"), _operator_name("tir_clip4")
    ('conv2d', 'max_pool2d', 'clip')
    """
    known = _relax_operators()
    name = function = function.removeprefix("tir_")
    while name not in known and re.search(r"\d$", name):
        name = name[:-1]
    return name if name in known else re.sub(r"\d+$", "", function)


@cache
def _relax_operators() -> frozenset[str]:
    names = (str(name) for name in Op.list_op_names())
    return frozenset(name.rpartition(".")[2] for name in names if name.startswith("relax."))


def _function_name(operators: list[str]) -> str:
    """A name that says what a function computes; views are left out, and long chains cut.

    >>> _function_name(["reshape", "conv2d", "add", "relu"])
    'conv2d_add_relu'
    >>> _function_name(["add", "exp", "add", "exp", "add", "exp", "add", "exp"])
    'add_exp_add_exp_add_and_3_more'
    """
    shown = [operator for operator in operators if operator not in VIEWS] or operators[:1]
    rest = len(shown) - MAX_OPERATORS_IN_NAME
    tail = [f"and_{rest + 1}_more"] if rest > 0 else []
    return "_".join([*shown[: MAX_OPERATORS_IN_NAME - len(tail)], *tail])


def _rename(mod: Any, operators: dict[str, list[str]]) -> Any:
    renamer = _Renamer(mod, operators)
    main = renamer.visit_expr(mod["main"])
    renamed = renamer.builder_.get()
    renamed["main"] = main
    renamed = T.DeadCodeElimination()(renamed)
    return renamed.with_attr(OPERATORS, renamer.named)


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):  # type: ignore[misc]
    """Gives every called TensorIR function a name made of its operators."""

    def __init__(self, mod: Any, operators: dict[str, list[str]]) -> None:
        super().__init__()
        self.mod = mod
        self.operators = operators
        self.named: dict[str, list[str]] = {}
        self.done: dict[str, Any] = {}

    def visit_global_var_(self, var: Any) -> Any:
        old = var.name_hint
        if old not in self.done:
            operators = self.operators.get(old, [old])
            func = self.mod[var].without_attr("global_symbol")
            self.done[old] = self.builder_.add_func(func, self._free_name(_function_name(operators)))
            self.named[self.done[old].name_hint] = operators
        return self.done[old]

    def _free_name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.named or name == "main":
            count += 1
            name = f"{wanted}_{count}"
        return name
