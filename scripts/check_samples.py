"""Are candidates right? Random samples of all our rules, built, run and compared with a reference.

    python scripts/check_samples.py [--candidates 10000] [--threads 2] [--seed 0] [--only TEXT] [--json FILE]

Workloads are those of `tpo.testing.corpus`, and the operators of `scripts/bench_kernels.py` at reduced
sizes (images of at most 14x14 or 28x28, at most 128 channels of a convolution; `operators(small=True)`).
Candidates are compared with the unscheduled function, on random inputs. Of the operators, that function
is itself compared with ONNX Runtime first: its results are then ONNX Runtime's. For the corpus, which is
not made from ONNX, there is nothing but TVM's unscheduled code.

Every program is checked once: what is drawn again does not count, and a sketch that gives nothing new any
more has ended. Candidates go around workloads and sketches in turn, so that a run that is stopped (Ctrl-C)
has seen all of them alike; what it has counted is printed. Exits with 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tpo.space.space import draw_seed

PER_SKETCH = 4  # candidates of a sketch before it is another workload's turn
EXHAUSTED = 20  # draws in a row that give nothing new end a sketch
COLUMNS = ("drawn", "refused", "failed", "built", "wrong")


@dataclass
class Subject:
    """A workload, its space and its sketches of ours."""

    name: str
    space: Any
    sketches: list[Any]


@dataclass
class Tally:
    """How many candidates there were by rule, what became of them, and what was said about the bad ones."""

    rules: dict[str, Counter[str]] = field(default_factory=dict)
    total: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, sketch: str, *outcomes: str) -> None:
        """Count a candidate, for every rule that took part in its sketch."""
        self.total.update(outcomes)
        for rule in rules_of(sketch):
            self.rules.setdefault(rule, Counter()).update(outcomes)

    def table(self) -> Iterator[str]:
        """Lines of the result."""
        yield f"{'rule':28}" + "".join(f"{name:>9}" for name in COLUMNS)
        for rule, counts in [*sorted(self.rules.items()), ("all candidates", self.total)]:
            yield f"{rule:28}" + "".join(f"{counts[name]:9}" for name in COLUMNS)


def main() -> int:
    """Check as many candidates as asked for; the exit code says whether all were right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tally = Tally()
    start = time.perf_counter()
    try:
        check(given, tally)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    print(*tally.table(), sep="\n")
    print(f"{tally.total['built']} of {given.candidates} built in {time.perf_counter() - start:.0f} s")
    print(*tally.problems, sep="\n")
    if given.json:
        content = {"rules": tally.rules, "total": tally.total, "problems": tally.problems}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(tally.total["wrong"] > 0)


def check(given: argparse.Namespace, tally: Tally) -> None:
    """Draw, build, run and count, until as many candidates have been drawn as asked for."""
    from tpo import targets
    from tpo.measure import LocalRunner, MeasureOptions

    target = targets.resolve("native", given.threads)
    found = [subject for subject in subjects(target, tally) if given.only in subject.name]
    sketches = sum(len(subject.sketches) for subject in found)
    print(f"{len(found)} workloads, {sketches} sketches", file=sys.stderr, flush=True)
    streams = [(subject, samples(subject, given.seed)) for subject in found]
    each = min(PER_SKETCH, max(1, given.candidates // max(1, sketches)))
    with LocalRunner(target.tvm, MeasureOptions(given.threads)) as runner:
        while tally.total["drawn"] < given.candidates and streams:
            for subject, stream in list(streams):
                wanted = min(each * len(subject.sketches), given.candidates - tally.total["drawn"])
                drawn = list(islice(stream, wanted))
                if len(drawn) < wanted:
                    streams.remove((subject, stream))
                check_some(runner, subject, drawn, tally)
            progress = ", ".join(f"{tally.total[name]} {name}" for name in COLUMNS)
            print(progress, file=sys.stderr, flush=True)


def check_some(runner: Any, subject: Subject, drawn: Sequence[tuple[str, Any]], tally: Tally) -> None:
    """Build and run candidates of one workload; None is one that constraints or TVM refused."""
    from tpo.measure import BuildInput, Failure

    workload = subject.space.workload
    good: list[Any] = []
    for sketch, candidate in drawn:
        if candidate is None:
            tally.add(sketch, "drawn", "refused")
        else:
            good.append(candidate)
    hurry = {workload.key: 0.0}  # the numbers matter here, and not the time
    inputs = [BuildInput(workload, candidate.module) for candidate in good]
    for position, measured in runner.measure(inputs, hurry):
        candidate = good[position]
        wrong = measured.failure is Failure.WRONG_RESULT
        built = measured.ok or wrong
        tally.add(candidate.sketch, "drawn", "built" if built else "failed", *(["wrong"] if wrong else []))
        if not measured.ok:
            text = f"{subject.name}, {candidate.sketch}: {measured.failure}: {measured.message}"
            tally.problems.append(f"{text} {decisions(candidate)}" if wrong else text)


def decisions(candidate: Any) -> str:
    """What a wrong candidate has decided, to make it again."""
    from tpo.space.decisions import decisions_of, sites_of

    names = [site.name for site in sites_of(candidate.trace)]
    return str(dict(zip(names, decisions_of(candidate.trace), strict=True)))


def subjects(target: Any, tally: Tally) -> Iterator[Subject]:
    """All workloads with their spaces; operators whose unscheduled function is wrong are only reported."""
    from tpo.space import build_space
    from tpo.testing import corpus
    from tpo.testing.kernels import imported, operators
    from tpo.workload import Workload

    workloads = {f"corpus: {name}": corpus.workload(name) for name in corpus.NAMES}
    for operator in {item.name: item for group in operators(small=True).values() for item in group}.values():
        item = imported(operator)
        error = difference_from_onnxruntime(item, target)
        if error:
            tally.add("unscheduled", "wrong")
            tally.problems.append(f"{operator.name}: the unscheduled function is not ONNX Runtime's: {error}")
        else:
            workloads[operator.name] = Workload.of(item.func)
    for name, workload in workloads.items():
        space = build_space(workload, target)
        tally.problems += [f"{name}: {p.rule}: {p.message}{p.place}" for p in space.problems]
        ours = [sketch for sketch in space.sketches if not sketch.name.startswith("tvm/")]
        yield Subject(name, space, ours)


def difference_from_onnxruntime(item: Any, target: Any) -> str:
    """What is wrong with an operator's model as the frontend leaves it, unscheduled ("" if nothing)."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    from tpo import vector_math
    from tpo.deploy.reference import Reference
    from tpo.measure import data
    from tpo.targets import for_compiling

    vector_math.register()
    machine = VirtualMachine(tvm.compile(item.model.module, for_compiling(target.tvm)), tvm.cpu())
    (spec,) = item.model.inputs
    x = np.random.default_rng(1).standard_normal(spec.shape, dtype=np.float32)
    (want,) = Reference(item.model.source).run({spec.name: x}).values()
    return data.difference(machine["main"](tvm.runtime.tensor(x)).numpy(), want)[1]


def samples(subject: Subject, seed: int) -> Iterator[tuple[str, Any]]:
    """Random candidates of all sketches in turn, no program twice; None for what was refused."""
    seen: set[str] = set()
    misses = Counter({sketch.name: 0 for sketch in subject.sketches})
    rng = np.random.default_rng(seed)
    while misses:
        for sketch in [sketch for sketch in subject.sketches if sketch.name in misses]:
            candidate = subject.space.sample(sketch, draw_seed(rng))
            known = candidate is None or candidate.key in seen
            misses[sketch.name] = misses[sketch.name] + 1 if known else 0
            if misses[sketch.name] >= EXHAUSTED:
                del misses[sketch.name]
            if candidate is None:
                yield sketch.name, None
            elif not known:
                seen.add(candidate.key)
                yield sketch.name, candidate


def rules_of(sketch: str) -> list[str]:
    """The rules that made a sketch.

    >>> rules_of("contraction/columns=16x2"), rules_of("inline/all+tiling/levels=2+inline/all")
    (['contraction'], ['inline', 'tiling'])
    """
    return list(dict.fromkeys(re.split(r"[/(]", label)[0] for label in sketch.split("+")))


if __name__ == "__main__":
    sys.exit(main())
