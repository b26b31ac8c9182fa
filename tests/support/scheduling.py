"""Our own rules, applied by name."""

from __future__ import annotations

from typing import Any

from tpo.lang import apply_rule, condition
from tpo.lang.library import shipped_rule


def schedule_by(rule: str, sch: Any, hw: Any, **values: Any) -> Any:
    """The schedule with one of our rules applied to its function, as the rule prefers it."""
    adapted = condition(shipped_rule(rule), values)
    (applied,) = apply_rule(adapted, sch, sch.get_sblock("root"), hw, first_only=True)
    return applied.sch
