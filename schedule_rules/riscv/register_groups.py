"""The rules for CPUs, with vectors of several registers: RISC-V's LMUL.

    for reduction: unroll rows:               for reduction: unroll rows:
      vectorize VLEN / 32 columns: C    -->     vectorize LMUL * VLEN / 32 columns: C

One instruction can take 1, 2, 4 or 8 vector registers as one. Long groups need fewer instructions for the
same work; but there are only 32 / LMUL of them, so that fewer rows of a tile fit, and what is loaded for
them is used less often. Which is best depends on sizes, types and chips: every group is a structure of its
own. To a rule, a group is a register: `hw.grouped(lmul)`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tpo.hardware import Hardware
from tpo.lang import Rule, fork
from tpo.lang.library import shipped_rule


def in_groups(name: str, preferred: int) -> Rule:
    """A rule for CPUs by its name; `preferred` registers make a vector where nobody has tuned."""
    original = shipped_rule(name)

    def grouped(sch: Any, root: Any, hw: Hardware) -> None:
        others = [lmul for lmul in hw.lmuls if lmul != preferred]
        original.apply(sch, root, hw.grouped(fork("lmul", [preferred, *others])))

    grouped.__doc__ = original.about
    return replace(original, function=grouped, target="riscv", source="register_groups.py")


rvv_attention = in_groups("attention", 2)
rvv_transposed_convolution = in_groups("transposed_convolution", 4)
rvv_winograd = in_groups("winograd", 4)
rvv_clamped_contraction = in_groups("clamped_contraction", 4)
rvv_padded_contraction = in_groups("padded_contraction", 4)
rvv_grouped_contraction = in_groups("grouped_contraction", 4)
rvv_contraction = in_groups("contraction", 4)
rvv_depthwise = in_groups("depthwise", 2)
rvv_transpose = in_groups("transpose", 1)
rvv_concat = in_groups("concat", 8)
rvv_elementwise = in_groups("elementwise", 8)
rvv_row_passes = in_groups("row_passes", 4)
rvv_pooling = in_groups("pooling", 4)
rvv_reduction = in_groups("reduction", 4)
