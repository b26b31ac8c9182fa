"""What assembly says about a kernel: its innermost loops, the width of its arithmetic, its spills."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"(\.L\w+):")
_JUMP = re.compile(r"\s+(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z|tbn?z)\s(?:.*[\s,])?(\.L\w+)$")


@dataclass(frozen=True)
class Isa:
    """How to read the assembly of one instruction set (LLVM's default syntax of it)."""

    arithmetic: str  # one operation on float32, scalars included
    full: str  # a whole vector register of float32
    wider: str  # what only a wider instruction set has
    vector: str  # any vector register
    fused: str | None  # a multiplication and an addition at once


_X86 = r"\s+v?(?:fn?m(?:add|sub)\d+|add|sub|mul|div|max|min)[ps]s\b"
_X86_FUSED = r"\s+vfn?m(?:add|sub)\d+ps\b"
# By the names of `Hardware.isa`.
ISAS = {
    "sse4": Isa(_X86, r"%xmm", r"%[yz]mm|%k[0-7]\b|^\s+v[a-z]+[ps][sd]\s", r"%xmm", None),
    "avx2": Isa(_X86, r"%ymm", r"%zmm|%k[0-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])\b", r"%[xy]mm", _X86_FUSED),
    "avx512": Isa(_X86, r"%zmm", r"%tmm", r"%[xyz]mm", _X86_FUSED),
    "neon": Isa(
        r"\s+f(?:n?m(?:add|sub|la|ls|ul)|add|sub|div|max|min)(?:nm|p|v)?\s",
        r"\.4s",
        r"\b[z]\d+\.[bhsdq]\b|\bp\d+/[mz]",  # SVE
        r"\b[vqds]\d+\b",
        r"\s+fml[as]\s.*\.4s",
    ),
}
# A fixed place of the stack. Buffers of a schedule's own are on the stack too, but are indexed.
_STACK = re.compile(r"[\s,]-?\d*\(%rsp\)|\[sp(?:, #\d+)?\]")


def count(pattern: str, lines: list[str]) -> int:
    """How many lines match."""
    return sum(re.search(pattern, line) is not None for line in lines)


def innermost_loops(assembly: str) -> list[list[str]]:
    """The lines of every loop that has no other loop inside.

    A loop is what lies between a label and a jump back to it.
    """
    lines = assembly.splitlines()
    labels = {found[1]: k for k, line in enumerate(lines) if (found := _LABEL.match(line))}
    jumps = [(found[1], k) for k, line in enumerate(lines) if (found := _JUMP.match(line))]
    loops = [(labels[label], k) for label, k in jumps if labels.get(label, k) < k]
    return [
        lines[first : last + 1]
        for first, last in loops
        if not any((first, last) != other and first <= other[0] and other[1] <= last for other in loops)
    ]


def hot_loop(assembly: str, isa: Isa) -> list[str]:
    """The innermost loop with the most arithmetic."""
    return max(innermost_loops(assembly), key=lambda lines: count(isa.arithmetic, lines))


def spills(lines: list[str], isa: Isa) -> list[str]:
    """Where vector registers go to, or come from, a fixed place of the stack."""
    return [line for line in lines if re.search(isa.vector, line) and _STACK.search(line)]
