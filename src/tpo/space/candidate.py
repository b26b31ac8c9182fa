"""One program of a space: a trace with every decision made, and what it turns the workload into."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpo.workload import Workload, structural_key


@dataclass(frozen=True)
class Candidate:
    """A scheduled program. `sketch` names the structure it comes from, for people and for records.

    `program` is what the trace starts from, if that is not the workload itself.
    """

    sketch: str
    trace: Any
    module: Any
    program: Workload | None = None

    @cached_property
    def key(self) -> str:
        """Identity of the program: two traces that give the same program are one candidate."""
        return structural_key(self.module)

    @cached_property
    def trace_json(self) -> str:
        """The trace as TVM's databases hold it."""
        return json.dumps(plain(self.trace.as_json()), separators=(",", ":"))


def plain(value: Any) -> Any:
    """TVM's numbers and containers inside a trace as what JSON knows."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if hasattr(value, "value"):  # IntImm and FloatImm
        return plain(value.value)
    raise TypeError(f"a trace holds a {type(value).__name__}, which JSON cannot")
