"""Canonical Relax: one spelling for everything exporters spell in many ways.

A rule looks at one call whose arguments are already canonical and returns something simpler, or
None. The engine applies rules bottom-up until none fires, so rules stay small and compose: the
pattern of a LayerNorm ends at the division, and its scale and shift are absorbed by another rule.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tpo.frontend.canonicalise import activations, affine, constants, noops, norms, views
from tpo.frontend.canonicalise.engine import Rule, rewrite

RULES: tuple[Rule, ...] = (
    *constants.RULES,
    *noops.RULES,
    *views.RULES,
    *norms.RULES,
    *affine.RULES,
    *activations.RULES,
)


def canonicalise(mod: Any, extra: tuple[Rule, ...] = ()) -> Any:
    """Rewrite `main` until no rule applies, then fold what constants the rules did not."""
    tidy = tvm.transform.Sequential(
        [
            relax.transform.EliminateCommonSubexpr(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )
    return relax.transform.FoldConstant()(tidy(rewrite(tidy(mod), RULES + extra)))
