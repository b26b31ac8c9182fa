"""Features of thousands of candidates in one call, none of which is ever built.

>>> from tpo.space import build_space
>>> from tpo.targets import resolve
>>> from tpo.testing.corpus import workload
>>> space = build_space(workload("matmul"), resolve("native", 2))
>>> sketch = space.sketches[0]
>>> rows = sketch.domain.draw(1000, np.random.default_rng(0))
>>> Simulator.of(space).features(sketch, rows).shape == (1000, len(NAMES))
True
"""

from __future__ import annotations

import gc
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import s_tir

from tpo.cost.columns import Program
from tpo.cost.features import NAMES, describe
from tpo.cost.watch import simulate
from tpo.hardware import Hardware, dtype_bytes
from tpo.space import Sketch, Space
from tpo.space.decisions import Rows
from tpo.workload import Workload

MAX_STRUCTURES = 64  # of one sketch that are known in all, but for those asked for one by one
TYPICAL = 32  # candidates of which the first to be watched is taken
MAX_FAILURES = 4  # of candidates that TVM does not replay, after which no more of their sketch are tried

Features = NDArray[np.float32]
Positions = NDArray[np.int64]
_log = logging.getLogger(__name__)


@dataclass
class Node:
    """A question that tells structures apart, with a node for every answer; or what computes features.

    Both are missing where nobody has been yet.
    """

    question: Program | None = None
    answers: dict[float, Node] = field(default_factory=dict)
    features: Program | None = None

    @property
    def is_new(self) -> bool:
        """Whether nobody has been here."""
        return self.question is None and self.features is None

    def nearest(self) -> Program | None:
        """What computes features of any structure from here on."""
        found = (node.nearest() for node in self.answers.values())
        return self.features or next((program for program in found if program is not None), None)


@dataclass
class _Known:
    """The structures of a sketch that were met."""

    root: Node = field(default_factory=Node)
    structures: int = 0
    failures: int = 0

    def room(self, new: int | None) -> int:
        """How many more may be watched, where a call wants at most so many new ones, or all it needs."""
        if self.failures >= MAX_FAILURES:
            return 0
        return sys.maxsize if new is None else min(new, MAX_STRUCTURES - self.structures)


@dataclass
class Simulator:
    """Features of the sketches of one workload; each structure is compiled when it is first asked for."""

    workload: Workload
    hw: Hardware
    flops: float
    size: float
    _known: dict[str, _Known] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Space) -> Simulator:
        """For the workload and the target of a space."""
        func = space.workload.func
        flops = float(s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": func})))
        sizes = [math.prod(int(dim) for dim in param.shape) for param in func.params]
        moved = [size * dtype_bytes(str(p.dtype)) for size, p in zip(sizes, func.params, strict=True)]
        # Moving an element counts as well: some functions do nothing else.
        return cls(space.workload, space.target.hardware, max(flops, float(max(sizes))), float(sum(moved)))

    def features(self, sketch: Sketch, rows: Rows) -> Features:
        """A line of `NAMES` for every row; zeros where TVM could not be watched.

        Rows of a structure that nobody has watched have the features of a similar one.
        """
        result = np.zeros((len(rows), len(NAMES)), np.float32)
        for program, chosen in self.structures(sketch, rows, new=0):
            if program is not None:
                result[chosen] = program.run(sketch.domain.values(rows[chosen]), len(chosen))
        return result

    def watch(self, sketch: Sketch, rows: Rows, most: int | None = None) -> bool:
        """Get to know the structures of some rows; whether there were new ones.

        At most so many are watched, those of the most rows: compute locations make up to eighty of a sketch.
        """
        before = self._count(sketch)
        for _ in self.structures(sketch, rows, most):
            pass
        return self._count(sketch) > before

    def structures(
        self, sketch: Sketch, rows: Rows, new: int | None = None
    ) -> Iterator[tuple[Program | None, Positions]]:
        """What computes the features of which rows."""
        known = self._known.get(sketch.name) or self._begin(sketch)
        open_: list[tuple[Node, Node, Positions]] = [(known.root, known.root, np.arange(len(rows)))]
        unknown: list[tuple[Node, Node, Positions]] = []
        room = known.room(new)
        while open_ or unknown:
            if not open_:
                node, above, chosen = unknown.pop(int(np.argmax([len(rest) for *_, rest in unknown])))
                if room <= 0 or not known.room(new):
                    yield above.nearest(), chosen
                    continue
                room -= 1
                if not self._compile(sketch, rows[chosen[0]], known, node):
                    yield None, chosen[:1]
                    chosen = chosen[1:]
            else:
                node, above, chosen = open_.pop()
            if not len(chosen):
                continue
            if node.is_new:
                unknown.append((node, above, chosen))
                continue
            if node.question is None:
                yield node.features, chosen
                continue
            found = node.question.run(sketch.domain.values(rows[chosen]), len(chosen))[:, 0]
            for answer in np.unique(found):
                child = node.answers.setdefault(float(answer), Node())
                open_.append((child, node, chosen[found == answer]))

    def _count(self, sketch: Sketch) -> int:
        """How many structures of a sketch are known."""
        known = self._known.get(sketch.name)
        return 0 if known is None else known.structures

    def _begin(self, sketch: Sketch) -> _Known:
        """Watch one candidate whose loops all have several steps, if there is: TVM leaves out others."""
        known = self._known[sketch.name] = _Known()
        spread = sketch.domain.spread(TYPICAL, np.random.default_rng(0))
        rows = np.concatenate([sketch.preferred_row, spread])
        if len(rows):
            values = sketch.domain.values(rows).values()
            ones = sum((column == 1 for column in values), np.zeros(len(rows), int))
            self._compile(sketch, rows[int(np.argmin(ones))], known, known.root)
        return known

    def _compile(self, sketch: Sketch, row: NDArray[np.int64], known: _Known, node: Node) -> bool:
        """Watch TVM replay a candidate that has come to a node, and write down what was seen, if it can."""
        try:
            with _no_collection():
                simulated = simulate(sketch, self.workload, row)
                named = describe(simulated, self.hw, self.flops, self.size)
        except (
            Exception
        ) as error:  # a rule may do what nobody has foreseen: it is then judged without features
            _log.debug("%s cannot be simulated: %r", sketch.name, error)
            known.failures += 1
            return False
        known.structures += 1
        features = simulated.tape.program([named.get(name, 0.0) for name in NAMES])
        place = known.root
        for column, answer in simulated.conditions:
            if place.question is None:
                place.question = simulated.tape.program([column])
            place = place.answers.setdefault(answer, Node())
        place.features = features
        if node.is_new:  # TVM has answered other than foreseen
            node.features = features
        return True


@contextmanager
def _no_collection() -> Iterator[None]:
    """A search for garbage, among tens of thousands of columns in use, would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
