"""What becomes of loops: their extents after every instruction of a sketch, for all decisions at once.

TVM replays the sketch once, with the decisions of one candidate, and is watched: how a split, a fusion or a
`compute_at` makes new extents of old ones is written down as columns (`tpo.cost.columns`). Nothing has to
be replayed after that for other candidates of the same structure. Which these are is written down as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import s_tir, tirx

from tpo.cost import locations, nodes
from tpo.cost.blocks import Block, Link, Nest
from tpo.cost.columns import Number, Tape, at_most, ceil_div, example
from tpo.cost.loops import Index, Loop, covered, fuse, split
from tpo.lang import analysis
from tpo.space.decisions import Site
from tpo.space.space import Sketch, decided
from tpo.workload import Workload, schedule_of

After = Callable[[list[Any]], None]


@dataclass(frozen=True)
class Simulated:
    """A sketch as loops, for all its candidates that keep the conditions: columns that have to be a number.

    `func` is the program of the one candidate.
    `marks` are annotations whose values were sampled, `asked` those of the whole function. `surprises` names
    blocks whose loops TVM has made other than foreseen; they are then as they were for the one candidate.
    """

    tape: Tape
    func: Any
    nests: tuple[Nest, ...]
    marks: dict[str, Number]
    asked: dict[str, float]
    conditions: tuple[tuple[Number, float], ...]
    surprises: tuple[str, ...]


def simulate(sketch: Sketch, workload: Workload, row: NDArray[np.int64]) -> Simulated:
    """Watch TVM replay a sketch with the decisions of one candidate."""
    sch = schedule_of((sketch.program or workload).module)
    values = sketch.domain.values(row[None])
    watch = Watch(sch, sketch, {key: float(column[0]) for key, column in values.items()})
    decided(sketch.trace, sketch.domain.decisions(row)).apply_to_schedule(sch, True, watch)
    return watch.simulated()


class Watch:
    """Called by TVM before every instruction of a trace; it then looks at what the one before has done."""

    def __init__(self, sch: Any, sketch: Sketch, values: Mapping[tuple[str, int], float]) -> None:
        self.tape = Tape()
        self.conditions: list[tuple[Number, float]] = []
        self._marks: dict[str, Number] = {}
        self._surprises: list[str] = []
        self._sch = sch
        self._sites = iter(sketch.sites)
        self._values = values
        self._loops: dict[Any, Loop] = {}
        self._roots: dict[Any, int] = {}
        self._blocks: dict[Any, Block] = {}
        self._numbers: dict[Any, Number] = {}
        self._after: After | None = None
        self._handlers: dict[str, Callable[[list[Any], list[Any]], After | None]] = {
            "Annotate": self._annotate,
            "Blockize": self._blockize,
            "ComputeAt": lambda inputs, attrs: self._move(inputs, attrs, "writes", "reads"),
            "DecomposeReduction": self._decompose,
            "Fuse": self._fuse,
            "GetLoops": self._get_loops,
            "PadEinsum": self._forget,
            "RFactor": self._rfactor,
            "ReverseComputeAt": lambda inputs, attrs: self._move(inputs, attrs, "reads", "writes"),
            "SampleCategorical": self._sample,
            "SampleComputeLocation": self._locate,
            "SamplePartitionedTile": self._sample,
            "SamplePerfectTile": self._sample,
            "Split": self._split,
            "Tensorize": self._blockize,
            "TransformBlockLayout": self._forget,
        }

    def __call__(self, inst: Any, inputs: Any, attrs: Any, decision: Any) -> Any:
        """Say nothing about the decision of an instruction."""
        self._finish()
        handler = self._handlers.get(str(inst.kind.name))
        self._after = None if handler is None else handler(list(inputs), list(attrs))
        return decision

    def _finish(self) -> None:
        """Look at what the last instruction has done."""
        after, self._after = self._after, None
        if after is not None:
            after(list(self._sch.trace.insts[-1].outputs))

    def simulated(self) -> Simulated:
        """What was seen, when TVM is done."""
        self._finish()
        func = self._sch.mod["main"]
        body = func.body.block
        found: list[Nest] = []
        self._walk(body.body, [], found)
        asked = {
            str(key): float(int(value))
            for key, value in body.annotations.items()
            if isinstance(value, (int, tirx.IntImm))
        }
        conditions, surprises = tuple(self.conditions), tuple(self._surprises)
        return Simulated(self.tape, func, tuple(found), self._marks, asked, conditions, surprises)

    # Instructions ---------------------------------------------------------------------------------

    def _sample(self, inputs: list[Any], attrs: list[Any]) -> After:
        site = next(self._sites)

        def after(outputs: list[Any]) -> None:
            for position, variable in enumerate(outputs):
                self._numbers[variable] = self._input(site, position)

        return after

    def _input(self, site: Site, position: int) -> Number:
        key = (site.name, position)
        return self.tape.input(key, self._values[key])

    def _locate(self, inputs: list[Any], attrs: list[Any]) -> After:
        decided = self._input(next(self._sites), 0)
        sref = self._sch.get_sref(inputs[0])
        paths = [nodes.path_of(consumer) for consumer in nodes.consumers(self._sch, sref)]
        loops = paths[0][: nodes.shared(paths)] if paths else []
        kinds = [nodes.is_parallel(loop) for loop in loops]
        resolved = locations.resolve(decided, self._known(loops), kinds, nodes.can_be_inlined(sref.stmt))

        def after(outputs: list[Any]) -> None:
            trace = self._sch.trace
            self.conditions.append((resolved, float(int(trace.get_decision(trace.insts[-1])))))

        return after

    def _annotate(self, inputs: list[Any], attrs: list[Any]) -> None:
        if isinstance(inputs[1], tirx.Var) and inputs[1] in self._numbers:
            self._marks[str(attrs[0])] = self._numbers[inputs[1]]

    def _get_loops(self, inputs: list[Any], attrs: list[Any]) -> None:
        self._meet(self._sch.get_sref(inputs[0]))

    def _forget(self, inputs: list[Any], attrs: list[Any]) -> After:
        """The block gets other axes and loops."""
        sref = self._sch.get_sref(inputs[0])

        def after(outputs: list[Any]) -> None:
            self._blocks.pop(sref, None)

        return after

    def _split(self, inputs: list[Any], attrs: list[Any]) -> After:
        stmt = analysis.stmt_of(self._sch, inputs[0])
        loop = self._loop(stmt)
        if len(loop.views[0]) > 1:  # so that its parts know their steps along it, not only along its digits
            self._root(stmt.loop_var, loop.extent)
            loop = self._loops[stmt.loop_var]
        factors = [None if factor is None else self._number(factor) for factor in inputs[1:]]

        def after(outputs: list[Any]) -> None:
            for rv, part in zip(outputs, split(loop, factors), strict=True):
                self._loops[self._variable(rv)] = part

        return after

    def _fuse(self, inputs: list[Any], attrs: list[Any]) -> After:
        loop = fuse([self._loop(analysis.stmt_of(self._sch, rv)) for rv in inputs])

        def after(outputs: list[Any]) -> None:
            self._loops[self._variable(outputs[0])] = loop

        return after

    def _move(self, inputs: list[Any], attrs: list[Any], given: str, asked: str) -> After | None:
        sref, target = (self._sch.get_sref(rv) for rv in inputs)
        if target.stmt is None:  # TVM's marks for the root and for inlining
            return None
        block = self._meet(sref)
        block.links = self._links(block, target.stmt, given, asked)
        whole = bool(attrs[0])  # loops of one step stay
        return lambda _: self._moved(block, self._sch.get_sref(inputs[0]), whole)

    def _decompose(self, inputs: list[Any], attrs: list[Any]) -> After:
        sref = self._sch.get_sref(inputs[0])
        source = self._meet(sref)
        kept = [axis for axis, summed in enumerate(source.summed) if not summed]
        first = self._variable(inputs[1])
        values = nodes.realize_of(sref).iter_values
        used = [var for axis in kept for var in analysis.find(tirx.Var, values[axis])]
        path = [loop.loop_var for loop in nodes.path_of(sref)]
        inner = path[next(k for k, var in enumerate(path) if var.same_as(first)) :]
        copied = [self._loops[var] for var in inner if any(var.same_as(other) for other in used)]

        def after(outputs: list[Any]) -> None:
            self._rekey(source, self._sch.get_sref(inputs[0]))
            made = self._sch.get_sref(outputs[0])
            new = [loop.loop_var for loop in nodes.path_of(made) if loop.loop_var not in self._loops]
            self._loops.update(zip(new, copied, strict=True))
            self._blocks[made] = Block(
                made,
                str(made.stmt.name_hint),
                [source.extents[axis] for axis in kept],
                [source.values[axis] for axis in kept],
                [False for _ in kept],
                {it.var: k for k, it in enumerate(made.stmt.iter_vars)},
                own=source.own,
                links=[source.links[axis] for axis in kept] if source.links else [],
            )

        return after

    def _rfactor(self, inputs: list[Any], attrs: list[Any]) -> After:
        (stmt,) = analysis.find(s_tir.SBlock, analysis.stmt_of(self._sch, inputs[0]))
        sref = self._sch.state.get_sref(stmt)
        source = self._meet(sref)
        names = {str(it.var.name): k for k, it in enumerate(stmt.iter_vars)}
        path = self._known(nodes.path_of(sref))

        def after(outputs: list[Any]) -> None:
            made = self._sch.get_sref(outputs[0])
            for loop, copy in zip(nodes.path_of(made), path, strict=True):
                self._loops[loop.loop_var] = copy
            for each in (made, sref):
                self._blocks[each] = self._derived(each, source, names)

        return after

    def _derived(self, sref: Any, source: Block, names: Mapping[str, int]) -> Block:
        """A block with some axes of another one, and some that are loops themselves."""
        made = self._new_block(sref)
        loops = {loop.loop_var: self._loops[loop.loop_var] for loop in nodes.path_of(sref)}
        bound = enumerate(nodes.realize_of(sref).iter_values)
        made.steps = {k: loops[var].strides() for k, var in bound if isinstance(var, tirx.Var)}
        for k, it in enumerate(sref.stmt.iter_vars):
            if made.values[k].kind != "Var" and str(it.var.name) in names:
                axis = names[str(it.var.name)]
                made.values[k], made.extents[k] = source.values[axis], source.extents[axis]
        return made

    def _blockize(self, inputs: list[Any], attrs: list[Any]) -> After | None:
        """A block of whole tiles around another one: its axes count tiles of the other's."""
        sref = self._sch.get_sref(inputs[0])
        if not isinstance(sref.stmt, tirx.For):
            return None
        parent = sref.parent
        inner = analysis.find(s_tir.SBlock, sref.stmt)[0]
        source = self._meet(self._sch.state.get_sref(inner))
        name = f"{inner.name_hint}_o"

        def after(outputs: list[Any]) -> None:
            blocks = analysis.find(s_tir.SBlock, parent.stmt.body)
            stmt = next((block for block in blocks if str(block.name_hint) == name), None)
            if stmt is None or len(stmt.iter_vars) != len(source.extents):
                return
            outer = self._sch.state.get_sref(stmt)
            made = self._blocks[outer] = self._new_block(outer)
            for k, (value, extent) in enumerate(zip(source.values, source.extents, strict=True)):
                tile = Index("IntImm", value=float(round(example(extent) / example(made.extents[k]))))
                made.values[k], made.extents[k] = (
                    Index("FloorDiv", (value, tile)),
                    ceil_div(extent, tile.value),
                )
            made.own, made.links = source.own, source.links

        return after

    # Blocks that move -----------------------------------------------------------------------------

    def _links(self, block: Block, target: Any, given: str, asked: str) -> list[list[Link]]:
        """For every axis of a block: where others below a loop use the buffer it uses along that axis."""
        stmt = block.sref.stmt
        links: list[list[Link]] = [[] for _ in block.extents]
        others = [other for other in nodes.blocks_in_scope(target.body) if not other.same_as(stmt)]
        for mine in getattr(stmt, given):
            for other in others:
                for theirs in getattr(other, asked):
                    if theirs.source.same_as(mine.source):
                        partner = self._meet(self._sch.state.get_sref(other))
                        self._link(links, block, mine.region, partner, theirs.region)
        return links

    def _link(self, links: list[list[Link]], block: Block, mine: Any, partner: Block, theirs: Any) -> None:
        for one, other in zip(mine, theirs, strict=True):
            index = block.index(one.min)
            step = 1.0
            if index.kind == "Mul" and index.parts[1].kind == "IntImm":
                index, step = index.parts[0], index.parts[1].value
            if index.kind == "Var":
                known = isinstance(other.extent, tirx.IntImm)
                wanted = partner.index(other.min) if known else Index("unknown")
                links[index.value].append(
                    Link(partner, wanted, float(int(other.extent)) if known else 1.0, step)
                )

    def _moved(self, block: Block, sref: Any, whole: bool) -> None:
        self._rekey(block, sref)
        path = nodes.path_of(sref)
        shared = sum(loop.loop_var in self._loops for loop in path)
        for partner in {id(link.partner): link.partner for found in block.links for link in found}.values():
            partner.path = self._known(nodes.path_of(partner.sref))
        new = {loop.loop_var: loop for loop in path[shared:]}
        kept = nodes.loops_of_axes(sref, list(new))
        for axis, extent in enumerate([block.needed(axis, shared) for axis in range(len(block.extents))]):
            var = kept[axis]
            if not whole:
                self.conditions.append((at_most(extent, 1.0), float(var is None)))
            block.values[axis] = (
                Index("IntImm") if var is None else Index("Var", value=self._root(var, extent))
            )
        block.own = frozenset(self._roots[var] for var in new)
        block.path = self._known(path)

    def _rekey(self, block: Block, sref: Any) -> None:
        self._blocks.pop(block.sref, None)
        block.sref = sref
        self._blocks[sref] = block
        block.variables.update({it.var: k for k, it in enumerate(sref.stmt.iter_vars)})

    # The finished program -------------------------------------------------------------------------

    def _walk(self, stmt: Any, path: list[Any], found: list[Nest]) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self._walk(part, path, found)
        elif isinstance(stmt, tirx.For):
            self._walk(stmt.body, [*path, stmt], found)
        elif isinstance(stmt, s_tir.SBlockRealize):
            if analysis.find(s_tir.SBlockRealize, stmt.block.body):
                self._walk(stmt.block.body, path, found)
            else:
                found.append(self._nest(stmt.block, path))
        elif hasattr(stmt, "body"):
            self._walk(stmt.body, path, found)

    def _nest(self, stmt: Any, path: list[Any]) -> Nest:
        block = self._meet(self._sch.state.get_sref(stmt))
        block.name, block.path = str(stmt.name_hint), self._known(path)
        for k, loop in enumerate(path):
            real = loop.extent
            if isinstance(real, tirx.IntImm) and example(block.path[k].extent) != int(real):
                self._surprises.append(block.name)
                block.path[k] = Loop(float(int(real)), block.path[k].views)
        block.variables.update({it.var: k for k, it in enumerate(stmt.iter_vars)})
        summed = [
            value.keys() for value, is_summed in zip(block.values, block.summed, strict=True) if is_summed
        ]
        roots = set().union(*summed)
        return Nest(
            block,
            tuple(_KINDS.get(int(loop.kind), "serial") for loop in path),
            tuple(bool(loop.along.keys() & roots) for loop in block.path),
            tuple(not isinstance(loop.body, tirx.SeqStmt) for loop in path),
            stmt,
        )

    # Helpers --------------------------------------------------------------------------------------

    def _meet(self, sref: Any) -> Block:
        """The block of a statement, with its axes as they are if it was not known yet."""
        if sref not in self._blocks:
            self._blocks[sref] = self._new_block(sref)
        return self._blocks[sref]

    def _new_block(self, sref: Any) -> Block:
        realize, path = nodes.realize_of(sref), nodes.path_of(sref)
        axes = list(realize.block.iter_vars)
        self._known(path)
        used = {var for value in realize.iter_values for var in analysis.find(tirx.Var, value)}
        for loop in path:
            if loop.loop_var in used:
                self._root(loop.loop_var, self._loops[loop.loop_var].extent)
        made = Block(
            sref,
            str(realize.block.name_hint),
            [float(int(axis.dom.extent)) for axis in axes],
            [Index.of(value, self._roots) for value in realize.iter_values],
            [axis.iter_type == analysis.REDUCTION for axis in axes],
            {axis.var: k for k, axis in enumerate(axes)},
            self._known(path),
        )
        for axis, value in enumerate(made.values):
            if value.kind == "Var":
                made.extents[axis] = covered(made.path, value.value)
        return made

    def _known(self, path: Sequence[Any]) -> list[Loop]:
        return [self._loop(loop) for loop in path]

    def _loop(self, stmt: Any) -> Loop:
        if stmt.loop_var not in self._loops:
            self._root(stmt.loop_var, float(int(stmt.extent)))
        return self._loops[stmt.loop_var]

    def _root(self, var: Any, extent: Number) -> int:
        if var not in self._roots:
            number = self._roots[var] = len(self._roots)
            known = self._loops.get(var)
            self._loops[var] = Loop.of(number, extent) if known is None else known.also(number)
        return self._roots[var]

    def _variable(self, rv: Any) -> Any:
        return analysis.stmt_of(self._sch, rv).loop_var

    def _number(self, factor: Any) -> Number:
        return self._numbers[factor] if factor in self._numbers else float(int(factor))


_KINDS = {
    int(tirx.ForKind.PARALLEL): "parallel",
    int(tirx.ForKind.VECTORIZED): "vectorized",
    int(tirx.ForKind.UNROLLED): "unrolled",
}


def extents(simulated: Simulated, values: Mapping[Any, Any], count: int) -> list[tuple[str, Any]]:
    """Of all loops around every block, in the program's order: a line for each of `count` candidates."""
    return [
        (nest.block.name, simulated.tape.program([loop.extent for loop in nest.loops]).run(values, count))
        for nest in simulated.nests
    ]
