"""TVM's own evolutionary search behind our contract: a baseline to compare `Evolve` with.

It searches those sketches of a space that are TVM's (its mutators know no others), with TVM's database,
mutators and cost model. One of the mutators changes a constant, how many parallel tasks there are at most:
such candidates are in no sketch of the space, and named apart.

What it cannot promise: its random numbers live inside TVM and cannot be stored, so a search that is continued
is another one than the uninterrupted; and only with one thread does the same seed give the same candidates.
TVM always evolves a whole batch (64): smaller proposals are handed out from it, and what was measured in
between counts when the next one is evolved.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.schedule import Trace

from tpo.measure.contract import Measurement
from tpo.search.contract import Strategy
from tpo.space import Candidate, Sketch, Space
from tpo.space.candidate import plain
from tpo.space.space import draw_seed
from tpo.space.tvm_rules import LeanContext
from tpo.workload import schedule_of

POPULATION, BATCH = 512, 64  # TVM's defaults
FAILED = 1e10  # seconds, as TVM's tuner records a failure
_UNLIMITED = 2**30
_log = logging.getLogger(__name__)


class TvmEvolutionary(Strategy):
    """Proposes what TVM's `EvolutionarySearch` would measure next."""

    def __init__(
        self,
        space: Space,
        rng: np.random.Generator,
        population: int = POPULATION,
        batch: int = BATCH,
        threads: int = 1,
    ) -> None:
        self.space, self.rng = space, rng
        self._context = _Context(space, population, threads, draw_seed(rng))
        self._model = ms.cost_model.XGBModel(num_tuning_cores=threads)
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(space.workload.module)
        sketches = [sketch for sketch in space.sketches if _is_tvms(sketch.name)]
        self._sketches = {_structure(sketch.trace)[0]: sketch for sketch in sketches}
        if sketches:
            spaces = [self._schedule(sketch) for sketch in sketches]
            self._context.pre_tuning(_UNLIMITED, batch, spaces, self._database, self._model)
        self._waiting: deque[Candidate] = deque()
        self._proposed: dict[str, Any] = {}

    def propose(self, count: int, known: Container[str]) -> list[Candidate]:
        """What is left of TVM's last batch, and more batches until one brings nothing new."""
        found: dict[str, Candidate] = {}
        fresh = True
        while len(found) < count:
            if not self._waiting:
                if not fresh:
                    break
                self._waiting.extend(self._generate())
                fresh = False
            if not self._waiting:
                break
            candidate = self._waiting.popleft()
            if candidate.key not in known and candidate.key not in found:
                found[candidate.key] = candidate
                fresh = True
        return list(found.values())

    def observe(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Tell TVM's database and cost model; candidates that TVM's search has no sketch for are left out."""
        candidates, outcomes = [], []
        for candidate, measurement in results:
            measured = self._proposed.pop(candidate.key, None) or self._recalled(candidate)
            if measured is None:
                continue
            seconds = FAILED if measurement.seconds is None else measurement.seconds
            self._database.commit_tuning_record(
                ms.database.TuningRecord(
                    measured.sch.trace,
                    self._workload,
                    [seconds],
                    self.space.target.tvm,
                    measured.args_info,
                )
            )
            candidates.append(measured)
            failed = measurement.seconds is None
            outcomes.append(
                ms.runner.RunnerResult(None if failed else [seconds], measurement.message or None)
            )
        if candidates and self._sketches:
            self._model.update(self._context, candidates, outcomes)
            self._context.notify_runner_results(candidates, outcomes)

    def _generate(self) -> list[Candidate]:
        """The next batch of TVM's search; none when it has nothing to offer."""
        if not self._sketches:
            return []
        with _numpy_seeded(draw_seed(self.rng)):
            generated = self._context.generate_measure_candidates() or []
        made = []
        for measured in generated:
            trace = measured.sch.trace
            candidate = Candidate(self._name(trace), trace, measured.sch.mod)
            self._proposed[candidate.key] = measured
            made.append(candidate)
        return made

    def _name(self, trace: Any) -> str:
        """The sketch of a trace; `tvm/1/parallel=4` where a mutator has left it."""
        structure, parallel = _structure(trace.simplified(remove_postproc=True))
        sketch = self._sketches.get(structure)
        if sketch is None:
            return "tvm/unknown"
        changed = parallel != _structure(sketch.trace)[1]
        return f"{sketch.name}/parallel={','.join(map(str, parallel))}" if changed else sketch.name

    def _schedule(self, sketch: Sketch) -> Any:
        sch = schedule_of(self.space.workload.module)
        sketch.preferred.apply_to_schedule(sch, remove_postproc=True)
        return sch

    def _recalled(self, candidate: Candidate) -> Any:
        """A candidate of a record, as TVM's tuner would hold it; None if it is not of TVM's sketches."""
        if not _is_tvms(candidate.sketch) or candidate.program is not None:
            return None
        sch = schedule_of(self.space.workload.module)
        try:
            candidate.trace.apply_to_schedule(sch, remove_postproc=False)
        except Exception as error:  # TVM's schedule primitives raise many kinds of errors
            _log.debug("a record of %s cannot be replayed: %s", candidate.sketch, error)
            return None
        arguments = ms.arg_info.ArgInfo.from_entry_func(sch.mod, remove_preproc=True)
        return ms.search_strategy.MeasureCandidate(sch, arguments)


class _Context(LeanContext):
    """A space's context with TVM's search and mutators, and a seed."""

    def __init__(self, space: Space, population: int, threads: int, seed: int) -> None:
        used = space.context.space_generator
        generator = ms.space_generator.PostOrderApply(
            sch_rules=used.sch_rules,
            postprocs=used.postprocs,
            mutator_probs=ms.mutator.Mutator.create("llvm"),
        )
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=population, init_min_unmeasured=min(50, population // 2)
        )
        self.__init_handle_by_constructor__(
            _ffi_api.TuneContext,
            space.workload.module,
            space.target.tvm,
            generator,
            strategy,
            "main",
            threads,
            seed,
            _debug,
        )
        _ffi_api.TuneContextInitialize(self)


@contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """TVM's cost model draws random scores from numpy's global generator until it has seen 100 results."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def _is_tvms(sketch: str) -> bool:
    return sketch.startswith("tvm/")


def _structure(trace: Any) -> tuple[str, list[Any]]:
    """The instructions of a trace, whatever it has decided, and how many parallel tasks they ask for.

    That number is no decision but a constant of a sketch, and yet TVM has a mutator for it.
    """
    instructions, _ = plain(Trace(trace.insts, {}).as_json())
    parallel = []
    for kind, inputs, attributes, _ in instructions:
        if kind == "Annotate" and attributes == ["meta_schedule.parallel"]:
            parallel.append(inputs[1])
            inputs[1] = None
    return json.dumps(instructions), parallel


def _debug(level: int, file: str, line: int, message: str) -> None:
    _log.debug("%s:%d %s", file, line, message)
