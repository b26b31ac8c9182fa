"""Let one instruction compute the innermost tile.

    for i, j, k: C    -->    for i, j0, k0, ...: [for j1 in 16, k1 in 4: C], tiled around the bracket

TVM knows by a description what an instruction computes; its postprocessor puts it in the bracket's place.
"""

from __future__ import annotations

from typing import Any

from multi_level_tiling import Reuse, stage_result, tile_loops
from tvm.s_tir import TensorIntrin
from tvm.s_tir.schedule.analysis import get_auto_tensorize_mapping_info
from tvm.s_tir.schedule.transform import tile_with_tensor_intrin

from tpo.lang import Rule, analysis, decline, rule


def tensorize(instruction: str, feature: str, structure: str, write: Reuse, target: str = "any") -> Rule:
    """A rule that tiles by a structure around an instruction of hardware with a feature."""

    @rule(target=target, when=analysis.has_reuse, always=True)
    def around_instruction(sch: Any, block: Any, hw: Any) -> None:
        """Tile a reduction around an instruction that computes a small one."""
        known = TensorIntrin.get(instruction, allow_missing=True)
        if known is None or not hw.has(feature):
            decline(f"there is no {instruction} here")
        if get_auto_tensorize_mapping_info(sch, block, known.desc) is None:
            decline(f"{instruction} computes something else")
        sch.annotate(block, analysis.TILED, structure)
        loop = tile_with_tensor_intrin(sch, block, instruction)
        if loop is None:
            decline(f"its sizes are not those of {instruction}")
        outer = sch.blockize(loop)
        sch.annotate(outer, "meta_schedule.auto_tensorize", instruction)
        stage_result(sch, outer, tile_loops(sch, outer, structure, max_inner=64), write)

    return around_instruction


_RESULT = Reuse("global", (1, 2), optional=True)
tensorize_vnni = tensorize("dot_16x4_vnni", "avx512vnni", "SSRSRS", _RESULT, target="cpu")
