"""What a benchmark can compare, each in a process of its own: `python -m tpo.deploy.engines`.

The process reads one JSON object per line from stdin and answers each with one on stdout:
first a job (see `Job`), answered when the engine is loaded and has written its outputs, with how long
that took, imports and the first run included, and the memory it holds since; then any number of turns
{"seconds": s, "runs": n}, each answered with the seconds every run took.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import psutil

from tpo.deploy.arrays import load_npz, save_npz
from tpo.deploy.inputs import Array
from tpo.errors import EngineError, TpoError

# After a pause a virtual machine may run two threads on one core for some tenths of a second.
WARM_UP_RUNS, WARM_UP_SECONDS = 2, 0.3


@dataclass(frozen=True)
class Job:
    """What an engine process is to run; paths as text, because it travels as JSON."""

    engine: str
    library: str
    model: str
    threads: int
    inputs: str
    outputs: str

    def line(self) -> str:
        """The job as one line of the protocol."""
        return json.dumps(asdict(self))


class Engine(Protocol):
    """Something that runs a model on numpy arrays. To add one, implement this and list it in ENGINES."""

    version: str

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Outputs by name; this call is what is timed."""


class TpoEngine:
    """The compiled library, called as a Python user calls it."""

    def __init__(self, job: Job) -> None:
        from tpo.deploy.artifact import load

        self.artifact = load(job.library, threads=job.threads)
        self.version = self.artifact.manifest.versions.tpo

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the artifact."""
        return self.artifact.run(inputs)


class OnnxRuntimeEngine:
    """ONNX Runtime with all its graph optimisations."""

    def __init__(self, job: Job) -> None:
        from tpo.deploy.reference import Reference

        self.reference = Reference(job.model, threads=job.threads, optimised=True)
        self.version = self.reference.version

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the session."""
        return self.reference.run(inputs)


class OpenVinoEngine:
    """OpenVINO's CPU plugin, made for latency, in single precision and with the shapes of the inputs."""

    def __init__(self, job: Job) -> None:
        import onnx
        import openvino

        core = openvino.Core()
        try:
            model = core.read_model(job.model)
            # Fixed shapes let it plan memory and choose kernels as we do.
            model.reshape({name: array.shape for name, array in load_npz(Path(job.inputs)).items()})
            settings = {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": job.threads,
                "NUM_STREAMS": 1,
                # On CPUs that have bfloat16 it would compute in that.
                "INFERENCE_PRECISION_HINT": "f32",
            }
            self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            raise EngineError(engine="openvino", why=str(error).strip().splitlines()[-1]) from error
        # An output of OpenVINO's has several names, of which the model's own is one.
        own = {output.name for output in onnx.load(job.model, load_external_data=False).graph.output}
        outputs = self._request.get_compiled_model().outputs
        self._names = [next(iter(own & output.get_names())) for output in outputs]
        self.version: str = openvino.__version__.split("-")[0]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run on the arrays themselves; results are copied, as those of the others are."""
        self._request.infer(dict(inputs), share_inputs=True)
        return {name: self._request.get_tensor(name).data.copy() for name in self._names}


ENGINES: dict[str, Callable[[Job], Engine]] = {
    "tpo": TpoEngine,
    "onnxruntime": OnnxRuntimeEngine,
    "openvino": OpenVinoEngine,
}


def time_runs(engine: Engine, inputs: Mapping[str, Array], seconds: float, runs: int) -> list[float]:
    """Seconds of each run, for at least `seconds` and at least `runs` runs, after warming up."""
    gc.collect()
    gc.disable()
    try:
        _run_for(engine, inputs, WARM_UP_SECONDS, WARM_UP_RUNS)
        return _run_for(engine, inputs, seconds, runs)
    finally:
        gc.enable()


def _run_for(engine: Engine, inputs: Mapping[str, Array], seconds: float, runs: int) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < runs or time.perf_counter() < end:
        start = time.perf_counter()
        engine.run(inputs)
        times.append(time.perf_counter() - start)
    return times


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    process = psutil.Process()
    try:
        job = Job(**json.loads(requests.readline()))
        inputs = load_npz(Path(job.inputs))
        before, start = process.memory_info().rss, time.perf_counter()
        engine = ENGINES[job.engine](job)
        outputs = engine.run(inputs)
        seconds = time.perf_counter() - start
        save_npz(Path(job.outputs), outputs)
    except TpoError as error:
        answer(error=str(error))
        return
    memory = process.memory_info().rss - before
    answer(version=engine.version, start_seconds=seconds, memory_bytes=memory)
    for line in requests:
        turn = json.loads(line)
        answer(times=time_runs(engine, inputs, turn["seconds"], turn["runs"]))


def main() -> None:
    """Keep stdout for answers alone: what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
