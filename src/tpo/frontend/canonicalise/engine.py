"""Applies rewrite rules to a Relax function, bottom-up, until none fires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax


class Graph:
    """What a rule may ask about the function around the call it looks at."""

    def __init__(self, lookup: Callable[[Any], Any], uses: Counter[int]) -> None:
        self._lookup = lookup
        self._uses = uses

    def value(self, expr: Any) -> Any:
        """The expression a variable is bound to; the expression itself if it is not a bound variable."""
        while isinstance(expr, relax.Var):
            bound = self._lookup(expr)
            if bound is None:
                return expr
            expr = bound
        return expr

    def call(self, expr: Any, *names: str) -> Any:
        """The call behind an expression if it is one of the named operators, else None."""
        found = self.value(expr)
        return found if operator(found) in names else None

    def is_used_once(self, expr: Any) -> bool:
        """Whether folding this value into its reader leaves no other reader behind."""
        # Variables that rewriting introduced are not counted: each has the one reader it was made for.
        return not isinstance(expr, relax.Var) or self._uses.get(hash(expr), 1) == 1


Rule = Callable[[Any, Graph], Any]


def operator(expr: Any) -> str:
    """Name of the operator an expression calls, without the `relax.` prefix; '' if it calls none."""
    name = getattr(getattr(expr, "op", None), "name", "") if isinstance(expr, relax.Call) else ""
    return name.removeprefix("relax.")


def rewrite(mod: Any, rules: Sequence[Rule]) -> Any:
    """The module with every call of its entries rewritten by the first rule that fires, again and again."""
    rewritten = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for var in mod.get_global_vars():
        if isinstance(mod[var], relax.Function):
            rewritten.update_func(var, _rewritten(mod, mod[var], rules))
    return rewritten


def _rewritten(mod: Any, func: Any, rules: Sequence[Rule]) -> Any:
    uses: Counter[int] = Counter()
    tvm_ffi.structural_walk(func.body, (relax.Var, lambda var: uses.update([hash(var)])))
    # A binding mentions its own variable once: what remains are the reads.
    for block in func.body.blocks:
        uses.subtract(hash(binding.var) for binding in block.bindings)
    return _Mutator(mod, rules, uses).visit_expr(func)


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: Any, rules: Sequence[Rule], uses: Counter[int]) -> None:
        super().__init__(mod)
        self.rules = rules
        self.graph = Graph(self.lookup_binding, uses)

    def visit_call_(self, call: Any) -> Any:
        expr = self.builder_.normalize(self.visit_expr_post_order(call))
        for rule in self.rules:
            simpler = rule(expr, self.graph) if isinstance(expr, relax.Call) else None
            if simpler is None:
                continue
            # The result may nest further calls: visiting gives each of them its turn.
            simpler = self.visit_expr(simpler)
            if _same_type(simpler, expr):
                return simpler
        return expr


def _same_type(left: Any, right: Any) -> bool:
    return bool(tvm_ffi.structural_equal(left.ty, right.ty))
