"""Attention as one function: scores, what is done to them, softmax, and their product with the values.

    softmax(f(Q K')) V, where f scales and masks, becomes a call of one function, with the transposes and
    reshapes that only bring its operands, or its result, into their layout.

What it computes is not changed; that nothing of it is written to memory between is for a schedule rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from tpo.frontend.canonicalise.engine import operator
from tpo.frontend.canonicalise.match import dtype, scalar, shape

ATTENTION = "attention"
FUNCTION_OPERATORS = (
    "tpo.function_operators"  # attribute: what a function is called, instead of its operators
)
VIEWS = frozenset({"permute_dims", "reshape"})
ON_SCORES = frozenset({"add", "subtract", "multiply", "divide", "where", "maximum", "minimum"})
LEAST_ROWS = 8  # below, reading keys and values takes the time, and to prepare them would be more than that


def group_attention(mod: Any) -> Any:
    """Every attention of the entries becomes a function of its own."""
    grouped = mod.clone()
    for var in mod.get_global_vars():
        if isinstance(mod[var], relax.Function):
            groups = list(_groups(mod[var]))
            if groups:
                grouped = _Grouper(grouped, groups).apply(var)
    return grouped


@dataclass(frozen=True)
class _Group:
    """Bindings that become one function, in their order; the last one's variable is the result."""

    bindings: list[Any]

    @property
    def result(self) -> Any:
        return self.bindings[-1].var

    def inputs(self) -> list[Any]:
        """Variables and tensors from outside, each once."""
        made = [binding.var for binding in self.bindings]
        found: list[Any] = []
        for binding in self.bindings:
            for leaf in _operands(binding.value):
                if not any(leaf.same_as(known) for known in [*made, *found]):
                    found.append(leaf)
        return found


class _Uses:
    """Which binding makes a variable, and which ones read it."""

    def __init__(self, func: Any) -> None:
        self.order = [binding for block in func.body.blocks for binding in block.bindings]
        self._maker = {hash(binding.var): binding for binding in self.order}
        self._readers: dict[int, list[Any]] = {}
        counts: Counter[int] = Counter()
        tvm_ffi.structural_walk(func.body, (relax.Var, lambda var: counts.update([hash(var)])))
        self._counts = counts
        for binding in self.order:
            for leaf in _operands(binding.value):
                self._readers.setdefault(hash(leaf), []).append(binding)

    def maker(self, expr: Any) -> Any:
        """The binding of a variable that has one reader; None for anything else."""
        binding = self._maker.get(hash(expr)) if isinstance(expr, relax.Var) else None
        return binding if binding is not None and self.is_read_once(expr) else None

    def reader(self, var: Any) -> Any:
        """The one call that reads a variable, if there is one."""
        readers = self._readers.get(hash(var), [])
        return readers[0] if len(readers) == 1 and self.is_read_once(var) else None

    def is_read_once(self, var: Any) -> bool:
        return self._counts[hash(var)] == 2  # where it is bound, and where it is read


def _operands(value: Any) -> list[Any]:
    """Variables and tensors among the arguments of a call; numbers that TVM writes into its code are none."""
    if not isinstance(value, relax.Call):
        return []
    written = operator(value) != "where"
    return [
        arg
        for arg in value.args
        if isinstance(arg, relax.Var)
        or (isinstance(arg, GenericConst) and not (written and scalar(arg) is not None))
    ]


def _groups(func: Any) -> Iterator[_Group]:
    uses = _Uses(func)
    for binding in uses.order:
        if operator(binding.value) == "nn.softmax":
            members = _members(binding, uses)
            if members is not None:
                found = [other for other in uses.order if any(other.same_as(member) for member in members)]
                yield _Group(found)


def _members(softmax: Any, uses: _Uses) -> list[Any] | None:
    """All bindings of the attention around a softmax; None if it is none."""
    sizes = shape(softmax.var)
    if sizes is None or len(sizes) < 3 or dtype(softmax.var) != "float32" or sizes[-2] < LEAST_ROWS:
        return None
    if int(softmax.value.attrs.axis) not in (-1, len(sizes) - 1):
        return None
    above = _scores(softmax.value.args[0], sizes, uses)
    mixed = uses.reader(softmax.var)
    if above is None or mixed is None or operator(mixed.value) != "matmul":
        return None
    scores = above[-1].value
    if not mixed.value.args[0].same_as(softmax.var) or not _same_batch(mixed.value, scores, sizes):
        return None
    members = [*above, softmax, mixed]
    for operand in (*scores.args, mixed.value.args[1]):
        members += _views_before(operand, uses)
    return [*members, *_views_after(mixed, uses)]


def _scores(expr: Any, sizes: tuple[int, ...], uses: _Uses) -> list[Any] | None:
    """From the softmax's operand up: what is done to the scores, and last the product that makes them."""
    binding = uses.maker(expr)
    if binding is None or shape(binding.var) != sizes or dtype(binding.var) != "float32":
        return None
    if operator(binding.value) == "matmul":
        return [binding]
    if operator(binding.value) not in ON_SCORES:
        return None
    for arg in binding.value.args:
        above = _scores(arg, sizes, uses)
        if above is not None:
            return [binding, *above]
    return None


def _same_batch(mixed: Any, scores: Any, sizes: tuple[int, ...]) -> bool:
    """Whether both products are of float32 and of as many matrices as there are softmaxes: none is shared."""
    operands = [*scores.args, mixed.args[1]]
    return all(
        dtype(operand) == "float32" and (shape(operand) or ())[:-2] == sizes[:-2] for operand in operands
    )


def _views_before(expr: Any, uses: _Uses) -> list[Any]:
    binding = uses.maker(expr)
    if binding is None or operator(binding.value) not in VIEWS:
        return []
    return [binding, *_views_before(binding.value.args[0], uses)]


def _views_after(binding: Any, uses: _Uses) -> list[Any]:
    reader = uses.reader(binding.var)
    if reader is None or operator(reader.value) not in VIEWS:
        return []
    return [reader, *_views_after(reader, uses)]


@relax.expr_functor.mutator
class _Grouper(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces the last call of every group by one of a new function; what it was made of is dead then."""

    def __init__(self, mod: Any, groups: list[_Group]) -> None:
        super().__init__(mod)
        self._groups = groups

    def apply(self, var: Any) -> Any:
        func = self.visit_expr(self.builder_.get()[var])
        self.builder_.update_func(var, func)
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        for group in self._groups:
            if call.same_as(group.bindings[-1].value):
                inputs = group.inputs()
                made = self.builder_.add_func(_function(group, inputs), ATTENTION)
                return relax.Call(made, [self.visit_expr(value) for value in inputs])
        return self.visit_expr_post_order(call)


def _function(group: _Group, inputs: list[Any]) -> Any:
    """A function that computes the result of a group, for TVM to fuse into one."""
    params = [relax.Var(f"operand_{k}", value.ty) for k, value in enumerate(inputs)]
    now = list(zip(inputs, params, strict=True))

    def renewed(expr: Any) -> Any:
        return next((new for old, new in now if old.same_as(expr)), expr)

    builder = relax.BlockBuilder()
    with builder.function(
        ATTENTION, params, attrs={"Primitive": True, FUNCTION_OPERATORS: [ATTENTION]}, private=True
    ):
        with builder.dataflow():
            for binding in group.bindings:
                value = binding.value
                call = relax.Call(value.op, [renewed(arg) for arg in value.args], value.attrs, value.ty_args)
                last = binding is group.bindings[-1]
                made = builder.emit_output(call) if last else builder.emit(call)
                now.append((binding.var, made))
        builder.emit_func_output(made)
    (func,) = builder.get().functions.values()
    return func
