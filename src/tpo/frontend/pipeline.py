"""The stages a model passes on its way from file to loop nests, in order, each with a name.

Every stage takes and returns a whole model, first as ONNX, then as Relax, and computes the same
numbers as the stage before it: a test runs each of them against ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
import tvm

from tpo.frontend import lower
from tpo.frontend.attention import group_attention
from tpo.frontend.canonicalise import canonicalise
from tpo.frontend.control_flow import resolve_control_flow
from tpo.frontend.functions import expand_functions
from tpo.frontend.importer import import_model, supported_operators
from tpo.frontend.integers import use_integers
from tpo.frontend.layout import convert_layout
from tpo.frontend.shapes import fix_shapes
from tpo.frontend.simplify import simplify
from tpo.frontend.support import check_possible, check_supported

RELAX_STAGES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("canonicalise", canonicalise),
    ("layout", convert_layout),
    ("attention", group_attention),
    ("legalise", lower.legalise),
    ("fuse", lower.fuse),
    ("mark", lower.mark_layout_free),
)


def stages(
    model: onnx.ModelProto,
    path: str,
    shapes: Mapping[str, tuple[int, ...]],
    dimensions: Mapping[str, int] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield (stage name, model after it): ONNX models up to "integers", Relax modules from "import" on."""
    supported = supported_operators()
    check_possible(model, path, supported)
    fixed = fix_shapes(model, path, shapes, dimensions)
    yield "shapes", fixed
    expanded = expand_functions(fixed, supported)
    yield "functions", expanded
    simple = resolve_control_flow(simplify(expanded), path)
    check_supported(simple, path, supported)
    yield "simplify", simple
    whole = use_integers(simple)
    yield "integers", whole
    module = import_model(whole, path)
    yield "import", module
    # Constant folding and legalisation ask for a target; the choice of CPU comes later.
    with tvm.target.Target("llvm"):
        for name, stage in RELAX_STAGES:
            module = stage(module)
            yield name, module
