"""Made-up runs, candidates and measurements, for tests of the store that need no TVM."""

from __future__ import annotations

from pathlib import Path

from tpo.measure.contract import Failure, Measurement
from tpo.records import Records, RunInfo
from tpo.records.record import StoredCandidate

TVM = "1.2.3"
TARGET = '{"kind":"llvm","mcpu":"some-cpu","num-cores":2}'
WORKLOAD = "00000000000000aa"


def run_info(target: str = TARGET, sha256: str = "5ha", seed: int = 7) -> RunInfo:
    return RunInfo(
        model_name="net",
        model_path="/models/net.onnx",
        model_sha256=sha256,
        target=target,
        threads=2,
        seed=seed,
        config={"trials": 100, "measure": {"repeats": 3}},
        versions={"tpo": "0", "tvm": TVM},
        machine={"cpu": "Some CPU", "cores": 2},
    )


def candidate(key: str, sketch: str = "tiles") -> StoredCandidate:
    return StoredCandidate(key, sketch, f'[[["Split",["{key}"]]],[]]')


def took(seconds: float, cut_short: bool = False) -> Measurement:
    return Measurement(
        seconds,
        samples=(seconds * 0.9, seconds, seconds * 1.1),
        cut_short=cut_short,
        drift=1.05,
        error=1e-6,
        build_seconds=0.25,
        run_seconds=0.5,
    )


def failed(failure: Failure = Failure.CRASH) -> Measurement:
    return Measurement.failed(failure, "signal 11", build_seconds=0.1)


def new_store(path: Path, *workloads: str, tvm_version: str = TVM) -> Records:
    """An open store with these workloads (by default one), whose functions are no real ones."""
    records = Records.open(path, tvm_version=tvm_version)
    for key in workloads or (WORKLOAD,):
        records.add_workload_json(key, f"function {key}", f"task_{key[-2:]}", flops=1_000_000)
    return records
