"""What stored traces have decided, read without TVM."""

from __future__ import annotations

import json
from typing import Any

from tpo.lang.distributions import Decision
from tpo.space.decisions import as_decision


def stored_decisions(trace_json: str) -> list[Decision | None]:
    """What a stored trace has decided, site by site.

    >>> stored_decisions('[[["SampleCategorical",[],[[1,2],[0.5,0.5]],["v1"]]],[[0,1]]]')
    [1]
    """
    return [decision for _, decision in _sites(trace_json)]


def stored_values(trace_json: str) -> list[tuple[int, ...]]:
    """The numbers its rules saw, site by site; nothing for what was not decided.

    >>> stored_values('[[["SampleCategorical",[],[[1,2],[0.5,0.5]],["v1"]]],[[0,1]]]')
    [(2,)]
    """
    found: list[tuple[int, ...]] = []
    for instruction, decision in _sites(trace_json):
        match decision:
            case None:
                found.append(())
            case int() if instruction[0] == "SampleCategorical":
                found.append((int(instruction[2][0][decision]),))
            case int():
                found.append((decision,))
            case factors:
                found.append(factors)
    return found


def _sites(trace_json: str) -> list[tuple[Any, Decision | None]]:
    instructions, decided = json.loads(trace_json)
    known = {int(position): as_decision(value) for position, value in decided}
    sampling = [k for k, inst in enumerate(instructions) if str(inst[0]).startswith("Sample")]
    return [(instructions[k], known.get(k)) for k in sampling]
