"""Names of sampling sites inside TVM's traces.

TVM's instructions have no names. A block annotation that is removed again right away has no effect on
the program, but stays in the trace: it survives simplification, JSON and TVM's databases, and stock TVM
replays it to the same program.
"""

from __future__ import annotations

from typing import Any

PREFIX = "tpo.site."


def mark(sch: Any, block: Any, name: str, sampled: Any) -> None:
    """Name what was just sampled."""
    values = variables(sampled)
    # A loop cannot be the value of an annotation: the name then belongs to the instruction before it.
    sch.annotate(block, PREFIX + name, values[0] if values else 0)
    sch.unannotate(block, PREFIX + name)


def variables(sampled: Any) -> list[Any]:
    """The number variables of what an instruction sampled."""
    several = sampled if isinstance(sampled, (list, tuple)) else [sampled]
    return [value for value in several if _is_number(value)]


def sampling(trace: Any) -> list[Any]:
    """The sampling instructions of a trace, in order."""
    return [inst for inst in trace.insts if inst.kind.name.startswith("Sample")]


def names(trace: Any) -> list[str]:
    """The name of every sampling instruction of a trace; those without one get "site" and their number."""
    found: list[str] = []
    position: dict[Any, int] = {}
    for inst in trace.insts:
        kind = inst.kind.name
        if kind.startswith("Sample"):
            position.update({output: len(found) for output in inst.outputs})
            found.append(f"site{len(found)}")
        elif kind == "Annotate" and str(inst.attrs[0]).startswith(PREFIX):
            value = inst.inputs[1]
            at = position.get(value, len(found) - 1) if not isinstance(value, int) else len(found) - 1
            found[at] = str(inst.attrs[0])[len(PREFIX) :]
    return found


def is_mark(inst: Any) -> bool:
    """Whether an instruction only names a site."""
    return inst.kind.name in ("Annotate", "Unannotate") and str(inst.attrs[0]).startswith(PREFIX)


def _is_number(value: Any) -> bool:
    from tvm import tirx

    return isinstance(value, tirx.Var)
