"""What stored traces have decided, read without TVM."""

from __future__ import annotations

import json
from typing import Any

from tpo.lang.distributions import Decision
from tpo.lang.sites import PREFIX
from tpo.space.decisions import as_decision


def stored_decisions(trace_json: str) -> list[Decision | None]:
    """What a stored trace has decided, site by site.

    >>> stored_decisions('[[["SampleCategorical",[],[[1,2],[0.5,0.5]],["v1"]]],[[0,1]]]')
    [1]
    """
    instructions, decided = _read(trace_json)
    return [decided.get(k) for k, inst in enumerate(instructions) if _samples(inst)]


def stored_values(trace_json: str) -> dict[str, tuple[int, ...]]:
    """The numbers its rules saw, by the names of sites; those without a name have "site" and their number.

    >>> stored_values('[[["SampleCategorical",[],[[1,2],[0.5,0.5]],["v1"]]],[[0,1]]]')
    {'site0': (2,)}
    """
    instructions, decided = _read(trace_json)
    names: list[str] = []
    places: dict[str, int] = {}
    found: list[tuple[int, ...] | None] = []
    for k, (kind, inputs, attrs, outputs) in enumerate(instructions):
        if _samples(instructions[k]):
            places |= dict.fromkeys(outputs, len(names))
            names.append(f"site{len(names)}")
            found.append(_numbers(kind, attrs, decided.get(k)))
        elif kind == "Annotate" and str(attrs[0]).startswith(PREFIX) and names:
            names[places.get(str(inputs[1]), len(names) - 1)] = str(attrs[0])[len(PREFIX) :]
    return {name: values for name, values in zip(names, found, strict=True) if values is not None}


def _numbers(kind: str, attrs: Any, decision: Decision | None) -> tuple[int, ...] | None:
    if isinstance(decision, int):
        return (int(attrs[0][decision]),) if kind == "SampleCategorical" else (decision,)
    return decision


def _read(trace_json: str) -> tuple[list[Any], dict[int, Decision]]:
    instructions, decided = json.loads(trace_json)
    return instructions, {int(position): as_decision(value) for position, value in decided}


def _samples(instruction: Any) -> bool:
    return str(instruction[0]).startswith("Sample")
