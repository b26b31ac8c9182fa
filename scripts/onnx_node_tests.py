"""Count how many of the operator tests that `onnx` ships pass through tpo's frontend.

Each test case is one operator (or, in the `_expanded` ones, its function body) with input and
expected output. It passes the whole frontend (functions, simplification, import, canonicalisation,
layout, fusion), is compiled for LLVM without schedules, run, and compared with the test's own
tolerances; integers must be equal. Every test runs in a worker process under a time
limit, so that a crash or a hang costs one test.

    python scripts/onnx_node_tests.py --jobs 2 --json node_tests.json
    python scripts/onnx_node_tests.py --filter lstm

Operators that need a parameter at compile time (axes, pads, shapes...) get it from the test's data
when the test makes it an input, and inputs without elements, which tpo does not take, become
constants too; those tests are counted apart, as `passed, parameters bound`. So are
those whose float16 or bfloat16 outputs differ by up to two units in the last place, which is more
than the tests' tolerance, as `passed, 16-bit rounding`: the reference rounds in other places.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

# Input positions that tpo needs as constants, by operator.
PARAMETERS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "GRU": (4,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "LSTM": (4,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "ReverseSequence": (1,),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
VERDICTS = (
    "passed",
    "passed, parameters bound",
    "passed, 16-bit rounding",
    "refused",
    "wrong",
    "crashed",
)
# Distance from 1 to the next number of the 16-bit floats.
EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
REASONS: tuple[tuple[str, str], ...] = (
    (r"strings|String|Regex|TfIdf|ImageDecoder", "strings and files"),
    (r"[Ss]equence", "sequences"),
    (r"[Oo]ptional", "optionals"),
    (r"ai\.onnx\.preview|training mode", "training, gradients and previews"),
    (r"ai\.onnx\.ml", "ai.onnx.ml"),
    (r"Random|Bernoulli|Multinomial", "random numbers"),
    (r"NonZero|Unique|Compress|NonMaxSuppression", "output shape depends on data"),
    (r"float8|float4|uint4|int4|uint2|int2", "float8, float4, 2- and 4-bit integers"),
    (r"\(s\): (If|Loop|Scan)", "control flow on data"),
    (r"without elements", "outputs without elements"),
    (r"must be (a )?constants?|not known|dynamic", "a parameter or shape that is not constant"),
)


@dataclass
class Outcome:
    """What became of one test: the verdict, and for others than `passed` the reason."""

    name: str
    verdict: str
    reason: str = ""


def check(case: Any) -> Outcome:
    """Run one test case in this process."""
    from tpo.errors import TpoError

    warnings.simplefilter("ignore")
    inputs, expected = ([_array(value) for value in values] for values in case.data_sets[0])
    named = list(zip(case.model.graph.input, inputs, strict=False))
    try:
        try:
            bound = {value.name for value, array in named if isinstance(array, np.ndarray) and not array.size}
            actual = run(case.model, inputs, bound)
        except TpoError:
            if bound >= parameters(case.model):
                raise
            bound |= parameters(case.model)
            actual = run(case.model, inputs, bound)
    except TpoError as error:
        return Outcome(case.name, "refused", str(error))
    except Exception as error:
        return Outcome(case.name, "crashed", f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}")
    difference = compare(actual, expected, case.rtol, case.atol)
    if difference and not compare(actual, expected, case.rtol, case.atol, last_places=2):
        return Outcome(case.name, "passed, 16-bit rounding", difference)
    verdict = "wrong" if difference else "passed, parameters bound" if bound else "passed"
    return Outcome(case.name, verdict, difference)


def _array(value: Any) -> Any:
    """Test data as numpy; sequences and optionals stay what they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.asarray(value)


def run(model: onnx.ModelProto, inputs: list[Any], bound: set[str]) -> list[Any]:
    """Import, compile and run a model on the given inputs, those in `bound` made constants."""
    import tvm
    from tvm import relax

    prepared, feeds = prepare(model, inputs, bound)
    machine = relax.VirtualMachine(tvm.compile(translate(prepared), "llvm"), tvm.cpu())
    result = machine["main"](
        *[tvm.runtime.tensor(np.ascontiguousarray(value).reshape(value.shape)) for value in feeds]
    )
    return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]


def translate(model: onnx.ModelProto) -> Any:
    """The model after every stage of the frontend: loop nests, fused, without schedules."""
    from tpo.frontend.pipeline import stages

    *_, (_, module) = stages(model, "test", {})
    return module


def parameters(model: onnx.ModelProto) -> set[str]:
    """Names of graph inputs that are parameters of an operator."""
    nodes = model.graph.node
    if len(nodes) == 1:
        positions = PARAMETERS.get(nodes[0].op_type, ())
        if nodes[0].op_type.startswith("Reduce"):
            positions = (1,)
        return {nodes[0].input[i] for i in positions if i < len(nodes[0].input) and nodes[0].input[i]}
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)
    result = set()
    for index, value in enumerate(model.graph.input):
        tensor = value.type.tensor_type
        if tensor.elem_type in integers and len(tensor.shape.dim) <= (1 if index else 0):
            result.add(value.name)
    return result


def prepare(model: onnx.ModelProto, inputs: list[Any], bound: set[str]) -> tuple[onnx.ModelProto, list[Any]]:
    """A copy of the model with the shapes of `inputs`, and what is left to feed."""
    prepared = onnx.ModelProto()
    prepared.CopyFrom(model)
    graph = prepared.graph
    feeds, kept = [], []
    for value, array in zip(graph.input, inputs, strict=False):
        if value.name in bound:
            graph.initializer.append(numpy_helper.from_array(array, value.name))
            continue
        if value.type.HasField("tensor_type") and isinstance(array, np.ndarray):
            del value.type.tensor_type.shape.dim[:]
            for size in array.shape:
                value.type.tensor_type.shape.dim.add().dim_value = size
        kept.append(value)
        feeds.append(array)
    kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del graph.input[:]
    graph.input.extend(kept)
    return prepared, feeds


def compare(actual: list[Any], expected: list[Any], rtol: float, atol: float, last_places: int = 0) -> str:
    """How the outputs differ from the expected ones; "" when they do not.

    `last_places` is how many units in the last place 16-bit floats may differ by, if that is more.
    """
    if len(actual) != len(expected):
        return f"{len(actual)} outputs, expected {len(expected)}"
    for index, (have, want) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(want, np.ndarray):
            return f"output {index} is a tensor, expected a sequence"
        if have.shape != want.shape:
            return f"output {index} has shape {have.shape}, expected {want.shape}"
        if have.dtype != want.dtype:
            return f"output {index} is {have.dtype}, expected {want.dtype}"
        if want.dtype.kind in "biu":
            equal = np.array_equal(have, want)
        else:
            kind = np.complex128 if want.dtype.kind == "c" else np.float64
            slack = max(rtol, last_places * EPSILONS.get(str(want.dtype), 0.0))
            equal = np.allclose(have.astype(kind), want.astype(kind), slack, atol, equal_nan=True)
        if not equal:
            return f"output {index} has other values: {have.reshape(-1)[:4]} for {want.reshape(-1)[:4]}"
    return ""


def worker(connection: Connection, cases: dict[str, Any]) -> None:
    """Check the cases whose names arrive, until told to stop."""
    while (name := connection.recv()) is not None:
        connection.send(check(cases[name]))


class Worker:
    """A process that checks one case at a time and is replaced when it dies or hangs."""

    def __init__(self, cases: dict[str, Any]) -> None:
        self.cases = cases
        self.name: str | None = None
        self.deadline = 0.0
        self.start()

    def start(self) -> None:
        """Fork a fresh process; the parent never loads TVM, so forking is safe."""
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=worker, args=(other, self.cases), daemon=True)
        self.process.start()
        other.close()

    def give(self, name: str, limit: float) -> None:
        """Start on a case."""
        self.name, self.deadline = name, time.monotonic() + limit
        self.connection.send(name)

    def outcome(self) -> Outcome | None:
        """The outcome of the case at hand, or None while it runs."""
        assert self.name is not None
        try:
            if self.connection.poll(0.02):
                result: Outcome = self.connection.recv()
                self.name = None
                return result
        except (EOFError, ConnectionResetError):
            return self.replace("the process died")
        if time.monotonic() > self.deadline:
            return self.replace("time limit")
        return None

    def replace(self, reason: str) -> Outcome:
        """Give up on the case at hand and start a new process."""
        assert self.name is not None
        result = Outcome(self.name, "crashed", reason)
        self.process.kill()
        self.process.join()
        self.name = None
        self.start()
        return result

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def run_all(cases: dict[str, Any], jobs: int, limit: float, verbose: bool) -> list[Outcome]:
    """Check all cases on `jobs` workers; `verbose` tells of what does not pass at once, on stderr."""
    waiting = list(reversed(cases))
    outcomes: list[Outcome] = []
    workers = [Worker(cases) for _ in range(jobs)]
    while waiting or any(each.name for each in workers):
        for each in workers:
            if each.name is None and waiting:
                each.give(waiting.pop(), limit)
            if each.name is not None and (outcome := each.outcome()) is not None:
                outcomes.append(outcome)
                if verbose and not outcome.verdict.startswith("passed"):
                    place = f"{len(outcomes)}/{len(cases)}"
                    print(place, outcome.name, outcome.verdict, outcome.reason, file=sys.stderr, flush=True)
    for each in workers:
        each.stop()
    return outcomes


def group_of(reason: str) -> str:
    """The kind of refusal a reason is; of unlisted kinds, the reason without the node's name."""
    for pattern, label in REASONS:
        if re.search(pattern, reason):
            return label
    return re.sub(r" node '.*?'| \(node \w+\)|test:? ", "", reason.split(";")[0])


def summary(outcomes: list[Outcome]) -> str:
    """The counts, and for what did not pass the reasons."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    lines = [f"onnx {onnx.__version__}: {len(outcomes)} node tests"]
    for verdict in VERDICTS:
        lines.append(f"  {counts[verdict]:5d} {verdict}")
    groups: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict == "refused":
            groups[group_of(outcome.reason)].append(outcome.name)
    lines.append("refused:")
    for label, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {len(names):5d} {label}  (e.g. {names[0]})")
    for verdict in ("wrong", "crashed"):
        lines += [f"{verdict}: {each.name}: {each.reason}" for each in outcomes if each.verdict == verdict]
    return "\n".join(lines)


def load_cases(pattern: str) -> dict[str, Any]:
    """The node tests of the installed onnx whose name matches."""
    from onnx.backend.test.loader import load_model_tests

    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        return {case.name: case for case in load_model_tests(kind="node") if re.search(pattern, case.name)}


def main() -> int:
    """Parse the arguments, run, print; 1 when anything is wrong or crashed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="only tests whose name matches this regular expression")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one test")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--verbose", action="store_true", help="tell of what does not pass as it happens")
    arguments = parser.parse_args()
    cases = load_cases(arguments.filter)
    outcomes = run_all(cases, arguments.jobs, arguments.limit, arguments.verbose)
    print(summary(outcomes))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return int(any(outcome.verdict in ("wrong", "crashed") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
