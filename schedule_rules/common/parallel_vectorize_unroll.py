"""Mark the function for TVM's postprocessors: how far to make loops parallel, vector and straight code.

root: ...    -->    root(parallel=cores x 16, vectorize=64, unroll=sampled): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpo.lang import Choice, Rule, analysis, rule, sample


def parallel_vectorize_unroll(
    jobs_per_core: int, vector: int, unroll: Sequence[int], target: str = "any"
) -> Rule:
    """A rule that marks the whole function; 0 jobs or 0 elements of a vector leave the mark out."""

    @rule(target=target, on="function", always=True)
    def mark(sch: Any, root: Any, hw: Any) -> None:
        """Say how parallel, how wide and how unrolled the function should be."""
        if jobs_per_core:
            sch.annotate(root, "meta_schedule.parallel", jobs_per_core * hw.cores)
        if vector:
            sch.annotate(root, "meta_schedule.vectorize", vector)
        if not analysis.is_spatial_function(sch):
            sch.annotate(root, "meta_schedule.unroll_explicit", sample("unroll", Choice(list(unroll))))

    return mark


marks_cpu = parallel_vectorize_unroll(16, 64, (0, 16, 64, 512), target="cpu")
marks_cuda = parallel_vectorize_unroll(0, 0, (0, 16, 32, 64, 128, 256, 512, 1024), target="cuda")
